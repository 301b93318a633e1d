//! The fallocate family: allocation of blocks without data, and ranges of blocks that are freed,
//! made to read as zeroes, or shifted.
//!
//! The caller holds the inode's lock exclusively. Before blocks are freed or shifted, the caller
//! removes their data from the cache, and waits for their writeback. Not here: parts of blocks, and
//! the cache (`iomap`).

use std::ops::Range;

use base::attributes::Timestamp;
use base::{Error, FileBlock, FileOffset, Result};

use crate::alloc::Purpose;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::map_write::NEEDS_EXTENTS;
use crate::map_write::Progress;
use crate::orphans::write::ORPHAN_CREDITS;

/// The next step of an operation that takes several transactions.
#[derive(Clone, Copy)]
enum NextStep {
    /// Unmap the blocks from the range's start to this block.
    Unmap(FileBlock),
    /// Split the extent that contains the range's start.
    Split,
    /// Shift extents: from this block on if they move to the left, or before it if they move to the
    /// right.
    Shift(FileBlock),
    /// Nothing is left to do.
    Done,
}

impl Inode {
    /// Allocates all blocks that `range` touches. New blocks are unwritten. The size does not
    /// change. Errors: `NoSpace` if the space cannot be reserved; then nothing is allocated.
    pub fn preallocate(&self, range: Range<FileOffset>) -> Result<()> {
        self.check_extents()?;
        let wanted = self.blocks_of(range.start, range.end.0.saturating_sub(range.start.0))?;
        self.convert_inline_data_if_any()?;
        if range.end.0 > self.size() {
            self.finish_truncation()?;
        }
        let holes = self.reserve_holes(&wanted)?;
        let allocated = self.allocate_all_delayed(&wanted);
        if allocated.is_err() {
            // These blocks have no data, so no writeback will allocate them.
            holes.iter().for_each(|hole| self.release_delayed(hole));
        }
        allocated
    }

    /// Converts inline data, if any, to a block, since the cache does not zero parts of inline
    /// data.
    pub fn convert_inline_data_if_any(&self) -> Result<()> {
        if self.has(InodeFlags::INLINE_DATA) { self.convert_inline_data() } else { Ok(()) }
    }

    /// Allocates all delayed blocks of a range.
    fn allocate_all_delayed(&self, wanted: &Range<FileBlock>) -> Result<()> {
        let mut at = wanted.start;
        while at < wanted.end {
            let around = self.delayed.lock().around(at);
            if around.is_delayed {
                self.allocate_delayed(&(at..wanted.end))?;
            } else {
                at = around.range.end;
            }
        }
        Ok(())
    }

    /// Punches a hole of whole blocks. This may take several transactions, so a crash may leave
    /// only a part of the hole.
    pub fn punch(&self, range: Range<FileOffset>) -> Result<()> {
        let range = self.whole_blocks(&range)?;
        self.convert_inline_data_if_any()?;
        self.unmap_all(range)
    }

    /// Makes whole blocks read as zeroes. Allocated blocks stay allocated.
    pub fn zero(&self, range: Range<FileOffset>) -> Result<()> {
        self.check_extents()?;
        let mut range = self.whole_blocks(&range)?;
        self.convert_inline_data_if_any()?;
        let volume = self.volume();
        while range.start < range.end {
            let credits = self.credits_for_map(1) + ORPHAN_CREDITS;
            let progress = volume.change_with_space(credits, |handle| {
                self.convert_unwritten(handle, range.start, range.end.0 - range.start.0)
            })?;
            match progress {
                Progress::Done => break,
                Progress::More(at) => range.start = at,
            }
        }
        Ok(())
    }

    /// Removes a range from a file of `size` bytes. The data behind the range moves to its start.
    /// The range is a multiple of [`allocation_unit`](Self::allocation_unit), and ends before the
    /// file's end. If the map is too large for one transaction, a crash may leave the map partly
    /// shifted.
    pub fn collapse(&self, range: Range<FileOffset>, size: u64, time: Timestamp) -> Result<()> {
        let (blocks, by) = self.prepare_shift(&range)?;
        if range.end.0 >= size {
            return Err(Error::InvalidArgument(
                "a range to collapse must end before the file's end",
            ));
        }
        let mut next = NextStep::Unmap(blocks.end);
        let size = size - (range.end.0 - range.start.0);
        self.run_steps(&mut next, |next, handle| {
            if let NextStep::Unmap(end) = *next {
                *next = match self.unmap(handle, blocks.start..end)? {
                    Progress::More(left) => NextStep::Unmap(left),
                    Progress::Done => NextStep::Shift(blocks.end),
                };
            }
            if let NextStep::Shift(at) = *next {
                *next = match self.shift_left(handle, at, by)? {
                    Progress::More(left) => NextStep::Shift(left),
                    Progress::Done => NextStep::Done,
                };
            }
            if let NextStep::Done = *next {
                // In the last step, since until then the file has data up to its old end.
                self.update(handle, |record| {
                    record.size = size;
                    set_change_times(record, time);
                })?;
            }
            Ok(())
        })
    }

