//! Mounts that begin read-only and become writable: the guard opens the image for writing, and
//! passes it to the server. Not here: the change of the server's volume (`crate::upgrade`).
//!
//! A server has the image open for reading only, and opens no files. It cannot decide by itself to
//! write: the guard passes files only while a program of root waits in the ioctl that requests
//! this, on an open file of the mount. If the server cannot open the volume, it tells the guard,
//! which makes the locks of the image those of a reader again.

use std::any::Any;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::status::effective_user;
use super::{questions, system_call};
use crate::operations::BECOME_WRITABLE;
use crate::retry::retry;
use crate::socket;
use crate::upgrade::OpenVolume;

/// The time within which the guard has to open the image.
const OPEN_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// The maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 2 << 10;
/// The beginning of the guard's answer that it cannot open the image. The reason follows.
const REFUSED: u8 = b'r';
/// The guard's message with an open file.
const FILE: u8 = b'f';
/// The guard's message after the last file, and its answer to [`GIVEN_UP`].
const END: u8 = b'e';
/// The server's message that it has closed the files, and does not use them. No thread that the
/// guard sees has this id.
const GIVEN_UP: u32 = 0;

/// Keeps files open for writing: their locks. Gives them up when dropped, so that others may use
/// them as before.
pub type Hold = Box<dyn Any + Send>;

/// Why a guard that does not [see threads](questions::sees_threads) opens nothing.
const UNSEEN: &str = "its guard does not see which program requests this, since /proc is not mounted, or is of another PID \
                      namespace (as after `unshare --pid` without `--mount-proc`): unmount it, and mount it for writing";

/// Opens the image for writing, in the guard, and its external journal if there is one.
type OpenFiles = Box<dyn FnMut() -> Result<(Vec<OwnedFd>, Hold), String> + Send>;

/// How a mount that begins read-only becomes writable.
#[derive(Clone)]
pub struct Upgrade(Way);

#[derive(Clone)]
enum Way {
    /// It cannot, for this reason.
    No(&'static str),
    Yes(Arc<Steps>),
}

/// What each of the processes does. The files that they use are closed by dropping the steps.
struct Steps {
    files: Mutex<Option<OpenFiles>>,
    volume: Mutex<Option<OpenVolume>>,
    /// What keeps the files that the guard has passed to the server.
    hold: Mutex<Option<Hold>>,
    /// Whether the guard has passed files to the server, which has not given them up.
    is_writable: AtomicBool,
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Way::No(reason) => f.debug_tuple("No").field(reason).finish(),
            Way::Yes(_) => f.write_str("Yes"),
        }
    }
}

impl Upgrade {
    /// Returns that the mount stays read-only, for `reason`.
    pub fn never(reason: &'static str) -> Self {
        Self(Way::No(reason))
    }

    /// Returns that the guard opens `files`, with what keeps them, and the server the `volume` on
    /// them. Both may fail with a reason for users.
    pub fn by(
        files: impl FnMut() -> Result<(Vec<OwnedFd>, Hold), String> + Send + 'static,
        volume: impl Fn(Vec<OwnedFd>) -> Result<Arc<vfs::Volume>, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Way::Yes(Arc::new(Steps {
            files: Mutex::new(Some(Box::new(files))),
            volume: Mutex::new(Some(Box::new(volume))),
            hold: Mutex::new(None),
            is_writable: AtomicBool::new(false),
        })))
    }

    /// Returns whether the mount may become writable.
    pub(super) fn is_possible(&self) -> bool {
        matches!(self.0, Way::Yes(_))
    }

    /// Returns whether the guard has passed files to the server, which has not given them up.
    pub(super) fn is_done(&self) -> bool {
        matches!(&self.0, Way::Yes(steps) if steps.is_writable.load(Ordering::Acquire))
    }

    /// Closes what a process needs for the steps that are not taken, or not any more.
    pub(super) fn release(&self) {
        if let Way::Yes(steps) = &self.0 {
            drop((steps.files.lock().take(), steps.volume.lock().take()));
            drop(steps.hold.lock().take());
        }
    }

    /// Returns what opens the volume, for the server, which keeps nothing else.
    pub(super) fn take_volume(&self) -> Option<OpenVolume> {
        let Way::Yes(steps) = &self.0 else { return None };
        let volume = steps.volume.lock().take();
        self.release();
        volume
    }

    /// Opens the files, in the guard.
    fn open_files(&self) -> Result<Vec<OwnedFd>, String> {
        let steps = match &self.0 {
            Way::No(reason) => return Err((*reason).to_owned()),
            Way::Yes(steps) => steps,
        };
        let mut files = steps.files.lock();
        if self.is_done() {
            return Err("its server has it open for writing already".to_owned());
        }
        let (opened, hold) = files.as_mut().ok_or("the mount ends")?()?;
        *steps.hold.lock() = Some(hold);
        steps.is_writable.store(true, Ordering::Release);
        Ok(opened)
    }

    /// Gives up the files that the server has got, but does not use.
    fn give_up(&self) {
        if let Way::Yes(steps) = &self.0 {
            drop(steps.hold.lock().take());
            steps.is_writable.store(false, Ordering::Release);
        }
    }
}

