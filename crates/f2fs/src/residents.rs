//! The inodes of a volume that are in memory, by number, for code that moves data.
//!
//! A number may have several: two threads load an inode at the same time, and the vfs drops one of
//! the results; or an inode is loaded again while a direct read of the dropped one is in flight.
//! Each may have readers, so code that moves data finds all of them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use base::locks::RankedMutex;
use base::{FileBlock, InodeNumber, Result};

use iomap::EarlierReads;

use crate::ranks;

/// The least number of entries at which those of dropped inodes are removed.
const SWEPT_MIN: usize = 1024;

/// An inode in memory, as code that moves data needs it.
pub(crate) trait Resident: Send + Sync + std::fmt::Debug {
    /// Returns the inode's number.
    fn number(&self) -> InodeNumber;

    /// Loads the inode anew after a change.
    fn refresh(&self) -> Result<()>;

    /// Returns the reads that may still read the old blocks of a part of the file
    /// ([`EarlierReads::of`]).
    fn earlier_reads(&self, blocks: &Range<FileBlock>) -> Vec<EarlierReads>;

    /// Lets readers map the file anew.
    fn map_changed(&self);
}

/// The inodes in memory. Entries of dropped inodes are removed from time to time.
#[derive(Debug)]
pub(crate) struct Residents(RankedMutex<Registered>);

#[derive(Debug, Default)]
struct Registered {
    inodes: HashMap<InodeNumber, Vec<Weak<dyn Resident>>>,
    /// The number of entries after the last removal.
    kept: usize,
}

impl Default for Residents {
    fn default() -> Self {
        Self(RankedMutex::new(ranks::REGISTRY, Registered::default()))
    }
}

impl Residents {
    /// Adds an inode, before anything maps its data.
    pub(crate) fn add(&self, inode: Arc<dyn Resident>) {
        let is_alive = |inode: &Weak<dyn Resident>| inode.strong_count() > 0;
        let mut registered = self.0.lock();
        let same = registered.inodes.entry(inode.number()).or_default();
        same.retain(is_alive);
        same.push(Arc::downgrade(&inode));
        if registered.inodes.len() > 2 * registered.kept.max(SWEPT_MIN) {
            registered.inodes.retain(|_, same| same.iter().any(is_alive));
            registered.kept = registered.inodes.len();
        }
    }

    /// Returns the inodes in memory with a number. One that is not found maps its data after this
    /// call.
    pub(crate) fn find(&self, number: InodeNumber) -> Vec<Arc<dyn Resident>> {
        let registered = self.0.lock();
        registered.inodes.get(&number).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }
}
