//! Marks blocks written when their data is on disk, or unwritten when it is to be forgotten.
//! Not here: how a map says so.

use std::ops::Range;

use base::{Error, FileBlock, Result};
use fs::Run;

use super::Progress;
use super::edit::{Map, MapEdit, tree_credits};
use crate::alloc::Purpose;
use crate::inode::Inode;
use crate::journal::Handle;

impl Inode {
    /// Marks what is allocated of the blocks in `left` written, from its last range on, and takes what is
    /// done out of it, as far as the handle's credits go; those for one call of
    /// [`map_new_blocks`](Self::map_new_blocks) are enough to get on. Leaves `spare` of them, if it can.
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

    /// Marks what is allocated of `count` blocks from `start` unwritten: it reads as zeroes afterwards.
    /// From the first on, as far as the handle's credits go, as above. Not for block maps, which cannot
    /// say that.
    pub(crate) fn convert_unwritten(
        &self,
        handle: &mut Handle<'_>,
        start: FileBlock,
        count: u64,
    ) -> Result<Progress> {
        // What is kept for the end of I/O is for data that would be lost otherwise.
        self.edit_map(handle, Purpose::Metadata, |edit| {
            edit.convert(&(start..FileBlock(start.0.saturating_add(count))), true, true, 0)
        })
    }
}

impl MapEdit<'_, '_, '_> {
    /// Converts a range, as far as space goes, and credits but for `spare`. What `is_first` with the handle
    /// gets on with any, or fails.
    fn convert(
        &mut self,
        range: &Range<FileBlock>,
        unwritten: bool,
        is_first: bool,
        spare: u32,
    ) -> Result<Progress> {
        // A block map has nothing unwritten.
        let Map::Extents(tree) = &mut self.map else { return Ok(Progress::Done) };
        let mut at = range.start;
        while at < range.end {
            let may_stop = at > range.start || !is_first;
            // One for the inode.
            let needed = u64::from(tree_credits(tree.depth()?) + 1 + spare);
            if self.blocks.handle.credits_left() < needed && may_stop {
                return Ok(Progress::More(at));
            }
            let was_touched = std::mem::take(&mut self.blocks.is_touched);
            let step = tree.convert(&mut self.blocks, &(at..range.end), unwritten);
            let is_clean = !self.blocks.is_touched;
            self.blocks.is_touched |= was_touched;
            let (converted, leaf_end) = match step {
                // The next call fails before it changes anything.
                Err(Error::NoSpace) if is_clean && may_stop => return Ok(Progress::More(at)),
                step => step?,
            };
            for run in converted {
                self.change.changed(run.start, run.end(), Some(Run { unwritten, ..run }));
            }
            // The end of the last leaf is that of all files.
            if leaf_end <= at {
                break;
            }
            at = leaf_end;
        }
        Ok(Progress::Done)
    }
}