/// The server's side: its end of the socket, as long as the guard answers in time.
pub(super) struct Asker(Mutex<Option<OwnedFd>>);

impl Asker {
    /// Creates the server's side, which asks through `socket`.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(Some(socket)))
    }

    /// Returns the files that the guard has opened for the request of a thread of the host.
    pub(super) fn files_for(&self, thread: u32) -> Result<Vec<OwnedFd>, String> {
        // The kernel has no other id for threads of PID namespaces beside or above the server's.
        if thread == GIVEN_UP {
            return Err(UNSEEN.to_owned());
        }
        let mut socket = self.0.lock();
        let answer = socket.as_ref().ok_or(Errno::PIPE).and_then(|socket| ask(socket, thread));
        answer.unwrap_or_else(|errno| {
            // A late answer would be taken for that to another request.
            *socket = None;
            Err(format!("its guard does not answer: {errno}"))
        })
    }

    /// Tells the guard that the files which it has opened were closed, and waits until it has given
    /// them up.
    pub(super) fn give_up(&self) {
        let mut socket = self.0.lock();
        if let Some(guard) = &*socket
            && let Err(errno) = ask(guard, GIVEN_UP)
        {
            tracing::warn!("the image stays locked: its guard does not answer: {errno}");
            *socket = None;
        }
    }
}

/// Asks the guard, and receives its answer.
fn ask(socket: &OwnedFd, thread: u32) -> Result<Result<Vec<OwnedFd>, String>, Errno> {
    socket::send(socket, &thread.to_ne_bytes(), None)?;
    let mut files = Vec::new();
    let mut answer = [0; ANSWER_BYTES_MAX];
    loop {
        let mut ready = [PollFd::new(socket, PollFlags::IN)];
        if retry(|| rustix::event::poll(&mut ready, Some(&OPEN_TIMEOUT)))? == 0 {
            return Err(Errno::TIMEDOUT);
        }
        let (length, file) = socket::receive(socket, &mut answer)?;
        match (&answer[..length], file) {
            ([FILE], Some(file)) => files.push(file),
            ([END], None) => return Ok(Ok(files)),
            ([REFUSED, reason @ ..], None) => {
                return Ok(Err(String::from_utf8_lossy(reason).into_owned()));
            }
            _ => return Err(Errno::PIPE),
        }
    }
}

/// Starts a thread of the guard that answers until the other end of `socket` is closed. `device` is
/// the number of the mount's device, once there is a mount.
pub(super) fn start(socket: OwnedFd, upgrade: &Upgrade, device: Arc<OnceLock<String>>) {
    let upgrade = upgrade.clone();
    let thread = std::thread::Builder::new().name("fuse-upgrade".to_owned());
    if let Err(error) = thread.spawn(move || serve(&socket, &upgrade, &device)) {
        tracing::debug!("cannot start the thread that opens the image for writing: {error}");
    }
}

fn serve(socket: &OwnedFd, upgrade: &Upgrade, device: &OnceLock<String>) {
    let sees_threads = questions::sees_threads();
    while let Some(thread) = questions::next(socket) {
        if thread == GIVEN_UP {
            upgrade.give_up();
            if answer(socket, Ok(Vec::new())).is_err() {
                return;
            }
            continue;
        }
        let is_requested = || device.get().is_some_and(|device| is_requested_by(thread, device));
        let opened = if !sees_threads {
            Err(UNSEEN.to_owned())
        } else if is_requested() {
            upgrade.open_files()
        } else {
            Err("its guard sees no program of root that requests this".to_owned())
        };
        if answer(socket, opened).is_err() {
            // A server that waits no longer has closed its end.
            upgrade.give_up();
            return;
        }
    }
}

/// Sends the files, or the reason why there are none.
fn answer(socket: &OwnedFd, opened: Result<Vec<OwnedFd>, String>) -> Result<(), Errno> {
    match opened {
        Ok(files) => {
            files.iter().try_for_each(|file| socket::send(socket, &[FILE], Some(file.as_fd())))?;
            socket::send(socket, &[END], None)
        }
        Err(reason) => {
            let reason = &reason.as_bytes()[..reason.len().min(ANSWER_BYTES_MAX - 1)];
            socket::send(socket, &[&[REFUSED], reason].concat(), None)
        }
    }
}

