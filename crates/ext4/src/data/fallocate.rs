//! The fallocate family: allocation of space without data, and ranges of blocks that are freed, made to read
//! as zeroes, or moved.
//!
//! The caller holds the inode's lock alone. Before blocks are freed or moved, it removes their data from the
//! cache, and waits for their writeback.
//! Not here: parts of blocks, and the cache (`iomap`).

use std::ops::Range;

use base::attributes::Timestamp;
use base::{Error, FileBlock, FileOffset, Result, Unsupported};

use crate::alloc::Purpose;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::map_write::Progress;
use crate::orphans::write::ORPHAN_CREDITS;

/// The error for files with block maps.
pub(crate) const NEEDS_EXTENTS: Unsupported =
    Unsupported::Operation("fallocate other than hole punching in files with block maps");

/// The next step of a change in several transactions.
#[derive(Clone, Copy)]
enum Stage {
    /// Unmap the blocks from the range's start to here.
    Unmap(FileBlock),
    /// Split the extent here, so that one begins here.
    Split,
    /// Shift the extents on this side of here.
    Shift(FileBlock),
    /// Nothing is left to do.
    Done,
}

impl Inode {
    /// Allocates all blocks with bytes of `range`; new ones are unwritten. The size stays. Errors: `NoSpace`, when
    /// nothing was allocated.
    pub fn preallocate(&self, range: Range<FileOffset>) -> Result<()> {
        self.check_extents()?;
        let wanted = self.blocks_of(range.start, range.end.0.saturating_sub(range.start.0))?;
        self.leave_inline()?;
        if range.end.0 > self.size() {
            self.finish_truncation()?;
        }
        let holes = self.reserve_holes(&wanted)?;
        let placed = self.place_all(&wanted);
        if placed.is_err() {
            // They have no data that would be waited for.
            holes.iter().for_each(|hole| self.forget_delayed(hole));
        }
        placed
    }

    /// Converts inline data to a block, since the cache does not zero parts of inline data.
    pub fn leave_inline(&self) -> Result<()> {
        if self.has(InodeFlags::INLINE_DATA) { self.leave_inode() } else { Ok(()) }
    }

