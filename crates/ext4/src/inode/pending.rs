//! The changes of an inode that wait for the next change of its record. Not here: that change
//! (`write.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use base::TransactionId;
use base::attributes::{Attributes, Timestamp};
use parking_lot::Mutex;

use crate::inode::record::InodeRecord;
use crate::inode::times::TimeRoom;

/// Changes of an inode that are written with its next change.
#[derive(Debug)]
pub(crate) struct Pending {
    noted: Mutex<Noted>,
    /// The last transaction that changed the inode, plus one; 0 for none.
    last_change: AtomicU64,
    /// The range and granularity of the inode's times.
    times: TimeRoom,
}

/// Times that are not in the record yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    /// The time of the last change of the contents through the cache.
    modified: Option<Timestamp>,
    /// The time of the last read.
    accessed: Option<Timestamp>,
}

/// Returns the form of a transaction's number in [`Pending`].
fn stored(id: TransactionId) -> u64 {
    u64::from(id.0) + 1
}

impl Pending {
    /// Returns the state of an inode that was just loaded, with this room for times. Any
    /// transaction up to `latest` may have changed the inode, unless it is durable.
    pub(crate) fn new(latest: Option<TransactionId>, times: TimeRoom) -> Self {
        let last = latest.map_or(0, stored);
        Self { noted: Mutex::default(), last_change: AtomicU64::new(last), times }
    }

    /// Notes that a transaction changes the inode.
    pub(super) fn note(&self, transaction: TransactionId) {
        self.last_change.store(stored(transaction), Ordering::Release);
    }

    /// Returns the last transaction that may have changed the inode.
    pub(super) fn last_change(&self) -> Option<TransactionId> {
        // Ids have 32 bits.
        self.last_change.load(Ordering::Acquire).checked_sub(1).map(|id| TransactionId(id as u32))
    }

    /// Returns the range and granularity of the inode's times.
    pub(super) fn times(&self) -> TimeRoom {
        self.times
    }

    /// Replaces the pending time of the last change of the contents. Returns whether there is one.
    pub(super) fn replace_modified(&self, time: Timestamp) -> bool {
        let modified = &mut self.noted.lock().modified;
        *modified = modified.map(|_| time);
        modified.is_some()
    }

    /// Makes a time of the last change of the contents pending.
    pub(super) fn set_modified(&self, time: Timestamp) {
        self.noted.lock().modified = Some(time);
    }

    /// Makes a time of the last read pending.
    pub(super) fn set_accessed(&self, time: Timestamp) {
        self.noted.lock().accessed = Some(time);
    }

    /// Adds pending times to the attributes of the record.
    pub(crate) fn show(&self, attributes: &mut Attributes) {
        let noted = *self.noted.lock();
        if let Some(time) = noted.modified {
            attributes.modified = self.times.modified(time);
            attributes.changed = self.times.changed(time);
        }
        if let Some(time) = noted.accessed {
            attributes.accessed = self.times.accessed(time);
        }
    }

    /// Returns whether anything is pending.
    pub(super) fn is_any(&self) -> bool {
        let noted = *self.noted.lock();
        noted.modified.is_some() || noted.accessed.is_some()
    }

    /// Moves the pending times to the record. Returns them.
    pub(super) fn apply(&self, record: &mut InodeRecord) -> Noted {
        let noted = std::mem::take(&mut *self.noted.lock());
        if let Some(time) = noted.modified {
            record.modified = time;
            record.changed = time;
            record.version = record.version.wrapping_add(1);
        }
        if let Some(time) = noted.accessed {
            record.accessed = time;
        }
        noted
    }

    /// Makes times pending again whose record could not be written, except where there are newer
    /// ones.
    pub(super) fn restore(&self, times: Noted) {
        let mut noted = self.noted.lock();
        noted.modified = noted.modified.or(times.modified);
        noted.accessed = noted.accessed.or(times.accessed);
    }
}
