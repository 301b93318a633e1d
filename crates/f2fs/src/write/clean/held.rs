//! Old blocks of moved data that a read in flight may still read.
//!
//! Data moves without the inode's lock, so a read may have mapped the old block:
//!
//! ```text
//! reader                         cleaner                              writer of another file
//! locks a folio, maps block A
//!                                copies A to B, address := B
//!                                checkpoint: A is free
//!                                                                     places data in A, writes it
//! reads A: the other file's data
//! ```
//!
//! So A stays taken until, after the change of the address, there was a moment without any read that may have begun before
//! the change. Each read can be seen (`iomap::WritableFile::may_be_read`). The cleaner looks after it has changed the address,
//! and each checkpoint looks again. An inode that is loaded, or opened, after the change maps B.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Weak};

use base::{FileBlock, FsBlock};

use crate::live::LiveInode;

/// An old block that may still be read.
#[derive(Debug)]
struct Held {
    inode: Weak<LiveInode>,
    /// The part of the file that is read together with it.
    part: Range<FileBlock>,
    block: FsBlock,
}

/// The old blocks that may still be read. They are in no file any more.
#[derive(Debug, Default)]
pub(in crate::write) struct HeldBlocks(Vec<Held>);

impl HeldBlocks {
    /// Holds the old block of `part` of a file, which has a new address, if it may still be read.
    pub(super) fn add(&mut self, inode: &Arc<LiveInode>, part: Range<FileBlock>, block: FsBlock) {
        if inode.may_be_read(&part) {
            self.hold(inode, part, block);
        }
    }

    /// Holds the old block of `part` of a file until [`look_again`](Self::look_again) finds that it is not read.
    pub(in crate::write) fn hold(
        &mut self,
        inode: &Arc<LiveInode>,
        part: Range<FileBlock>,
        block: FsBlock,
    ) {
        self.0.push(Held { inode: Arc::downgrade(inode), part, block });
    }

    /// Forgets the blocks that are not read any more, and returns them.
    pub(in crate::write) fn look_again(&mut self) -> BTreeSet<FsBlock> {
        let mut unread = BTreeSet::new();
        self.0.retain(|held| {
            // A dropped inode has no reader that could use what it reads.
            let is_read = held.inode.upgrade().is_some_and(|inode| inode.may_be_read(&held.part));
            if !is_read {
                unread.insert(held.block);
            }
            is_read
        });
        // Another inode with the same number may have readers.
        for held in &self.0 {
            unread.remove(&held.block);
        }
        unread
    }

    pub(in crate::write) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::write) fn blocks(&self) -> impl Iterator<Item = FsBlock> + '_ {
        self.0.iter().map(|held| held.block)
    }
}
