//! Tasks on separate threads, for calls that block until the server answers. The caller can wait
//! for a task together with other events, and with a timeout.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::mount;

/// A task on a separate thread. It ends with the server's connection to the kernel at the latest.
pub struct Task<T> {
    /// A socket whose other end is closed when the task ends.
    ended: UnixStream,
    outcome: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Task<T> {
    /// Starts a task.
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Result<Self, Errno> {
        let of = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        let (ended, theirs) = UnixStream::pair().map_err(of)?;
        let (sender, outcome) = mpsc::channel();
        let thread = std::thread::Builder::new().name("fuse-task".into());
        let thread = thread.spawn(move || {
            let _ = sender.send(work());
            drop(theirs);
        });
        thread.map_err(of)?;
        Ok(Self { ended, outcome })
    }

    /// Returns the outcome, if the task has ended.
    pub fn outcome(&self) -> Option<T> {
        self.outcome.try_recv().ok()
    }

    /// Waits up to `timeout` for the end of the task, and returns its outcome.
    pub fn outcome_within(&self, timeout: Duration) -> Option<T> {
        self.outcome.recv_timeout(timeout).ok()
    }
}

impl<T> AsFd for Task<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}

/// Makes the kernel send all data that it holds of the mount on `directory` to the server.
pub fn sync(directory: &Path) -> Result<(), Errno> {
    // An open directory keeps the mount in use, so it is closed when this function returns.
    let root = mount::open_root(directory, OFlags::RDONLY)?;
    rustix::fs::syncfs(&root)
}
