//! A device that panics once when a given thread uses it, for tests of panics in background
//! threads.

use std::sync::atomic::{AtomicBool, Ordering};

use device::{Bio, DeviceHooks, HookedDevice, SharedDevice};

/// A device that panics when a thread with a given name submits to it after
/// [`arm`](PanicOnce::arm).
pub type PanicDevice = HookedDevice<PanicOnce>;

/// The hooks of a [`PanicDevice`].
#[derive(Debug)]
pub struct PanicOnce {
    thread: &'static str,
    is_armed: AtomicBool,
}

impl PanicOnce {
    /// Creates hooks that panic in the thread with this name.
    pub fn new(thread: &'static str) -> Self {
        Self { thread, is_armed: AtomicBool::new(false) }
    }

    /// Makes the thread's next submission panic, and none after it.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Returns whether the thread has panicked.
    pub fn has_panicked(&self) -> bool {
        !self.is_armed.load(Ordering::SeqCst)
    }
}

impl DeviceHooks for PanicOnce {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let is_thread = std::thread::current().name() == Some(self.thread);
        if is_thread && self.is_armed.swap(false, Ordering::SeqCst) {
            panic!("a planted panic");
        }
        device.submit(batch);
    }
}
