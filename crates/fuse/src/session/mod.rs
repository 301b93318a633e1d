//! Sessions: the life of a mount, in two processes.
//!
//! The *server* opens the image and confines itself before it reads any byte of it. From then on,
//! it can only access the image and answer the kernel. It cannot mount or unmount. Its parent, the
//! *guard*, does this, and never accesses the image. The guard makes the kernel claim a block
//! device before the server reads from it. It mounts once the volume is open, and passes the
//! connection to the server. It unmounts after a signal. Before that, it makes the kernel write its
//! data of the mount (`sync`), and the server answers these requests before it ends. If the server
//! dies, the mount stays: programs that still use it get errors, and do not write to the directory
//! below (`dead`).
//!
//! ```text
//! caller   fork ───────────────────────── wait ─────────────────────────────── exit
//! guard     └─ fork ── claim, wait ───────── mount ─── wait ─── report ── guard ── unmount ── exit
//! server        └─ open image, confine, open volume ──── INIT, serve ───────────────────────── exit
//! ```
//!
//! In the foreground, the caller is the guard. `control` has the messages between guard and server,
//! `questions` the server's questions about other processes.

mod ask;
mod control;
mod dead;
mod guard;
mod kill_check;
mod locate;
mod mark;
mod messages;
mod namespace;
mod process;
mod questions;
mod remount;
mod server;
mod signals;
mod status;
mod sync;
mod system_call;
mod system_log;
mod task;
mod umount;
mod upgrade;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use crate::child::{self, ChildError, Side};
use crate::mount::{Claim, MountError, MountOptions, Preference};
use crate::operations::InitRefused;
use crate::retry::retry;
use crate::socket;
use crate::transport::{NoRings, open_device};

pub use ask::ask;
pub use confine::{ConfineError, Confinement, Inherited, Layer};
pub use dead::{is_dead_device, remove_dead};
pub use remount::{Remount, RemountError, remount};
pub use signals::{END_SIGNALS, ignore_other_signals};
pub use sync::{SyncError, sync};
pub use system_log::{Severity, SystemLog};
pub use umount::{UmountError, UmountNotice, umount, umount_lazily};
pub use upgrade::{Hold, Upgrade};

/// The description of a session.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The source that the mount table shows: the path of the image.
    pub source: OsString,
    /// The mount point: an existing directory, as a path without symbolic links.
    pub directory: PathBuf,
    /// The device or image that is claimed while the volume is mounted.
    pub claim: Option<Claim>,
    /// The mount options.
    pub options: MountOptions,
    /// How the mount becomes writable later if it begins read-only.
    pub upgrade: Upgrade,
    /// Whether the caller stays in the foreground and is the guard.
    pub foreground: bool,
    /// The system log, which gets the messages of guard and server from the time on at which they
    /// are in the background.
    pub system_log: Arc<SystemLog>,
    /// The layers by which the server confines itself.
    pub confinement: Confinement,
    /// The maximum of memory that a confined server may map, in addition to that of its program, in
    /// bytes.
    pub memory_max: u64,
    /// The files that the calling program has inherited, which guard and server close.
    pub inherited: Inherited,
    /// The number of worker threads. With io_uring, they are distributed evenly over the
    /// processors: each gets at least 4 (or this number, if it is smaller), so the total may be
    /// larger.
    pub threads: NonZeroUsize,
}

