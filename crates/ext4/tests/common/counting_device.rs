//! A device that counts the requests that are submitted to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{Bio, MemoryDevice, SharedDevice};
use testkit::{DeviceHooks, HookedDevice};

pub type CountingDevice = HookedDevice<Counter>;

#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns a counting device that holds `image`.
    pub fn before(image: Vec<u8>) -> Arc<CountingDevice> {
        Arc::new(HookedDevice::new(Arc::new(MemoryDevice::new(image)), Self::default()))
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl DeviceHooks for Counter {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        self.0.fetch_add(batch.len() as u64, Ordering::Relaxed);
        device.submit(batch);
    }
}