    /// Allocates all delayed blocks of a range.
    fn place_all(&self, wanted: &Range<FileBlock>) -> Result<()> {
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

    /// Punches a hole of whole blocks. This may take several transactions; a crash leaves a part of it.
    pub fn punch(&self, range: Range<FileOffset>) -> Result<()> {
        let range = self.whole_blocks(&range)?;
        self.leave_inline()?;
        self.unmap_all(range)
    }

    /// Makes whole blocks read as zeroes. Allocated blocks stay allocated.
    pub fn zero(&self, range: Range<FileOffset>) -> Result<()> {
        self.check_extents()?;
        let mut range = self.whole_blocks(&range)?;
        self.leave_inline()?;
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

    /// Removes a range from a file of `size` bytes; the data behind it moves to its start. The range is a multiple of
    /// [`allocation_unit`](Self::allocation_unit), and ends before the file does. If the map is too large for one
    /// transaction, a crash can leave a part of it shifted.
    pub fn collapse(&self, range: Range<FileOffset>, size: u64, time: Timestamp) -> Result<()> {
        let (blocks, by) = self.moved_blocks(&range)?;
        if range.end.0 >= size {
            return Err(Error::InvalidArgument(
                "a range to collapse must end before the file does",
            ));
        }
        let mut stage = Stage::Unmap(blocks.end);
        let size = size - (range.end.0 - range.start.0);
        self.in_stages(&mut stage, |stage, handle| {
            if let Stage::Unmap(end) = *stage {
                *stage = match self.unmap(handle, blocks.start..end)? {
                    Progress::More(left) => Stage::Unmap(left),
                    Progress::Done => Stage::Shift(blocks.end),
                };
            }
            if let Stage::Shift(at) = *stage {
                *stage = match self.shift_left(handle, at, by)? {
                    Progress::More(next) => Stage::Shift(next),
                    Progress::Done => Stage::Done,
                };
            }
            if let Stage::Done = *stage {
                // Only now: until then there is data up to the old end.
                self.update(handle, |record| {
                    record.size = size;
                    note_change(record, time);
                })?;
            }
            Ok(())
        })
    }

    /// Inserts `range` as a hole in a file of `size` bytes; the data from its start on moves behind it. The range is a
    /// multiple of [`allocation_unit`](Self::allocation_unit), and begins before the file's end. As with
    /// [`collapse`](Self::collapse), a crash can leave a part of a large map shifted.
    pub fn insert(&self, range: Range<FileOffset>, size: u64, time: Timestamp) -> Result<()> {
        let (blocks, by) = self.moved_blocks(&range)?;
        if range.start.0 >= size {
            return Err(Error::InvalidArgument(
                "a range to insert must begin before the file's end",
            ));
        }
        let bytes = range.end.0 - range.start.0;
        let size = size.checked_add(bytes).ok_or(Error::FileTooLarge)?;
        let last = self.last_mapped(blocks.start)?;
        if size > self.size_max() || last.0.saturating_add(by) > self.map_end().0 {
            return Err(Error::FileTooLarge);
        }
        let mut stage = Stage::Split;
        self.in_stages(&mut stage, |stage, handle| {
            if let Stage::Split = *stage {
                self.split_extent(handle, blocks.start, Purpose::Metadata)?;
                // Before anything lies past the old end.
                self.update(handle, |record| {
                    record.size = size;
                    note_change(record, time);
                })?;
                *stage = Stage::Shift(self.map_end());
            }
            if let Stage::Shift(end) = *stage {
                *stage = match self.shift_right(handle, blocks.start..end, by)? {
                    Progress::More(left) => Stage::Shift(left),
                    Progress::Done => Stage::Done,
                };
            }
            Ok(())
        })
    }

    /// Returns the unit of collapsed and inserted ranges, in bytes: a cluster.
    pub fn allocation_unit(&self) -> u64 {
        let geometry = self.volume().geometry();
        1 << (geometry.block_size.shift() + geometry.cluster_shift)
    }

    /// Runs `step` in one transaction after another until nothing is left to do, and makes that durable. Otherwise data
    /// that is then written to a shifted block could, after a crash, be found at the block's previous position.
    fn in_stages<'v>(
        &'v self,
        stage: &mut Stage,
        mut step: impl FnMut(&mut Stage, &mut crate::journal::Handle<'v>) -> Result<()>,
    ) -> Result<()> {
        let volume = self.volume();
        let mut has_begun = false;
        while !matches!(stage, Stage::Done) {
            // One transaction for all of it, if that can be: then a crash leaves it done or not.
            let credits = if self.map_is_in_inode() {
                self.credits_for_unmap() + self.credits_for_map(2)
            } else {
                u32::MAX
            };
            let credits = credits.min(volume.writer()?.journal.credits_max());
            let done = volume.change_with_space(credits, |handle| step(stage, handle));
            if let Err(error) = done {
                // A part of it is done: neither the map nor the size is what the cache knows.
                if has_begun && error != Error::NoSpace {
                    volume.writer()?.journal.fail(&error);
                }
                return Err(error);
            }
            has_begun = true;
        }
        volume.writer()?.journal.commit_all()
    }

    /// Returns the blocks of a range to collapse or insert, and their number.
    fn moved_blocks(&self, range: &Range<FileOffset>) -> Result<(Range<FileBlock>, u64)> {
        self.check_extents()?;
        self.leave_inline()?;
        let unit = self.allocation_unit();
        if range.start.0 % unit != 0 || range.end.0 % unit != 0 || range.is_empty() {
            return Err(Error::InvalidArgument("the range is not a multiple of the block size"));
        }
        let blocks = self.whole_blocks(range)?;
        self.volume().check_writable()?;
        // What is delayed still has lost its data.
        self.forget_delayed(&(blocks.start..self.map_end()));
        let by = blocks.end.0 - blocks.start.0;
        Ok((blocks, by))
    }

    /// Returns the end of the last mapped block, at least `from`.
    fn last_mapped(&self, from: FileBlock) -> Result<FileBlock> {
        let (mut at, mut last) = (from, from);
        while at < self.map_end() {
            let piece = self.piece_at(at, self.map_end())?;
            if let fs::Piece::Run(_) = piece {
                last = piece.end();
            }
            at = piece.end();
        }
        Ok(last)
    }

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
        // Inline data goes where new files have theirs.
        let gets_extents = self.has(InodeFlags::INLINE_DATA)
            && self.volume().geometry().features.has(Feature::Extent);
        match self.has(InodeFlags::EXTENTS) || gets_extents {
            true => Ok(()),
            false => Err(NEEDS_EXTENTS.into()),
        }
    }
}

fn note_change(record: &mut InodeRecord, time: Timestamp) {
    record.modified = time;
    record.changed = time;
}