/// An error of a session. `E` is the caller's error type for opening the image.
#[derive(Debug)]
pub enum SessionError<E> {
    /// The image or its volume could not be opened.
    Open(E),
    /// The root directory cannot be read.
    Root(base::Error),
    /// Not all written data could be made durable at the end.
    Close(base::Error, vfs::LostFiles),
    /// The rest could, but data of these files could not be written earlier.
    Lost(vfs::LostFiles),
    /// Mounting or unmounting failed.
    Mount(MountError),
    /// The kernel's protocol is too old.
    Init(InitRefused),
    /// The server failed to answer INIT, and has reported the error.
    NoInit,
    /// The options require io_uring, which is not available.
    IoUring(NoRings),
    /// Another process of this session has failed with this exit status, and has reported the
    /// error.
    Reported(u8),
    /// The options require processors to be kept awake, which is not possible.
    LowLatency(io::Error),
    /// The server was killed by this signal.
    Killed(i32),
    /// A signal came before the mount was ready.
    Interrupted,
    /// The connection was aborted.
    Aborted,
    /// A worker thread panicked, and its request was lost.
    Panicked,
    /// The server or the guard could not be confined.
    Confine(ConfineError),
    /// The host refused an action.
    Host(&'static str, Errno),
}

impl<E: fmt::Display> fmt::Display for SessionError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Root(error) => write!(f, "the root directory: {error}"),
            Self::Close(error, lost) => write!(f, "closing the volume: {error}{lost}"),
            Self::Lost(lost) => write!(f, "some data could not be written earlier{lost}"),
            Self::Mount(error) => error.fmt(f),
            Self::Init(error) => error.fmt(f),
            Self::NoInit => f.write_str("the server failed at the kernel's first request"),
            Self::IoUring(error) => write!(f, "mount option `io_uring=on`: {error}"),
            Self::LowLatency(error) => write!(f, "mount option `low_latency`: {error}"),
            Self::Reported(status) => write!(f, "the server ended with status {status}"),
            Self::Killed(signal) => write!(f, "the server was killed by signal {signal}"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Aborted => f.write_str("the connection to the kernel was aborted"),
            Self::Panicked => f.write_str("a worker thread has panicked"),
            Self::Confine(error) => {
                write!(f, "{error}; mount(8) and fstab take the option no_confine=LAYER")
            }
            Self::Host(action, errno) => {
                write!(f, "cannot {action}: {}", io::Error::from(*errno))
            }
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for SessionError<E> {}

impl<E> From<MountError> for SessionError<E> {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

impl<E> From<ChildError> for SessionError<E> {
    fn from(error: ChildError) -> Self {
        match error {
            ChildError::Status(status) => Self::Reported(status),
            ChildError::Killed(signal) => Self::Killed(signal),
            ChildError::Wait(errno) => Self::Host("wait for a child", errno),
        }
    }
}

/// Returns the error of a process that should not have ended.
fn failure_of<E>(ended: Result<(), SessionError<E>>) -> SessionError<E> {
    ended.err().unwrap_or(SessionError::Reported(1))
}

/// Mounts and serves. In the foreground, returns when the mount has ended. In the background,
/// returns as soon as the mount can be used, or has failed.
///
/// `prepare` opens the image by its path. Only the server calls it; the guard drops it when the
/// mount has ended, so that it can own what has to last until then. `open` opens the volume in it;
/// it runs confined, with an empty root directory.
///
/// This function **forks**: no other thread may be running. Each of the processes returns from it,
/// so the caller should only report the error, if any, and exit.
pub fn run<P, E: fmt::Display>(
    plan: &Plan,
    prepare: impl FnOnce() -> Result<P, E>,
    open: impl FnOnce(P) -> Result<Arc<vfs::Volume>, E>,
) -> Result<(), SessionError<E>> {
    if plan.foreground {
        return guard_and_serve(plan, None, prepare, open);
    }
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| SessionError::Host("create a pipe", errno))?;
    match child::fork().map_err(|errno| SessionError::Host("fork", errno))? {
        Side::Child => {
            drop(reader);
            guard_and_serve(plan, Some(writer), prepare, open)
        }
        Side::Parent(guard) => {
            // What it owns is the guard's now, such as a lock that would end.
            std::mem::forget((prepare, plan.upgrade.clone()));
            drop(writer);
            let ready = retry(|| rustix::io::read(&reader, &mut [0]));
            if ready == Ok(1) {
                Ok(())
            } else {
                Err(failure_of(guard.wait().map_err(SessionError::from)))
            }
        }
    }
}

/// One process's ends of the sockets between guard and server. They preserve message boundaries.
struct Sockets {
    /// The socket for `control`.
    control: OwnedFd,
    /// The socket for the server's questions to `locate`.
    locate: OwnedFd,
    /// The socket for the server's questions to `kill_check`.
    kill_check: OwnedFd,
    /// The socket for the server's questions to `system_call`.
    system_call: OwnedFd,
    /// The socket for `upgrade`.
    upgrade: OwnedFd,
    /// The device of the server's rings, which the guard connects. `None` if there are to be none.
    ring_device: Option<OwnedFd>,
    /// The pipe for what the server prints in the background.
    messages: OwnedFd,
}

impl Sockets {
    /// Creates the sockets. Returns the guard's ends and the server's ends.
    fn pair(io_uring: Preference) -> Result<(Self, Self), Errno> {
        let control = socket::pair()?;
        let locate = socket::pair()?;
        let kill_check = socket::pair()?;
        let system_call = socket::pair()?;
        let upgrade = socket::pair()?;
        let messages = messages::pipe()?;
        // Without /dev/fuse, mounting reports the error.
        let device = (io_uring != Preference::Off).then(|| open_device().ok()).flatten();
        let theirs = device.as_ref().map(|device| rustix::io::fcntl_dupfd_cloexec(device, 3));
        let guard = Self {
            control: control.0,
            locate: locate.0,
            kill_check: kill_check.0,
            system_call: system_call.0,
            upgrade: upgrade.0,
            ring_device: device,
            messages: messages.0,
        };
        let server = Self {
            control: control.1,
            locate: locate.1,
            kill_check: kill_check.1,
            system_call: system_call.1,
            upgrade: upgrade.1,
            ring_device: theirs.transpose()?,
            messages: messages.1,
        };
        Ok((guard, server))
    }
}

/// Forks into guard and server. The guard writes to `ready` when the mount can be used.
fn guard_and_serve<P, E: fmt::Display>(
    plan: &Plan,
    ready: Option<OwnedFd>,
    prepare: impl FnOnce() -> Result<P, E>,
    open: impl FnOnce(P) -> Result<Arc<vfs::Volume>, E>,
) -> Result<(), SessionError<E>> {
    let (ours, theirs) = Sockets::pair(plan.options.io_uring)
        .map_err(|errno| SessionError::Host("create a socket", errno))?;
    match child::fork().map_err(|errno| SessionError::Host("fork", errno))? {
        Side::Child => {
            drop((ours, ready));
            server::run(plan, theirs, prepare, open)
        }
        Side::Parent(server) => {
            drop(theirs);
            guard::run(plan, ours, server, ready, prepare)
        }
    }
}
