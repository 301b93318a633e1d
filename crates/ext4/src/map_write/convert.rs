//! Marks blocks written when their data is on disk, or unwritten when it is to be forgotten.
//! Not here: how a map says so.

use base::{Error, FileBlock, Result};

use super::Progress;
use super::edit::{Map, tree_credits};
use crate::alloc::Purpose;
use crate::inode::Inode;
use crate::journal::Handle;
use crate::map::Run;

impl Inode {
    /// Marks what is allocated of `count` blocks from `start` written, from the first on, as far as
    /// the handle's credits go; those for one call of
    /// [`map_new_blocks`](Self::map_new_blocks) are enough to get on.
    pub(crate) fn convert_written(
        &self,
        handle: &mut Handle<'_>,
        start: FileBlock,
        count: u64,
    ) -> Result<Progress> {
        self.convert(handle, start, count, false, Purpose::EndOfIo)
    }

    /// The same the other way round: what is allocated there reads as zeroes afterwards. Not for
    /// block maps, which cannot say that.
    pub(crate) fn convert_unwritten(
        &self,
        handle: &mut Handle<'_>,
        start: FileBlock,
        count: u64,
    ) -> Result<Progress> {
        // What is kept for the end of I/O is for data that would be lost otherwise.
        self.convert(handle, start, count, true, Purpose::Metadata)
    }

    fn convert(
        &self,
        handle: &mut Handle<'_>,
        start: FileBlock,
        count: u64,
        unwritten: bool,
        nodes: Purpose,
    ) -> Result<Progress> {
        self.edit_map(handle, nodes, |edit| {
            // A block map has nothing unwritten.
            let Map::Extents(tree) = &mut edit.map else { return Ok(Progress::Done) };
            let (mut at, end) = (start, FileBlock(start.0.saturating_add(count)));
            while at < end {
                // One for the inode.
                let needed = u64::from(tree_credits(tree.depth()?) + 1);
                if edit.blocks.handle.credits_left() < needed && at > start {
                    return Ok(Progress::More(at));
                }
                let was_touched = std::mem::take(&mut edit.blocks.is_touched);
                let step = tree.convert(&mut edit.blocks, &(at..end), unwritten);
                let is_clean = !edit.blocks.is_touched;
                edit.blocks.is_touched |= was_touched;
                let (converted, leaf_end) = match step {
                    // The next call fails before it changes anything.
                    Err(Error::NoSpace) if is_clean && at > start => return Ok(Progress::More(at)),
                    step => step?,
                };
                for run in converted {
                    edit.change.changed(run.start, run.end(), Some(Run { unwritten, ..run }));
                }
                // The end of the last leaf is that of all files.
                if leaf_end <= at {
                    break;
                }
                at = leaf_end;
            }
            Ok(Progress::Done)
        })
    }
}
