//! The changes of one transaction. Not here: how they are made durable.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use base::{DeviceOffset, FsBlock, TransactionId};
use iomap::{BlockContents, MetadataCache};

/// A function to call when a transaction is durable, which releases space that the transaction
/// freed.
pub(crate) type Release = Box<dyn FnOnce() + Send>;

/// A transaction that collects the changes of handles.
pub(super) struct Transaction {
    pub id: TransactionId,
    pub begun: Instant,
    /// The changed blocks.
    pub blocks: BTreeSet<FsBlock>,
    /// Freed blocks of metadata, of which no earlier copy may be replayed.
    pub revoked: BTreeSet<FsBlock>,
    /// The ranges to discard on the device before any space is released.
    pub discards: Vec<Range<DeviceOffset>>,
    pub released: Vec<Release>,
}

/// A transaction to which no handle adds changes any more, with the contents of its blocks.
pub(super) struct Frozen {
    pub id: TransactionId,
    /// The changed blocks, sorted by number.
    pub blocks: Vec<(FsBlock, BlockContents)>,
    pub revoked: Vec<FsBlock>,
    pub discards: Vec<Range<DeviceOffset>>,
    pub released: Vec<Release>,
}

impl Transaction {
    pub(super) fn new(id: TransactionId) -> Self {
        Self {
            id,
            begun: Instant::now(),
            blocks: BTreeSet::new(),
            revoked: BTreeSet::new(),
            discards: Vec::new(),
            released: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revoked.is_empty() && self.released.is_empty()
    }

    /// Takes the contents of the changed blocks. The caller has made sure that no handle is open.
    pub(super) fn freeze(self, metadata: &MetadataCache) -> Frozen {
        let contents = self.blocks.into_iter().map(|block| {
            let contents =
                metadata.changed(block).expect("a block stays changed until it is written");
            (block, contents)
        });
        Frozen {
            id: self.id,
            blocks: contents.collect(),
            revoked: self.revoked.into_iter().collect(),
            discards: self.discards,
            released: self.released,
        }
    }
}