    /// Inserts `range` as a hole in a file of `size` bytes. The data from its start on moves behind
    /// it. The range is a multiple of [`allocation_unit`](Self::allocation_unit), and begins before
    /// the file's end. As with [`collapse`](Self::collapse), a crash may leave a large map partly
    /// shifted.
    pub fn insert(&self, range: Range<FileOffset>, size: u64, time: Timestamp) -> Result<()> {
        let (blocks, by) = self.prepare_shift(&range)?;
        if range.start.0 >= size {
            return Err(Error::InvalidArgument(
                "a range to insert must begin before the file's end",
            ));
        }
        let bytes = range.end.0 - range.start.0;
        let size = size.checked_add(bytes).ok_or(Error::FileTooLarge)?;
        let last = self.mapped_end(blocks.start)?;
        if size > self.size_max() || last.0.saturating_add(by) > self.map_end().0 {
            return Err(Error::FileTooLarge);
        }
        self.volume().note_size(size)?;
        let mut next = NextStep::Split;
        self.run_steps(&mut next, |next, handle| {
            if let NextStep::Split = *next {
                self.split_extent(handle, blocks.start, Purpose::Metadata)?;
                // In the first step, before the file has data past its old end.
                self.update(handle, |record| {
                    record.size = size;
                    set_change_times(record, time);
                })?;
                *next = NextStep::Shift(self.map_end());
            }
            if let NextStep::Shift(end) = *next {
                *next = match self.shift_right(handle, blocks.start..end, by)? {
                    Progress::More(left) => NextStep::Shift(left),
                    Progress::Done => NextStep::Done,
                };
            }
            Ok(())
        })
    }

    /// Returns the unit of ranges to collapse or insert, in bytes: a cluster.
    pub fn allocation_unit(&self) -> u64 {
        let geometry = self.volume().geometry();
        1 << (geometry.block_size.shift() + geometry.cluster_shift)
    }

    /// Runs `step` in one transaction after another until nothing is left to do, and makes the
    /// result durable. Otherwise data that is later written to a shifted block could, after a
    /// crash, be found at the block's previous position.
    fn run_steps<'v>(
        &'v self,
        next: &mut NextStep,
        mut step: impl FnMut(&mut NextStep, &mut crate::journal::Handle<'v>) -> Result<()>,
    ) -> Result<()> {
        let volume = self.volume();
        let mut has_begun = false;
        while !matches!(next, NextStep::Done) {
            // If possible, one transaction for all steps: then a crash leaves all of the change or
            // nothing of it.
            let credits = if self.map_is_in_inode() {
                self.credits_for_unmap() + self.credits_for_map(2)
            } else {
                u32::MAX
            };
            let credits = credits.min(volume.writer()?.journal.credits_max());
            let done = volume.change_with_space(credits, |handle| step(next, handle));
            if let Err(error) = done {
                // A part of the change is done: the cache's mappings and size do not match the map
                // any more.
                if has_begun && error != Error::NoSpace {
                    volume.writer()?.journal.fail(&error);
                }
                return Err(error);
            }
            has_begun = true;
        }
        volume.writer()?.journal.commit_all()
    }

    /// Prepares the file for a collapse or an insertion of `range`. Returns the range's blocks, and
    /// their number.
    fn prepare_shift(&self, range: &Range<FileOffset>) -> Result<(Range<FileBlock>, u64)> {
        self.check_extents()?;
        self.convert_inline_data_if_any()?;
        let unit = self.allocation_unit();
        if range.start.0 % unit != 0 || range.end.0 % unit != 0 || range.is_empty() {
            return Err(Error::InvalidArgument("the range is not a multiple of the block size"));
        }
        let blocks = self.whole_blocks(range)?;
        self.volume().check_writable()?;
        // The caller has removed the data of blocks that are still delayed from the cache.
        self.release_delayed(&(blocks.start..self.map_end()));
        let by = blocks.end.0 - blocks.start.0;
        Ok((blocks, by))
    }

    /// Returns the end of the last run, or `from` if no run ends behind it.
    fn mapped_end(&self, from: FileBlock) -> Result<FileBlock> {
        let mut at = from;
        let mut last = from;
        while at < self.map_end() {
            let piece = self.piece_at(at, self.map_end())?;
            if let fs::Piece::Run(_) = piece {
                last = piece.end();
            }
            at = piece.end();
        }
        Ok(last)
    }

    /// Returns the blocks of a range, up to the maximum end of a map. Errors: `InvalidArgument` if
    /// the range does not consist of whole blocks.
    pub(crate) fn whole_blocks(&self, range: &Range<FileOffset>) -> Result<Range<FileBlock>> {
        let size = self.volume().geometry().block_size;
        let is_whole = |at: FileOffset| at.0 % u64::from(size.bytes()) == 0;
        if !is_whole(range.start) || !is_whole(range.end) {
            return Err(Error::InvalidArgument("the range does not consist of whole blocks"));
        }
        let end = size.file_block(range.end).min(self.map_end());
        Ok(size.file_block(range.start).min(end)..end)
    }

    fn check_extents(&self) -> Result<()> {
        // Inline data is converted to an extent if the volume has extents.
        let gets_extents = self.has(InodeFlags::INLINE_DATA)
            && self.volume().geometry().features.has(Feature::Extent);
        if self.has(InodeFlags::EXTENTS) || gets_extents {
            return Ok(());
        }
        Err(NEEDS_EXTENTS.into())
    }
}

fn set_change_times(record: &mut InodeRecord, time: Timestamp) {
    record.modified = time;
    record.changed = time;
}
