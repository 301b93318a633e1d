//! Conversion of blocks: to written ones when their data is on the device, or to unwritten ones to
//! discard their data. Not here: how a map stores this.

use std::ops::Range;

use base::{Error, FileBlock, Result};
use fs::Run;

use super::Progress;
use super::edit::{Map, MapEdit, tree_credits};
use crate::alloc::Purpose;
use crate::inode::Inode;
use crate::journal::Handle;

impl Inode {
    /// Marks the allocated blocks in `left` as written, from its last range on, as far as the
    /// handle's credits reach, and removes the converted parts from `left`. The credits for one
    /// call of [`map_new_blocks`](Self::map_new_blocks) are enough to convert something. Leaves
    /// `spare` credits if possible.
    pub(crate) fn convert_written(
        &self,
        handle: &mut Handle<'_>,
        left: &mut Vec<Range<FileBlock>>,
        spare: u32,
    ) -> Result<()> {
        self.edit_map(handle, Purpose::EndOfIo, |edit| {
            let mut is_first = true;
            while let Some(range) = left.pop() {
                match edit.convert(&range, false, is_first, spare) {
                    Ok(Progress::Done) => is_first = false,
                    Ok(Progress::More(at)) => {
                        left.push(at..range.end);
                        break;
                    }
                    Err(error) => {
                        left.push(range);
                        return Err(error);
                    }
                }
            }
            Ok(())
        })
    }

    /// Marks the allocated blocks among `count` blocks from `start` on as unwritten: they read as
    /// zeroes afterwards. Proceeds from the first block on, as far as the handle's credits reach.
    /// Returns `More` with the block to continue at. Not for block maps, which have no unwritten
    /// blocks.
    pub(crate) fn convert_unwritten(
        &self,
        handle: &mut Handle<'_>,
        start: FileBlock,
        count: u64,
    ) -> Result<Progress> {
        // The reserve for the end of I/O is not used: it is for data that would be lost otherwise.
        self.edit_map(handle, Purpose::Metadata, |edit| {
            edit.convert(&(start..FileBlock(start.0.saturating_add(count))), true, true, 0)
        })
    }
}

impl MapEdit<'_, '_, '_> {
    /// Converts a range, as far as space and credits reach, and leaves `spare` credits. The first
    /// conversion of a handle (`is_first`) converts something, or fails.
    fn convert(
        &mut self,
        range: &Range<FileBlock>,
        unwritten: bool,
        is_first: bool,
        spare: u32,
    ) -> Result<Progress> {
        // A block map has no unwritten blocks.
        let Map::Extents(tree) = &mut self.map else { return Ok(Progress::Done) };
        let mut at = range.start;
        while at < range.end {
            let may_stop = at > range.start || !is_first;
            // One more for the inode.
            let needed = u64::from(tree_credits(tree.depth()?) + 1 + spare);
            if self.blocks.handle.credits_left() < needed && may_stop {
                return Ok(Progress::More(at));
            }
            let was_touched = std::mem::take(&mut self.blocks.is_touched);
            let result = tree.convert(&mut self.blocks, &(at..range.end), unwritten);
            let is_clean = !self.blocks.is_touched;
            self.blocks.is_touched |= was_touched;
            let (converted, leaf_end) = match result {
                // The next call fails before it changes anything.
                Err(Error::NoSpace | Error::Io(_)) if is_clean && may_stop => {
                    return Ok(Progress::More(at));
                }
                result => result?,
            };
            for run in converted {
                self.change.record(run.start, run.end(), Some(Run { unwritten, ..run }));
            }
            // The last leaf ends at the maximum file size.
            if leaf_end <= at {
                break;
            }
            at = leaf_end;
        }
        Ok(Progress::Done)
    }
}
