//! Tasks on threads of their own, for calls that block until the server answers. The caller can wait for a
//! task together with other events. Not here: how long the caller waits.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::mount;

/// A task that runs on its own thread. It ends, at the latest, with the connection to the kernel.
pub struct Task<T> {
    /// The other end is closed when the task ends.
    over: UnixStream,
    outcome: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Task<T> {
    /// Starts a task.
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Result<Self, Errno> {
        let of = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        let (over, theirs) = UnixStream::pair().map_err(of)?;
        let (sender, outcome) = mpsc::channel();
        let thread = std::thread::Builder::new().name("fuse-task".into());
        let thread = thread.spawn(move || {
            let _ = sender.send(work());
            drop(theirs);
        });
        thread.map_err(of)?;
        Ok(Self { over, outcome })
    }

    /// Returns the outcome, if the task has ended.
    pub fn outcome(&self) -> Option<T> {
        self.outcome.try_recv().ok()
    }

    /// Waits up to `time` for the task to end, and returns its outcome.
    pub fn outcome_within(&self, time: Duration) -> Option<T> {
        self.outcome.recv_timeout(time).ok()
    }
}

impl<T> AsFd for Task<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.over.as_fd()
    }
}

/// Has the kernel write all data that it holds of the mount on `directory`.
pub fn sync(directory: &Path) -> Result<(), Errno> {
    // Closed when this returns: an open directory keeps the mount in use.
    let root = mount::open_root(directory, OFlags::RDONLY)?;
    rustix::fs::syncfs(&root)
}
