//! Sizes of files, preallocated blocks, and holes.

use std::ops::Range;

use base::attributes::Timestamp;
use base::{Error, FileBlock, FileOffset, Result, Unsupported};
use fs::Shift;

use super::{LiveInode, NODES_MAX};
use crate::inode::map::END;
use crate::inode::record::SECTOR_SHIFT;
use crate::ondisk::node::{RawInode, advise};
use crate::write::Demand;

/// The maximum size of a file: 2^32 blocks of 4 KiB, whatever the size of blocks is.
const SIZE_MAX: u64 = 1 << 44;

/// The number of nodes with addresses that a change of a few nodes changes at most.
const CHANGED_NODES_MAX: usize = 32;

impl LiveInode {
    /// Returns the maximum size of a file, in bytes. As in Linux, the addresses in the inode are
    /// not counted, and the limit is 16 TiB.
    pub(crate) fn size_max(&self) -> u64 {
        let geometry = self.volume.geometry();
        let nids = u64::from(geometry.addresses_per_node());
        // Less than `nids` in a compressed file, whose clusters are not in two nodes.
        let in_node = u64::from(self.current().record().addresses_per_node);
        let blocks = in_node * (2 + 2 * nids + nids * nids);
        (blocks << geometry.block_size.shift()).min(SIZE_MAX)
    }

    /// Sets the size of a file. Frees the blocks past it, unless `keeps_space`.
    pub(crate) fn set_size(&self, size: u64, keeps_space: bool, time: Timestamp) -> Result<()> {
        if size > self.size_max().max(self.current().attributes().size) {
            return Err(Error::FileTooLarge);
        }
        if self.has_atomic_write() {
            // The commit stores the size in memory, which has grown or is set to what it is. It
            // gets no less meanwhile.
            return Ok(());
        }
        self.check_changeable()?;
        let set = |raw: &mut RawInode| {
            raw.size.set(size);
            if !keeps_space {
                raw.advise &= !advise::KEEP_SIZE;
            }
            raw.set_modified(time);
            raw.set_changed(time);
        };
        let inline = self.current().record().inline_area.clone();
        if inline.is_some_and(|area| size <= area.len() as u64) {
            self.change(Demand::Few, &[], |editor, _| {
                editor.cut_inline(self.number, size)?;
                self.update(editor, set)
            })?;
            self.map_changed();
            return Ok(());
        }
        self.convert_inline()?;
        let end = FileBlock(self.volume.geometry().block_size.blocks_for(size));
        self.decompress_end(size)?;
        let mut saved = 0;
        if !keeps_space {
            self.decompress_cut(end)?;
            self.drop_delayed(&(end..END))?;
            saved = self.saved_from(end)?;
        }
        self.change(Demand::Few, &[], |editor, _| {
            if !keeps_space {
                editor.truncate(self.number, end)?;
            }
            if saved > 0 {
                editor.count_saved_blocks(self.number, -(saved as i64))?;
            }
            self.update(editor, set)
        })?;
        self.map_changed();
        Ok(())
    }

    /// Frees the blocks past the end of a file if Linux has allocated them for a direct write that
    /// was cut off: nothing was written to them, and the file would show what they held before once
    /// it grows. Called before any change of the file's data or size, so that nothing is delayed.
    /// Like Linux, also frees blocks that were preallocated there.
    pub(super) fn truncate_if_due(&self) -> Result<()> {
        let current = self.current();
        if !current.record().is_truncation_due {
            return Ok(());
        }
        let (end, mut saved) = (FileBlock(self.blocks_of_size()), 0);
        let has_map = current.record().inline_area.is_none();
        if has_map {
            self.decompress_cut(end)?;
            saved = self.saved_from(end)?;
        }
        self.change(Demand::Few, &[], |editor, _| {
            // Another thread may have been first, and the file may have grown since.
            if !editor.inode(self.number)?.record().is_truncation_due {
                return Ok(());
            }
            if has_map {
                editor.truncate(self.number, end)?;
            }
            if saved > 0 {
                editor.count_saved_blocks(self.number, -(saved as i64))?;
            }
            self.update(editor, |raw| raw.advise &= !advise::TRUNCATE)
        })?;
        self.map_changed();
        Ok(())
    }

    /// Removes delayed blocks, whose data was dropped.
    pub(super) fn drop_delayed(&self, blocks: &Range<FileBlock>) -> Result<()> {
        let dropped = self.delayed.lock().remove(blocks, 0);
        self.volume.writer()?.unreserve(dropped);
        Ok(())
    }

    /// Returns the blocks of a range of bytes.
    pub(super) fn blocks_of(&self, range: &Range<FileOffset>) -> Range<FileBlock> {
        let block_size = self.volume.geometry().block_size;
        block_size.file_block(range.start)..FileBlock(block_size.blocks_for(range.end.0))
    }

