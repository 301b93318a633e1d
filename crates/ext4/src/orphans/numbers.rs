//! The numbers of the orphans of a volume, for those who allocate inodes. Not here: the orphans
//! (`write.rs`).

use std::collections::HashSet;

use base::InodeNumber;
use parking_lot::Mutex;

/// The numbers of all orphans. No lock is taken under that of the set.
#[derive(Default)]
pub(crate) struct OrphanNumbers(Mutex<HashSet<InodeNumber>>);

impl OrphanNumbers {
    /// Returns whether an inode is an orphan.
    pub(crate) fn contains(&self, number: InodeNumber) -> bool {
        self.0.lock().contains(&number)
    }

    /// Returns whether there are no orphans.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Adds an orphan.
    pub(super) fn insert(&self, number: InodeNumber) {
        self.0.lock().insert(number);
    }

    /// Removes an orphan.
    pub(super) fn remove(&self, number: InodeNumber) {
        self.0.lock().remove(&number);
    }
}
