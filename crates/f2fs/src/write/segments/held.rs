//! Old blocks of data that a read in flight may still read.
//!
//! Cleaning and the ends of writes give data new blocks while the file is read
//! (`iomap::EarlierReads`). The old blocks stay taken, for logs and for discards, until the next
//! checkpoint is durable, as all freed blocks do, and then until the reads have ended that had
//! begun before the change of the address. Nothing waits for them meanwhile but a write that finds
//! no other block.
//!
//! The reads are looked for after the change of the address, and again by each checkpoint, and when
//! blocks are needed. An inode that is loaded, or opened, after the change maps the new blocks.
//!
//! Changes that free blocks, as truncations, wait for direct reads and for the cache before, so
//! that none is in flight.

use std::collections::BTreeSet;
use std::ops::Range;

use base::{FileBlock, FsBlock, InodeNumber};
use iomap::EarlierReads;

use crate::core::Core;

/// The number of entries from which on they are looked at even if no block is needed.
const LOOKED_AT_MIN: usize = 256;

/// Old blocks that may still be read.
#[derive(Debug)]
struct Held {
    reads: EarlierReads,
    blocks: Vec<Range<FsBlock>>,
    /// Whether a checkpoint was written since. Until then, a crash may show files with these
    /// blocks, so they are taken anyway.
    is_unused: bool,
}

/// The old blocks that may still be read. They are in no file any more.
#[derive(Debug, Default)]
pub(crate) struct HeldBlocks {
    held: Vec<Held>,
    /// The number of entries after the last look.
    left: usize,
}

impl HeldBlocks {
    /// Holds the old blocks of `part` of a file if it may still be read. The file has new
    /// addresses, and then the generation of its map was changed.
    pub(crate) fn hold(
        &mut self,
        volume: &Core,
        (inode, part): (InodeNumber, &Range<FileBlock>),
        blocks: &[Range<FsBlock>],
    ) {
        if blocks.is_empty() {
            return;
        }
        for inode in volume.residents().find(inode) {
            for reads in inode.earlier_reads(part) {
                self.held.push(Held { reads, blocks: blocks.to_vec(), is_unused: false });
            }
        }
    }

    /// Forgets the blocks that are not read any more. Returns those that only this has kept.
    pub(crate) fn look_again(&mut self) -> BTreeSet<FsBlock> {
        let mut unread = BTreeSet::new();
        self.held.retain_mut(|held| {
            let is_read = held.reads.may_be_in_flight();
            if !is_read && held.is_unused {
                unread.extend(blocks_of(&held.blocks));
            }
            is_read
        });
        self.left = self.held.len();
        // Another inode with the same number may have readers.
        for block in self.blocks() {
            unread.remove(&block);
        }
        unread
    }

    /// Records that a checkpoint is durable, with which the blocks are in no file.
    pub(crate) fn note_checkpoint(&mut self) {
        self.held.iter_mut().for_each(|held| held.is_unused = true);
    }

    /// Returns whether there are many more entries than after the last look.
    pub(crate) fn has_grown(&self) -> bool {
        self.held.len() > 2 * self.left.max(LOOKED_AT_MIN)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the number of entries, for [`take_back`](Self::take_back).
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Forgets all but the first entries, of a change that has failed: files have the blocks.
    pub(crate) fn take_back(&mut self, len: usize) {
        self.held.truncate(len);
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = FsBlock> + '_ {
        self.held.iter().flat_map(|held| blocks_of(&held.blocks))
    }
}

fn blocks_of(ranges: &[Range<FsBlock>]) -> impl Iterator<Item = FsBlock> + '_ {
    ranges.iter().flat_map(|range| (range.start.0..range.end.0).map(FsBlock))
}
