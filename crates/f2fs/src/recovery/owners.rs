//! Taking blocks away from former owners: a block that a replayed node refers to belongs to that
//! node only.

use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};

use super::STRUCTURE;
use super::segments::Segments;
use crate::edit::{Editor, Slot, has_addresses};
use crate::geometry::WORD_BYTES;
use crate::overlay::{BlockUse, Change, Owner};

impl Editor<'_> {
    /// Makes the address that refers to `block` a hole. Returns whether there was one. `segments`
    /// is the use of blocks in the checkpoint.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the block is in use, but not by the address that the summaries name.
    pub(super) fn take_away(&mut self, block: FsBlock, segments: &Segments) -> Result<bool> {
        let volume = self.volume;
        let in_overlay = self.overlay.read().block_use(block);
        let owner = match in_overlay {
            Some(BlockUse::Free) => return Ok(false),
            Some(BlockUse::Owned(owner)) => owner,
            None if !segments.is_used(volume, block)? => return Ok(false),
            None => segments.owner(volume, block)?,
        };
        // Blocks are free if their node is.
        if matches!(self.overlay.read().node(owner.nid), Some(Change::Freed)) {
            return Ok(false);
        }
        if let Some(slot) = self.slot_of_owner(owner)? {
            if FsBlock(self.address(slot)?.into()) == block {
                self.free_slot(slot)?;
                return Ok(true);
            }
        }
        Err(Error::corrupt(STRUCTURE, Location::block(block), Problem::Shared { blocks: 1 }))
    }

    /// Returns the slot that a summary names. `None` if it is not the address of data.
    fn slot_of_owner(&self, owner: Owner) -> Result<Option<Slot>> {
        let node = match self.volume.any_node(owner.nid) {
            Err(Error::NotFound) => return Ok(None),
            node => node?,
        };
        let index = u32::from(owner.index);
        let position = node.position()?;
        let inode = self.inode(node.inode)?;
        let record = inode.record();
        let is_inode = node.inode == InodeNumber(owner.nid.0.into());
        let (first_byte, count) = if is_inode {
            record.own_addresses()
        } else {
            let is_direct = position != 0 && has_addresses(position, self.volume.geometry());
            (0, if is_direct { record.addresses_per_node } else { 0 })
        };
        let byte = first_byte + usize::from(owner.index) * WORD_BYTES;
        let slot = Slot { inode: node.inode, nid: owner.nid, index, byte };
        Ok((index < count).then_some(slot))
    }
}
