//! What one transaction has changed. Not here: how it is made durable.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use base::{DeviceOffset, FsBlock, TransactionId};
use iomap::{BlockContents, MetadataCache};

/// What to do when a transaction is durable: give back what it freed.
pub(crate) type Release = Box<dyn FnOnce() + Send>;

/// A transaction that handles add to.
pub(super) struct Transaction {
    pub id: TransactionId,
    pub begun: Instant,
    /// The blocks that were changed.
    pub blocks: BTreeSet<FsBlock>,
    /// Blocks of metadata that were freed: no copy of them from before may be replayed.
    pub revoked: BTreeSet<FsBlock>,
    /// Bytes that the device is to be told of before anything is released.
    pub discards: Vec<Range<DeviceOffset>>,
    pub released: Vec<Release>,
}

/// A transaction that nobody adds to any more, with what its blocks held at its end.
pub(super) struct Frozen {
    pub id: TransactionId,
    /// In the order of the volume.
    pub blocks: Vec<(FsBlock, BlockContents)>,
    pub revoked: Vec<FsBlock>,
    pub discards: Vec<Range<DeviceOffset>>,
    pub released: Vec<Release>,
}

impl Transaction {
    pub(super) fn new(id: TransactionId) -> Self {
        let (blocks, revoked) = (BTreeSet::new(), BTreeSet::new());
        let (discards, released) = (Vec::new(), Vec::new());
        Self { id, begun: Instant::now(), blocks, revoked, discards, released }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revoked.is_empty() && self.released.is_empty()
    }

    /// Takes the contents of the changed blocks. No handle is open.
    pub(super) fn freeze(self, metadata: &MetadataCache) -> Frozen {
        let contents = self.blocks.into_iter().map(|block| {
            let contents = metadata.changed(block).expect("it stays changed until it is written");
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
