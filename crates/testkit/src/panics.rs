//! A device whose use by one thread panics, once: for what follows from a panic in the background.

use std::sync::atomic::{AtomicBool, Ordering};

use base::{DeviceOffset, Result};
use device::{Bio, BlockDevice, SharedDevice};

/// `inner`, until a thread of a certain name submits something after [`arm`](Self::arm).
#[derive(Debug)]
pub struct PanicDevice {
    inner: SharedDevice,
    thread: &'static str,
    is_armed: AtomicBool,
}

impl PanicDevice {
    /// `inner`, whose use by the thread of this name will panic.
    pub fn new(inner: SharedDevice, thread: &'static str) -> Self {
        Self { inner, thread, is_armed: AtomicBool::new(false) }
    }

    /// The next use panics, and no other one after it.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Whether the panic has come.
    pub fn has_panicked(&self) -> bool {
        !self.is_armed.load(Ordering::SeqCst)
    }
}

impl BlockDevice for PanicDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        let is_it = std::thread::current().name() == Some(self.thread);
        if is_it && self.is_armed.swap(false, Ordering::SeqCst) {
            panic!("as the test has it");
        }
        self.inner.submit(batch);
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.write_zeroes(offset, length)
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        self.inner.refresh(offset, length);
    }
}
