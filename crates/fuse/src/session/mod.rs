//! A mount from beginning to end, in two processes.
//!
//! The *server* opens the image and confines itself before it looks at a single byte of it. From then on it
//! can read the image, answer the kernel, and do nothing else: it cannot even mount or unmount. That is left
//! to the *guard*, its parent, which never sees the image. The guard has the kernel claim a block device
//! before anything is read from it. It mounts once the volume is open, and passes the connection to the
//! server. It unmounts at a signal, or when the server has died, so that no dead mount stays behind. Before
//! it unmounts at a signal, it has the kernel write its data of the mount (`sync`), and the server answers
//! these requests before it ends.
//!
//! ```text
//! caller   fork ───────────────────────── wait ─────────────────────────────── exit
//! guard     └─ fork ── claim, wait ───────── mount ─── wait ─── report ── guard ── unmount ── exit
//! server        └─ open image, confine, open volume ──── INIT, serve ───────────────────────── exit
//! ```
//!
//! In the foreground the caller is the guard. The messages between guard and server are in
//! `control`, and the server's questions about other processes in `witness`.

mod confine;
mod control;
mod guard;
mod locate;
mod namespace;
mod peer;
mod process;
mod questions;
mod remount;
mod server;
mod signals;
mod sync;
mod task;
mod umount;
mod witness;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;

use crate::mount::{Claim, MountError, MountOptions};
use crate::operations::InitRefused;
use crate::socket;
use crate::transport::NoRings;
use process::Side;

pub use remount::{Remount, RemountError, remount};
pub use sync::{SyncError, sync};
pub use umount::{UmountError, umount};

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the mount shows as its source: the path of the image.
    pub source: OsString,
    /// Where to mount: an existing directory, without symbolic links.
    pub directory: PathBuf,
    /// The device or image that is claimed while the volume is mounted.
    pub claim: Option<Claim>,
    /// The mount options.
    pub options: MountOptions,
    /// Stay in the foreground.
    pub foreground: bool,
    /// Confine the server.
    pub confine: bool,
    /// The number of threads that serve. Through io_uring there are as many for each processor as
    /// makes this number together, 4 at least if it is not smaller.
    pub threads: NonZeroUsize,
}

/// How a session failed. `E` is the caller's own error, from opening the image.
#[derive(Debug)]
pub enum SessionError<E> {
    /// The image or its volume could not be opened.
    Open(E),
    /// The root directory cannot be read.
    Root(base::Error),
    /// Not everything that was written could be made durable at the end.
    Close(base::Error),
    /// Mounting or unmounting failed.
    Mount(MountError),
    /// The kernel is too old.
    Init(InitRefused),
    /// The server failed when the kernel introduced itself; it has said how.
    NoInit,
    /// Requests were to travel through io_uring by all means.
    IoUring(NoRings),
    /// Another process of this session has failed, with this exit status, and has said why.
    Reported(u8),
    /// Processors were to be kept awake.
    LowLatency(io::Error),
    /// The server was killed by this signal.
    Killed(i32),
    /// A signal came before the mount was ready.
    Interrupted,
    /// The connection was ended by force.
    Aborted,
    /// A thread that served panicked, and took requests with it.
    Panicked,
    /// The host refused something.
    Host(&'static str, Errno),
}

impl<E: fmt::Display> fmt::Display for SessionError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Root(error) => write!(f, "the root directory: {error}"),
            Self::Close(error) => write!(f, "closing the volume: {error}"),
            Self::Mount(error) => error.fmt(f),
            Self::Init(error) => error.fmt(f),
            Self::NoInit => f.write_str("the server failed at the kernel's first request"),
            Self::IoUring(error) => write!(f, "mount option `io_uring=on`: {error}"),
            Self::LowLatency(error) => write!(f, "mount option `low_latency`: {error}"),
            Self::Reported(status) => write!(f, "the server ended with status {status}"),
            Self::Killed(signal) => write!(f, "the server was killed by signal {signal}"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Aborted => f.write_str("the connection to the kernel was aborted"),
            Self::Panicked => f.write_str("a thread that serves has panicked"),
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

/// Mounts and serves. In the foreground this returns when the mount has gone; in the background,
/// as soon as the mount can be used, or has failed.
///
/// `prepare` opens the image by its name; `open`, confined and with an empty root directory, makes a volume of it. It
/// **forks**: no other thread may be running, and each of the processes returns from here, so that the caller
/// should do nothing afterwards but report the error, if any, and exit.
pub fn run<P, E>(
    plan: &Plan,
    prepare: impl FnOnce() -> Result<P, E>,
    open: impl FnOnce(P) -> Result<Arc<vfs::Volume>, E>,
) -> Result<(), SessionError<E>> {
    if plan.foreground {
        return guard_and_serve(plan, None, prepare, open);
    }
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| SessionError::Host("make a pipe", errno))?;
    match process::fork().map_err(|errno| SessionError::Host("fork", errno))? {
        Side::Child => {
            drop(reader);
            guard_and_serve(plan, Some(writer), prepare, open)
        }
        Side::Parent(guard) => {
            drop(writer);
            let ready = retry(|| rustix::io::read(&reader, &mut [0]));
            if ready == Ok(1) { Ok(()) } else { Err(guard.failure()) }
        }
    }
}

/// A process's ends of the sockets between guard and server. Each keeps messages apart.
struct Sockets {
    /// For `control`.
    control: OwnedFd,
    /// For the server's questions to `locate`.
    locate: OwnedFd,
    /// For the server's questions to `witness`.
    witness: OwnedFd,
}

impl Sockets {
    /// Makes the guard's ends and the server's.
    fn pair() -> Result<(Self, Self), Errno> {
        let (control, locate, witness) = (socket::pair()?, socket::pair()?, socket::pair()?);
        let guard = Self { control: control.0, locate: locate.0, witness: witness.0 };
        Ok((guard, Self { control: control.1, locate: locate.1, witness: witness.1 }))
    }
}

fn guard_and_serve<P, E>(
    plan: &Plan,
    ready: Option<OwnedFd>,
    prepare: impl FnOnce() -> Result<P, E>,
    open: impl FnOnce(P) -> Result<Arc<vfs::Volume>, E>,
) -> Result<(), SessionError<E>> {
    let (ours, theirs) =
        Sockets::pair().map_err(|errno| SessionError::Host("make a socket", errno))?;
    match process::fork().map_err(|errno| SessionError::Host("fork", errno))? {
        Side::Child => {
            drop((ours, ready));
            server::run(plan, theirs, prepare, open)
        }
        Side::Parent(server) => {
            drop(theirs);
            guard::run(plan, ours, server, ready)
        }
    }
}

/// Repeats what a signal cuts short.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
