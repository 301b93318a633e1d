//! A device that panics once, when one thread uses it: for tests of panics in the background.

use std::sync::atomic::{AtomicBool, Ordering};

use device::{Bio, DeviceHooks, HookedDevice, SharedDevice};

/// A device that panics when a thread of a certain name submits to it after [`arm`](PanicOnce::arm).
pub type PanicDevice = HookedDevice<PanicOnce>;

/// The hooks of a [`PanicDevice`].
#[derive(Debug)]
pub struct PanicOnce {
    thread: &'static str,
    is_armed: AtomicBool,
}

impl PanicOnce {
    /// Panics in the thread with this name.
    pub fn new(thread: &'static str) -> Self {
        Self { thread, is_armed: AtomicBool::new(false) }
    }

    /// Makes the thread's next submission panic, and none after it.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Returns whether the panic has come.
    pub fn has_panicked(&self) -> bool {
        !self.is_armed.load(Ordering::SeqCst)
    }
}

impl DeviceHooks for PanicOnce {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let is_it = std::thread::current().name() == Some(self.thread);
        if is_it && self.is_armed.swap(false, Ordering::SeqCst) {
            panic!("as the test has it");
        }
        device.submit(batch);
    }
}
