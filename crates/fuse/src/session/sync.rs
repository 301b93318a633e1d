//! Has the kernel write all that it has of a mount, from a thread of its own: that can take as long as the
//! server takes. Not here: how long somebody waits for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A syncfs(2) on its way. It ends, at the latest, with the connection to the kernel.
pub struct Syncing {
    /// Closed at the other end when it is over.
    over: UnixStream,
    outcome: mpsc::Receiver<Result<(), Errno>>,
}

impl Syncing {
    /// Begins with what is mounted on `directory`.
    pub fn start(directory: &Path) -> Result<Self, Errno> {
        let of = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        let (over, theirs) = UnixStream::pair().map_err(of)?;
        let (sender, outcome) = mpsc::channel();
        let directory = PathBuf::from(directory);
        let thread = std::thread::Builder::new().name("fuse-sync".into());
        let thread = thread.spawn(move || {
            let _ = sender.send(sync(&directory));
            drop(theirs);
        });
        thread.map_err(of)?;
        Ok(Self { over, outcome })
    }

    /// How it ended, once it has.
    pub fn outcome(&self) -> Option<Result<(), Errno>> {
        self.outcome.try_recv().ok()
    }
}

impl AsFd for Syncing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.over.as_fd()
    }
}

fn sync(directory: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Closed at once: it keeps the mount in use.
    let root = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::fs::syncfs(&root)
}