    /// Reserves blocks for the holes in `range`.
    pub(crate) fn preallocate(&self, range: Range<FileOffset>) -> Result<()> {
        self.check_changeable()?;
        if range.end.0 > self.size_max() {
            return Err(Error::FileTooLarge);
        }
        self.convert_inline()?;
        if self.is_pinned() {
            return self.preallocate_pinned(range);
        }
        let blocks = self.blocks_of(&range);
        let count = blocks.end.0.saturating_sub(blocks.start.0);
        let delayed: Vec<Range<FileBlock>> = self.delayed_in(&blocks);
        self.change(Demand::Adds(self.nodes_of(count)), &[], |editor, reserved| {
            let (mut at, mut others) = (blocks.start, Vec::new());
            // Delayed blocks are reserved already.
            for delayed in delayed.into_iter().chain([blocks.end..blocks.end]) {
                others.push(at..delayed.start);
                at = delayed.end;
            }
            reserved.check_blocks(self.volume.core(), editor.count_holes(self.number, &others)?)?;
            for blocks in others {
                editor.reserve_blocks(self.number, blocks, false)?;
            }
            self.update(editor, |raw| {
                if range.end.0 > raw.size.get() {
                    raw.advise |= advise::KEEP_SIZE;
                }
            })
        })?;
        self.map_changed();
        Ok(())
    }

    /// Returns the number of nodes that have the addresses of blocks of the file at most. A sparse
    /// file has fewer blocks than such nodes would have addresses.
    pub(super) fn nodes_between(&self, from: FileBlock, to: FileBlock) -> u64 {
        let sectors = self.current().attributes().blocks;
        let used = self.volume.geometry().block_size.blocks_for(sectors << SECTOR_SHIFT);
        self.nodes_of(to.0.saturating_sub(from.0)).min(used + NODES_MAX)
    }

    /// Returns the delayed blocks of a range.
    fn delayed_in(&self, blocks: &Range<FileBlock>) -> Vec<Range<FileBlock>> {
        let delayed = self.delayed.lock();
        let (mut at, mut found) = (blocks.start, Vec::new());
        while at < blocks.end {
            let around = delayed.around(at);
            let end = around.range.end.min(blocks.end);
            if around.is_delayed {
                found.push(at..end);
            }
            at = end;
        }
        found
    }

    /// Prepares for [`clear`](Self::clear). Fails for files whose blocks stay.
    pub(crate) fn prepare_to_clear(&self) -> Result<()> {
        self.check_uncompressed()?;
        self.check_unpinned()?;
        self.convert_inline()
    }

    /// Makes whole blocks holes, or with `keeps_space`, reserved blocks.
    pub(crate) fn clear(&self, range: Range<FileOffset>, keeps_space: bool) -> Result<()> {
        self.check_changeable()?;
        self.check_uncompressed()?;
        self.check_unpinned()?;
        let blocks = self.blocks_of(&range);
        self.drop_delayed(&blocks)?;
        if !keeps_space {
            return self.make_holes(blocks);
        }
        let demand = Demand::Adds(self.nodes_of(blocks.end.0.saturating_sub(blocks.start.0)));
        self.change(demand, &[], |editor, reserved| {
            let holes = editor.count_holes(self.number, std::slice::from_ref(&blocks))?;
            reserved.check_blocks(self.volume.core(), holes)?;
            editor.reserve_blocks(self.number, blocks.clone(), true)?;
            self.update(editor, |_| ())
        })?;
        self.map_changed();
        Ok(())
    }

    /// Makes blocks holes, in parts for each of which a checkpoint always has room.
    fn make_holes(&self, blocks: Range<FileBlock>) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            at = self.change(Demand::Few, &[], |editor, _| {
                let rest = at..blocks.end;
                let end = editor.free_some_blocks(self.number, rest, CHANGED_NODES_MAX)?;
                self.update(editor, |_| ())?;
                Ok(end)
            })?;
            // Before the next part: its checkpoint makes the blocks free.
            self.map_changed();
        }
        Ok(())
    }

    /// Removes `range` from a file of `size` bytes, or inserts a hole there.
    pub(crate) fn shift(
        &self,
        range: Range<FileOffset>,
        moves: Shift,
        size: u64,
        time: Timestamp,
    ) -> Result<()> {
        self.check_changeable()?;
        self.check_uncompressed()?;
        self.check_unpinned()?;
        if self.current().record().is_encrypted {
            // As in Linux: the encrypted form of a block depends on its place in the file.
            return Err(Unsupported::Operation("moving data in an encrypted file").into());
        }
        let length = range.end.0 - range.start.0;
        let blocks = self.blocks_of(&range);
        let (from, to, moved) = match moves {
            Shift::Collapse => (blocks.end, blocks.start, size.saturating_sub(length)),
            Shift::Insert => (blocks.start, blocks.end, size.saturating_add(length)),
        };
        if moved > self.size_max() {
            return Err(Error::FileTooLarge);
        }
        let end = FileBlock(self.volume.geometry().block_size.blocks_for(size));
        // The nodes that the blocks leave, and those that they go to.
        let nodes = 2 * self.nodes_between(blocks.start, end);
        let demand = match moves {
            Shift::Collapse => Demand::Changes(nodes),
            Shift::Insert => Demand::Adds(nodes),
        };
        self.change(demand, &[], |editor, _| {
            // Preallocated blocks past the end do not move.
            editor.truncate(self.number, end)?;
            editor.shift(self.number, from, to, end)?;
            self.update(editor, |raw| {
                raw.size.set(moved);
                raw.set_modified(time);
                raw.set_changed(time);
            })
        })?;
        self.map_changed();
        Ok(())
    }
}
