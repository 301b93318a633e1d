//! Counts of the bytes that were written to a file, and that syncs of it have made durable. Not
//! here: whose counts these are (`dirty_inodes.rs`, `losses.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the next count.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A count of the bytes that were written to a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenBytes {
    /// The number of bytes, those included that are durable.
    bytes: u64,
    /// How many of these are durable by syncs of the file.
    synced: u64,
    /// The number of this count, which no other one has.
    number: u64,
}

/// The bytes that were counted until a sync of the file began.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenBefore {
    bytes: u64,
    number: u64,
}

impl WrittenBytes {
    /// Creates a count of no bytes.
    pub(super) fn new() -> Self {
        // Each number only has to be different.
        Self { bytes: 0, synced: 0, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns the number of bytes that may not be durable.
    pub(super) fn left(&self) -> u64 {
        self.bytes - self.synced
    }

    /// Begins a sync of the file. Returns what [`synced`](Self::synced) makes durable.
    pub(super) fn begin_sync(&self) -> WrittenBefore {
        WrittenBefore { bytes: self.bytes, number: self.number }
    }

    /// Notes that the bytes are durable that were counted before a sync, unless they belong to
    /// another count.
    pub(super) fn synced(&mut self, before: WrittenBefore) {
        if self.number == before.number {
            // Syncs of a file can overlap, and end in any order.
            self.synced = self.synced.max(before.bytes);
        }
    }
}
