//! A count of the bytes and writes that reach a device, in the main area of an f2fs volume and
//! elsewhere.

use std::sync::atomic::{AtomicU64, Ordering};

use device::{Bio, BioOperation, DeviceHooks, SharedDevice};

/// Counts the writes to a device.
#[derive(Debug)]
pub struct Counting {
    /// The first byte of the main area.
    main: u64,
    main_bytes: AtomicU64,
    main_writes: AtomicU64,
    other_bytes: AtomicU64,
}

/// What was written at some time.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Bytes of the main area: data, nodes and directories.
    pub main_bytes: u64,
    /// Runs of adjacent blocks in the main area.
    pub main_writes: u64,
    /// Bytes of checkpoints and tables.
    pub other_bytes: u64,
}

impl Counting {
    /// Counts writes to a volume whose main area begins at the byte `main`.
    pub fn new(main: u64) -> Self {
        let (main_bytes, main_writes, other_bytes) = Default::default();
        Self { main, main_bytes, main_writes, other_bytes }
    }

    /// Returns the counts since the beginning.
    pub fn count(&self) -> Count {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Count {
            main_bytes: read(&self.main_bytes),
            main_writes: read(&self.main_writes),
            other_bytes: read(&self.other_bytes),
        }
    }
}

impl DeviceHooks for Counting {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch.iter().filter(|bio| bio.operation() == BioOperation::Write) {
            if bio.offset().0 >= self.main {
                self.main_bytes.fetch_add(bio.length(), Ordering::Relaxed);
                self.main_writes.fetch_add(1, Ordering::Relaxed);
            } else {
                self.other_bytes.fetch_add(bio.length(), Ordering::Relaxed);
            }
        }
        device.submit(batch);
    }
}
