//! Threads that work for somebody until that is dropped.

use std::io;
use std::thread::{self, JoinHandle};

/// A thread that is waited for when this is dropped, except by itself: the last user of a device
/// may go away in the end of one of its bios, which runs on the device's own thread. Its owner has told
/// it to end by then, also where it is dropped before it has an owner.
#[derive(Debug)]
pub struct Worker(Option<JoinHandle<()>>);

impl Worker {
    /// Starts `work`. Fails where the host refuses a thread.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        thread::Builder::new().name(name.into()).spawn(work).map(|thread| Self(Some(thread)))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(thread) =
            self.0.take().filter(|one| one.thread().id() != thread::current().id())
        {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}
