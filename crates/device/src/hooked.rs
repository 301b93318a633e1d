//! A device that passes requests on to another device through the hooks of a test. Not here: the
//! hooks.

use std::fmt::Debug;
use std::ops::Deref;

use base::{DeviceOffset, Result};

use crate::{Bio, BlockDevice, SharedDevice};

/// Hooks for requests to a device. By default, each one passes the request on to `device`.
pub trait DeviceHooks: Send + Sync + Debug {
    /// Submits `batch`.
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        device.submit(batch);
    }

    /// Flushes `device`.
    fn flush(&self, device: &SharedDevice) -> Result<()> {
        device.flush()
    }

    /// Discards a range.
    fn discard(&self, device: &SharedDevice, offset: DeviceOffset, length: u64) -> Result<()> {
        device.discard(offset, length)
    }

    /// Zeroes a range.
    fn write_zeroes(&self, device: &SharedDevice, offset: DeviceOffset, length: u64) -> Result<()> {
        device.write_zeroes(offset, length)
    }
}

/// A device with hooks. Dereferences to the hooks, so that a test can access them.
#[derive(Debug)]
pub struct HookedDevice<H> {
    inner: SharedDevice,
    hooks: H,
}

impl<H> HookedDevice<H> {
    /// Returns `inner` with `hooks`.
    pub fn new(inner: SharedDevice, hooks: H) -> Self {
        Self { inner, hooks }
    }

    /// Returns the device behind the hooks.
    pub fn inner(&self) -> &SharedDevice {
        &self.inner
    }
}

impl<H> Deref for HookedDevice<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.hooks
    }
}

impl<H: DeviceHooks> BlockDevice for HookedDevice<H> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        self.hooks.submit(&self.inner, batch);
    }

    fn flush(&self) -> Result<()> {
        self.hooks.flush(&self.inner)
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.hooks.discard(&self.inner, offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.hooks.write_zeroes(&self.inner, offset, length)
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        self.inner.refresh(offset, length);
    }
}
