//! The check before writes in place that blocks are those of the file that refers to them: in a damaged volume, they may be
//! another file's, a directory's, a node, or free and another file's next.
//!
//! The last checkpoint has the use of each block, and the summaries name the one address that refers to it. An address that
//! the checkpoint has, too, must be this one. Those that were set since are not compared: they are of new blocks, or of blocks
//! that a recovery has given to the file, and the next checkpoint sets their summaries.
//!
//! The cost is a search for the file's node, and for the summary of the segment, for each part of the blocks that has one of
//! each: about as much as the search for the blocks themselves.

use std::sync::Arc;

use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result};

use super::changes::{addresses, checkpointed_node};
use super::placements::Placed;
use super::writer::WriterState;
use crate::edit::{Change, Editor, Slot, nid_of};
use crate::geometry::SEGMENT_BLOCKS;
use crate::volume::Volume;

impl WriterState {
    /// Checks that the blocks of `placed` are those of its file.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they are not, and those of reading nodes and summaries.
    pub(super) fn check_owned(&self, volume: &Arc<Volume>, placed: &Placed) -> Result<()> {
        let geometry = volume.geometry();
        if !self.space.has_data(geometry, &placed.range) {
            return Err(not_owned(placed.inode, placed.at, placed.range.start));
        }
        let mut editor = Editor::new(volume);
        let in_inode = editor.inode(placed.inode)?.record().address_count;
        let (mut at, mut block) = (placed.at, placed.range.start);
        while block < placed.range.end {
            let Some(slot) = editor.slot_of(placed.inode, at, false)? else {
                return Err(not_owned(placed.inode, at, block));
            };
            let in_node = match slot.nid == nid_of(placed.inode) {
                true => in_inode,
                false => geometry.addresses_per_node(),
            };
            let (_, index) = geometry.segment_of(block);
            let rest = (placed.range.end.0 - block.0).min(SEGMENT_BLOCKS - index);
            let count = rest.min(in_node.saturating_sub(slot.index).max(1).into());
            self.check_owned_part(volume, slot, at, block, count)?;
            (at.0, block.0) = (at.0 + count, block.0 + count);
        }
        Ok(())
    }

    /// Checks `count` blocks from `block` on, in one segment, to which the addresses of a node refer from `slot` on.
    fn check_owned_part(
        &self,
        volume: &Arc<Volume>,
        slot: Slot,
        at: FileBlock,
        block: FsBlock,
        count: u64,
    ) -> Result<()> {
        let (segment, first) = volume.geometry().segment_of(block);
        // The addresses that the checkpoint has in the node, if it has changed since.
        let is_changed =
            matches!(volume.overlay_or_new().read().node(slot.nid), Some(Change::Contents(_)));
        let before = match is_changed {
            true => Some(match checkpointed_node(volume, slot.nid)? {
                Some(node) => addresses(volume, &node)?,
                None => Vec::new(),
            }),
            false => None,
        };
        let owners = self.summaries.owners(volume, segment)?;
        for distance in 0..count {
            // The blocks of a segment at most.
            let (block, slot) = (FsBlock(block.0 + distance), slot.after(distance as u32));
            let is_new = before.as_ref().is_some_and(|before| {
                before.get(slot.index as usize).copied().map(u64::from) != Some(block.0)
            });
            if is_new {
                continue;
            }
            let is_own = self.space.is_used(volume.geometry(), block)
                && owners.of(first + distance)? == slot.owner();
            if !is_own {
                return Err(not_owned(slot.inode, FileBlock(at.0 + distance), block));
            }
        }
        Ok(())
    }
}

/// The error for a block that is not the file's.
fn not_owned(inode: InodeNumber, at: FileBlock, block: FsBlock) -> Error {
    let problem = Problem::Invalid { field: "block of data", found: block.0 };
    Error::corrupt("block map", Location::inode(inode).at_file_block(at), problem)
}
