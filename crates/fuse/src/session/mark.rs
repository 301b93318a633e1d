//! The mark of a mount's guard, by which other programs find it, wait for its end, and learn its
//! outcome.
//!
//! The mark is a file in the guard's memory, named after the mount. A program finds it among the
//! open files of the processes that it trusts (/proc/PID/fd). The file belongs to the user who has
//! created it, so no other user can put a mark in its place, or prevent that it is found.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::status::effective_user;

/// The first byte of the mark of a session that has succeeded.
const SUCCESS: u8 = b'+';
/// The first byte of the mark of a session that has failed. The error follows.
const FAILURE: u8 = b'-';
/// The offset of the error.
const FIRST: u64 = 1;
/// The maximum size of an error in a mark, in bytes.
const ERROR_BYTES_MAX: usize = 16 << 10;
/// The longest interval at which a waiting program looks at the mark.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The mark of this process.
#[derive(Debug)]
pub struct Mark(File);

impl Mark {
    /// Marks this process as the guard of the mount `name`.
    pub fn set(name: &str) -> Option<Self> {
        let name = file_name(name);
        let create = |flags| rustix::fs::memfd_create(&*name, MemfdFlags::CLOEXEC | flags);
        let created = match create(MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3.
            Err(Errno::INVAL) => create(MemfdFlags::empty()),
            created => created,
        };
        let created =
            created.inspect_err(|errno| tracing::debug!("cannot mark the guard: {errno}"));
        created.ok().map(|file| Self(file.into()))
    }

    /// Records the outcome of the session: the error, if there is one.
    pub fn conclude(&self, error: Option<&str>) {
        let text = cut(error.unwrap_or_default(), ERROR_BYTES_MAX);
        // The first byte last, since readers read the rest once they have found it.
        let _ = self.0.write_all_at(text.as_bytes(), FIRST);
        let _ = self.0.write_all_at(&[if error.is_none() { SUCCESS } else { FAILURE }], 0);
    }
}

/// The end of a guard, as another program sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The session has succeeded.
    Success,
    /// The session has failed with this error.
    Failure(String),
    /// The guard was killed.
    Killed,
}

/// A guard that was found by its mark.
#[derive(Debug)]
pub struct FoundGuard {
    process: OwnedFd,
    mark: File,
}

impl FoundGuard {
    /// Finds the guard of the mount `name` among the processes of `users`. Returns `None` if the
    /// guard was killed, or if this process cannot see it, such as in another PID namespace.
    pub fn find(name: &str, users: &[u32]) -> Option<Self> {
        let link = PathBuf::from(format!("/memfd:{} (deleted)", file_name(name)));
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut processes =
            processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        processes.find_map(|process| Self::of(process, &link, users))
    }

    /// Returns the guard if it is `process`.
    fn of(process: i32, link: &Path, users: &[u32]) -> Option<Self> {
        // Before anything is opened that another user may have put there.
        if !users.contains(&effective_user(process.cast_unsigned())?) {
            return None;
        }
        let open = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
        let mut open = open.map(|entry| entry.path());
        let path = open.find(|path| fs::read_link(path).is_ok_and(|target| target == *link))?;
        let handle = rustix::process::pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty());
        let handle = handle.ok()?;
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mark = File::options().read(true).custom_flags(flags).open(path).ok()?;
        // A process that became a user's by a set-user-ID program keeps the files of the one that
        // has started it. The process may have ended before it was opened.
        let is_trusted = users.contains(&mark.metadata().ok()?.uid());
        let is_same = is_trusted
            && !has_ended(&handle, Duration::ZERO).ok()?
            && fs::read_link(format!("/proc/self/fd/{}", mark.as_raw_fd())).ok()? == *link;
        is_same.then_some(Self { process: handle, mark })
    }

    /// Waits for the end of the session. Returns `None` after `timeout`.
    pub fn end_within(&self, timeout: Duration) -> io::Result<Option<End>> {
        let until = Instant::now() + timeout;
        let mut slice = Duration::from_millis(1);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let is_over = has_ended(&self.process, left.min(slice))?;
            // After the end of the process, since it may have ended in the meantime.
            if let Some(end) = self.read()? {
                return Ok(Some(end));
            }
            if is_over {
                return Ok(Some(End::Killed));
            }
            if left.is_zero() {
                return Ok(None);
            }
            slice = (slice * 2).min(CHECK_EVERY);
        }
    }

    /// Returns the outcome in the mark, if there is one.
    fn read(&self) -> io::Result<Option<End>> {
        let mut first = [0];
        self.mark.read_at(&mut first, 0)?;
        match first {
            [SUCCESS] => return Ok(Some(End::Success)),
            [FAILURE] => {}
            _ => return Ok(None),
        }
        let mut error = vec![0; ERROR_BYTES_MAX];
        let length = self.mark.read_at(&mut error, FIRST)?;
        Ok(Some(End::Failure(String::from_utf8_lossy(&error[..length]).into_owned())))
    }
}

/// Returns whether the process ends within `timeout`.
fn has_ended(process: &OwnedFd, timeout: Duration) -> Result<bool, Errno> {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).ok();
    match rustix::event::poll(&mut watched, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn file_name(name: &str) -> String {
    format!("bifolio-mount-{name}")
}

/// Returns `text`, cut to `bytes_max`.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: &str) -> String {
        format!("test-{}-{test}", std::process::id())
    }

    #[test]
    fn a_guard_is_found_by_its_mark_and_its_user() {
        let name = name("user");
        let user = rustix::process::geteuid().as_raw();
        assert!(FoundGuard::find(&name, &[user]).is_none());
        let mark = Mark::set(&name).unwrap();
        assert!(FoundGuard::find(&name, &[user + 1]).is_none());
        let guard = FoundGuard::find(&name, &[user + 1, user]).unwrap();
        assert_eq!(guard.end_within(Duration::from_millis(5)).unwrap(), None);
        // This process has the file open twice.
        drop((mark, guard));
        assert!(FoundGuard::find(&name, &[user]).is_none());
    }

    #[test]
    fn the_outcome_is_read_before_the_guard_has_ended() {
        for (error, end) in [
            (None, End::Success),
            (Some("lost".to_owned()), End::Failure("lost".to_owned())),
            (Some("é".repeat(9000)), End::Failure("é".repeat(ERROR_BYTES_MAX / 2))),
        ] {
            let name = name("outcome");
            let mark = Mark::set(&name).unwrap();
            let guard = FoundGuard::find(&name, &[rustix::process::geteuid().as_raw()]).unwrap();
            mark.conclude(error.as_deref());
            assert_eq!(guard.end_within(Duration::ZERO).unwrap(), Some(end));
        }
    }

    #[test]
    fn a_file_of_another_user_is_no_mark() {
        let name = name("stranger");
        let mark = Mark::set(&name).unwrap();
        let own = rustix::process::geteuid();
        assert!(own.is_root(), "only root can give files to others");
        let stranger = rustix::fs::Uid::from_raw(65_534);
        rustix::fs::fchown(&mark.0, Some(stranger), None).unwrap();
        assert!(FoundGuard::find(&name, &[own.as_raw()]).is_none());
    }
}
