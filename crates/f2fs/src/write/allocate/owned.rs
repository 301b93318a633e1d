//! The check before writes in place that blocks are those of the file that refers to them: in a
//! damaged volume, they may be another file's, a directory's, a node, or free and another file's
//! next.
//!
//! The last checkpoint has the use of each block, and the summaries name the one address that
//! refers to it. An address that the checkpoint has, too, must be this one. Those that were set
//! since are not compared: they are of new blocks, or of blocks that a recovery has given to the
//! file, and the next checkpoint sets their summaries.
//!
//! The cost is a search for the file's node, and for the summary of the segment, for each part of
//! the blocks that has one of each: about as much as the search for the blocks themselves. Only
//! what the summaries do not confirm is compared with the nodes of the checkpoint.

use std::sync::Arc;

use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result};

use super::placements::Placed;
use crate::core::Core;
use crate::geometry::SEGMENT_BLOCKS;
use crate::overlay::{Change, Owner};
use crate::write::checkpoint::changes::{address_at, checkpointed_node};
use crate::write::writer::WriterState;

impl WriterState {
    /// Checks that the blocks of `placed` are those of its file.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they are not, and those of reading nodes and summaries.
    pub(crate) fn check_owned(&self, volume: &Arc<Core>, placed: &Placed) -> Result<()> {
        let geometry = volume.geometry();
        if !self.space.has_data(geometry, &placed.range) {
            return Err(not_owned(placed.inode, placed.at, placed.range.start));
        }
        let inode = volume.inode(placed.inode)?;
        let (mut at, mut block) = (placed.at, placed.range.start);
        while block < placed.range.end {
            let leaf = inode.leaf_at(at)?;
            let Some(node) = &leaf.node else {
                return Err(not_owned(placed.inode, at, block));
            };
            // A node has some thousand addresses at most.
            let slot = Owner { nid: node.nid, index: (at.0 - leaf.start) as u16 };
            let (_, index) = geometry.segment_of(block);
            let rest = (placed.range.end.0 - block.0).min(SEGMENT_BLOCKS - index);
            let count = rest.min(leaf.end - at.0);
            if let Some(other) = self.first_not_owned(volume, slot, block, count)? {
                return Err(not_owned(
                    placed.inode,
                    FileBlock(at.0 + other),
                    FsBlock(block.0 + other),
                ));
            }
            (at.0, block.0) = (at.0 + count, block.0 + count);
        }
        Ok(())
    }

    /// Returns the first of `count` blocks from `block` on, in one segment, that belongs to another
    /// address than that in `slot` or the next ones, counted from `block`.
    fn first_not_owned(
        &self,
        volume: &Core,
        slot: Owner,
        block: FsBlock,
        count: u64,
    ) -> Result<Option<u64>> {
        let (segment, first) = volume.geometry().segment_of(block);
        let owners = self.summaries.owners(volume, segment)?;
        for distance in 0..count {
            let block = FsBlock(block.0 + distance);
            let slot = Owner { nid: slot.nid, index: slot.index + distance as u16 };
            let is_own = self.space.is_used(volume.geometry(), block)
                && owners.of(first + distance)? == slot;
            if !is_own && !is_set_since(volume, slot, block)? {
                return Ok(Some(distance));
            }
        }
        Ok(None)
    }
}

/// Returns whether the address in `slot`, of `block`, was set since the last checkpoint.
fn is_set_since(volume: &Core, slot: Owner, block: FsBlock) -> Result<bool> {
    let has_changed =
        matches!(volume.overlay_or_new().read().node(slot.nid), Some(Change::Contents(_)));
    if !has_changed {
        return Ok(false);
    }
    let before = match checkpointed_node(volume, slot.nid)? {
        Some(node) => address_at(volume, &node, slot.index.into())?,
        None => None,
    };
    Ok(before.map(u64::from) != Some(block.0))
}

/// The error for a block that is not the file's.
fn not_owned(inode: InodeNumber, at: FileBlock, block: FsBlock) -> Error {
    let problem = Problem::Invalid { field: "block of data", found: block.0 };
    Error::corrupt("block map", Location::inode(inode).at_file_block(at), problem)
}