/// Returns whether a thread of root waits in the ioctl that requests a writable volume, on an open
/// file of the mount with this device. The server, which may have been taken over, names the
/// thread.
fn is_requested_by(thread: u32, device: &str) -> bool {
    let Some(call) = system_call::of(thread) else { return false };
    let (number, arguments) = call;
    let [file, command, ..] = arguments[..] else { return false };
    number == libc::SYS_ioctl
        && command & 0xFFFF_FFFF == u64::from(BECOME_WRITABLE)
        && effective_user(thread) == Some(0)
        && device_of(thread, file & 0xFFFF_FFFF).as_deref() == Some(device)
}

/// Returns the device number of the mount that an open file of a thread is on, without a request to
/// the mount.
fn device_of(thread: u32, file: u64) -> Option<String> {
    let opened = fs::read_to_string(format!("/proc/{thread}/fdinfo/{file}")).ok()?;
    let id = opened.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().to_owned();
    // Not read as a string, since a mount point may not be valid UTF-8.
    let table = fs::read(format!("/proc/{thread}/mountinfo")).ok()?;
    let mut lines = table.split(|&byte| byte == b'\n').map(|line| line.split(|&byte| byte == b' '));
    let device = lines.find_map(|mut fields| {
        (fields.next() == Some(id.as_bytes())).then(|| fields.nth(1)).flatten()
    })?;
    Some(String::from_utf8_lossy(device).into_owned())
}

#[cfg(test)]
mod tests {
    use rustix::net::RecvFlags;

    use super::*;

    #[test]
    fn the_guard_opens_nothing_unless_root_requests_it() {
        let (ours, theirs) = socket::pair().unwrap();
        let unused = |_| Err("opened".to_owned());
        let upgrade = Upgrade::by(|| Err("opened".to_owned()), unused);
        let device = OnceLock::new();
        device.set("0:1".to_owned()).unwrap();
        start(theirs, &upgrade, Arc::new(device));
        let guard = Asker::new(ours);
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for thread in [own, 1, u32::MAX] {
            let refused = guard.files_for(thread).unwrap_err();
            assert!(refused.contains("no program of root"), "{refused}");
        }
        let refused = guard.files_for(GIVEN_UP).unwrap_err();
        assert!(refused.contains("does not see"), "{refused}");
        assert!(!upgrade.is_done());
    }

    #[test]
    fn what_a_server_gives_up_is_not_kept() {
        struct Kept(Arc<AtomicBool>);
        impl Drop for Kept {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let (ours, theirs) = socket::pair().unwrap();
        let is_dropped = Arc::new(AtomicBool::new(false));
        let dropped = Arc::clone(&is_dropped);
        let files = move || Ok((Vec::new(), Box::new(Kept(Arc::clone(&dropped))) as Hold));
        let upgrade = Upgrade::by(files, |_| Err("not called".to_owned()));
        start(theirs, &upgrade, Arc::default());
        let guard = Asker::new(ours);
        for _ in 0..2 {
            upgrade.open_files().unwrap();
            assert!(upgrade.open_files().is_err(), "twice");
            assert!(upgrade.is_done() && !is_dropped.swap(false, Ordering::AcqRel));
            guard.give_up();
            assert!(!upgrade.is_done() && is_dropped.swap(false, Ordering::AcqRel));
        }
        // The answers belong to their requests.
        assert!(guard.files_for(1).unwrap_err().contains("no program of root"));
    }

    #[test]
    fn files_and_reasons_are_received() {
        let (ours, theirs) = socket::pair().unwrap();
        let file = || OwnedFd::from(fs::File::open("/dev/null").unwrap());
        let thread = std::thread::spawn(move || {
            let opened = [Ok(vec![file(), file()]), Err("a reason".to_owned()), Ok(Vec::new())];
            for opened in opened {
                rustix::net::recv(&theirs, &mut [0; 4], RecvFlags::empty()).unwrap();
                answer(&theirs, opened).unwrap();
            }
            rustix::net::recv(&theirs, &mut [0; 4], RecvFlags::empty()).unwrap();
            socket::send(&theirs, &[FILE], None).unwrap();
        });
        let guard = Asker::new(ours);
        assert_eq!(guard.files_for(7).unwrap().len(), 2);
        assert_eq!(guard.files_for(7).unwrap_err(), "a reason");
        assert!(guard.files_for(7).unwrap().is_empty());
        assert!(guard.files_for(7).unwrap_err().contains("does not answer"));
        thread.join().unwrap();
        assert!(guard.0.lock().is_none());
    }
}
