//! Unmounting by another program, including the wait for the end of the mount's server.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::guard::WRITE_TIMEOUT;
use super::peer::connect;
use super::task::Task;
use crate::mount::{self, MountEntry, MountError, MountId};
use crate::server::CLOSE_TIMEOUT;

/// The time within which the server has to end. It answers requests in flight, and may have much data to write.
const END_TIMEOUT: Duration =
    Duration::from_secs(2 * CLOSE_TIMEOUT.as_secs() + WRITE_TIMEOUT.as_secs());
/// The time after which users want to know the reason for a wait.
const SILENT_WAIT: Duration = Duration::from_secs(2);

/// An error of unmounting.
#[derive(Debug, thiserror::Error)]
pub enum UmountError {
    /// The directory does not exist.
    #[error("{}", .0)]
    Path(io::Error),
    /// The directory is not a mount point of bifolio.
    #[error("is not a bifolio mount")]
    NotMounted,
    /// The mount could not be unmounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Another file system was mounted on the directory in the meantime, and was unmounted instead.
    #[error("another file system was mounted on it in the meantime, and was unmounted instead")]
    Another,
    /// The mount was unmounted, but waiting for its server has failed.
    #[error("unmounted, but cannot wait for its server: {}", .0)]
    Waiting(io::Error),
    /// The mount was unmounted, and it is unknown when its server ends.
    #[error(
        "unmounted, but it is unknown when the server ends: do not use the image until its `bifolio` process has ended"
    )]
    NoGuard,
    /// The mount was unmounted, but its server does not end.
    #[error(
        "unmounted, but the server is still running: data may be missing in the image; do not use it until the server has ended"
    )]
    StillRunning,
}

/// Unmounts the bifolio mount on `path` and waits for its server, which may have much data to write, for up to 11
/// minutes and 2 s. Calls `before_long` if the wait takes longer than 2 s.
pub fn umount(path: &Path, before_long: impl FnOnce()) -> Result<(), UmountError> {
    let path: PathBuf = mount::resolve_mount_point(path).map_err(UmountError::Path)?;
    let found = MountId::find(&path).filter(|(_, entry)| entry.is_ours());
    let (id, entry) = found.ok_or(UmountError::NotMounted)?;
    // Connected first: the socket reports the end of the guard.
    let guard = connect(&id.name(&entry.source), &trusted(&entry));
    let begun = Instant::now();
    // On another thread, since the kernel may wait for the server.
    let unmounting = Task::start(move || mount::unmount(&path));
    let unmounting = unmounting.map_err(|errno| UmountError::Waiting(errno.into()))?;
    let mut before_long = Some(before_long);
    let outcome = unmounting.outcome_within(SILENT_WAIT).or_else(|| {
        if let Some(before_long) = before_long.take() {
            before_long();
        }
        unmounting.outcome_within(END_TIMEOUT)
    });
    outcome.ok_or(UmountError::StillRunning)??;
    if id.exists() == Some(true) {
        return Err(UmountError::Another);
    }
    let Some(guard) = guard.map_err(UmountError::Waiting)? else {
        // The guard was killed, or runs in another network namespace.
        return if entry.is_written_by_unmounting() { Ok(()) } else { Err(UmountError::NoGuard) };
    };
    if ends_within(&guard, SILENT_WAIT.saturating_sub(begun.elapsed()))? {
        return Ok(());
    }
    if let Some(before_long) = before_long {
        before_long();
    }
    if ends_within(&guard, END_TIMEOUT)? { Ok(()) } else { Err(UmountError::StillRunning) }
}

/// Returns the users as whom the guard of a mount may run: root, the user of this process, and the user who has
/// mounted.
fn trusted(entry: &MountEntry) -> Vec<u32> {
    let own = rustix::process::geteuid().as_raw();
    [Some(0), Some(own), entry.user].into_iter().flatten().collect()
}

/// Returns whether the guard closes its end of the socket within `timeout`.
fn ends_within(mut guard: &UnixStream, timeout: Duration) -> Result<bool, UmountError> {
    let until = Instant::now() + timeout;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        guard.set_read_timeout(Some(left)).map_err(UmountError::Waiting)?;
        match guard.read(&mut [0]) {
            // The other end is closed. The guard sends nothing before.
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionReset => return Ok(true),
                // The process was stopped and continued, or the timeout has expired.
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                _ => return Err(UmountError::Waiting(error)),
            },
        }
    }
}
