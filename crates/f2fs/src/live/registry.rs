//! The inodes of a volume that are in memory, by number, for code that moves data.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use base::InodeNumber;
use base::locks::RankedMutex;

use super::LiveInode;
use crate::ranks;

/// The least number of entries at which those of dropped inodes are removed.
const SWEPT_MIN: usize = 1024;

/// The inodes in memory. Entries of dropped inodes are removed from time to time.
#[derive(Debug)]
pub(crate) struct LiveInodes(RankedMutex<Registered>);

#[derive(Debug, Default)]
struct Registered {
    inodes: HashMap<InodeNumber, Weak<LiveInode>>,
    /// The number of entries after the last removal.
    kept: usize,
}

impl Default for LiveInodes {
    fn default() -> Self {
        Self(RankedMutex::new(ranks::REGISTRY, Registered::default()))
    }
}

impl LiveInodes {
    /// Adds an inode, before anything maps its data. It replaces an inode of the same number that is not used any more.
    pub(crate) fn add(&self, inode: &Arc<LiveInode>) {
        let mut registered = self.0.lock();
        registered.inodes.insert(inode.number, Arc::downgrade(inode));
        if registered.inodes.len() > 2 * registered.kept.max(SWEPT_MIN) {
            registered.inodes.retain(|_, inode| inode.strong_count() > 0);
            registered.kept = registered.inodes.len();
        }
    }

    /// Returns an inode, if it is in memory. One that is not found maps its data after this call.
    pub(crate) fn find(&self, number: InodeNumber) -> Option<Arc<LiveInode>> {
        self.0.lock().inodes.get(&number)?.upgrade()
    }
}
