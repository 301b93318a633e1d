//! Threads that end before their owner is dropped.

use std::io;
use std::thread::{self, JoinHandle, ThreadId};

/// A thread. Dropping this waits for its end, except on the thread itself: the last reference to a
/// device may be dropped in the completion function of a bio, which runs on the device's own
/// thread. The owner must make the thread end before it drops this, also if creating the owner
/// fails.
#[derive(Debug)]
pub struct Worker(Option<JoinHandle<()>>);

impl Worker {
    /// Starts a thread that does `work`. Fails if the host refuses a thread.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        thread::Builder::new().name(name.into()).spawn(work).map(|thread| Self(Some(thread)))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(thread) =
            self.0.take().filter(|one| one.thread().id() != thread::current().id())
        {
            // An error is a panic of the thread, which the panic hook has reported.
            let _ = thread.join();
        }
    }
}

/// The threads that work on what they took from a queue, for those who wait until all of it is done
/// and dropped. Kept with the queue, behind its lock.
#[derive(Debug, Default)]
pub struct WorkingThreads(Vec<ThreadId>);

impl WorkingThreads {
    /// Records that this thread has taken work.
    pub fn begin(&mut self) {
        self.0.push(thread::current().id());
    }

    /// Records that this thread has dropped what it took.
    pub fn end(&mut self) {
        let this = thread::current().id();
        // Work may begin within other work.
        if let Some(last) = self.0.iter().rposition(|id| *id == this) {
            self.0.swap_remove(last);
        }
    }

    /// Returns whether another thread works.
    pub fn has_others(&self) -> bool {
        let this = thread::current().id();
        self.0.iter().any(|id| *id != this)
    }
}
