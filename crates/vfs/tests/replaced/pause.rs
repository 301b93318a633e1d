//! A device that delays a write, so that other operations run in between.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use base::{DeviceOffset, Result};
use device::{Bio, BioOperation, BlockDevice, SharedDevice};
use parking_lot::Mutex;

/// How long what comes in between is waited for. It may be that it waits for the write.
const PATIENCE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct PauseDevice {
    inner: SharedDevice,
    armed: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl PauseDevice {
    pub fn new(inner: SharedDevice) -> Arc<Self> {
        Arc::new(Self { inner, armed: Mutex::new(None) })
    }

    /// Has the next write tell `reached` that it is there, and wait for `done`, or a while.
    pub fn arm(&self, reached: Sender<()>, done: Receiver<()>) {
        *self.armed.lock() = Some((reached, done));
    }

    pub fn disarm(&self) {
        *self.armed.lock() = None;
    }
}

impl BlockDevice for PauseDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        if batch.iter().any(|bio| bio.operation() == BioOperation::Write) {
            let armed = self.armed.lock().take();
            if let Some((reached, done)) = armed {
                let _ = reached.send(());
                let _ = done.recv_timeout(PATIENCE);
            }
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
}
