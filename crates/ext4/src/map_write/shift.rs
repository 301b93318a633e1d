//! Shifts of a file's extents to lower or higher blocks of the file.
//! Not here: the file's size, and the cache, which has no data of them during the shift.

use std::ops::Range;

use base::{FileBlock, Result};

use super::Progress;
use super::edit::tree_credits;
use super::tree::Tree;
use crate::alloc::Purpose;
use crate::inode::Inode;
use crate::journal::Handle;
use crate::layout::geometry::FILE_BLOCKS_MAX;

impl Inode {
    /// Splits the extent that contains `at`, if any, so that an extent begins there. Blocks for
    /// nodes are allocated for the purpose `nodes`. Takes the credits of one call of
    /// [`map_new_blocks`](Self::map_new_blocks).
    pub(crate) fn split_extent(
        &self,
        handle: &mut Handle<'_>,
        at: FileBlock,
        nodes: Purpose,
    ) -> Result<()> {
        self.edit_map(handle, nodes, |edit| {
            let (tree, store) = edit.tree()?;
            tree.split(store, at)
        })
    }

    /// Splits extents at both ends of `range`, if that takes no new node. Returns whether they were
    /// split. Takes the credits for a change of one leaf.
    pub(crate) fn split_ends_in_place(
        &self,
        handle: &mut Handle<'_>,
        range: &Range<FileBlock>,
    ) -> Result<bool> {
        self.edit_map(handle, Purpose::EndOfIo, |edit| {
            let (tree, store) = edit.tree()?;
            tree.split_ends(store, range)
        })
    }

    /// Shifts all extents from `from` on by `by` blocks towards the start, over a hole of that
    /// size: from the first leaf on, as far as the handle's credits reach. Returns `More` with the
    /// block to continue at. Takes no space.
    pub(crate) fn shift_left(
        &self,
        handle: &mut Handle<'_>,
        from: FileBlock,
        by: u64,
    ) -> Result<Progress> {
        self.edit_map(handle, Purpose::Metadata, |edit| {
            edit.change.invalidate_from(FileBlock(from.0 - by));
            // Otherwise, the first leaf may exceed the credits.
            let had_changes = edit.blocks.handle.has_changes();
            let mut at = from;
            loop {
                let left = edit.blocks.handle.credits_left();
                let (tree, store) = edit.tree()?;
                let path = tree.path(store, at)?;
                let (end, has_any) = (path.range().end, !path.extents().is_empty());
                let is_first = at == from && !had_changes;
                if left < credits(tree)? && !is_first {
                    return Ok(Progress::More(at));
                }
                if has_any {
                    tree.shift(store, path, at, |start| FileBlock(start.0 - by))?;
                }
                if end.0 >= FILE_BLOCKS_MAX {
                    return Ok(Progress::Done);
                }
                at = end;
            }
        })
    }

    /// Shifts the extents that begin in `range` by `by` blocks towards the end, from the last leaf
    /// on, as far as the handle's credits reach. Returns `More(end)` if the extents from the
    /// range's start to `end` are left. A hole of `by` blocks must follow the range, and no extent
    /// may cross its start. Takes no space.
    pub(crate) fn shift_right(
        &self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
        by: u64,
    ) -> Result<Progress> {
        self.edit_map(handle, Purpose::Metadata, |edit| {
            edit.change.invalidate_from(range.start);
            let mut end = range.end;
            loop {
                let left = edit.blocks.handle.credits_left();
                let (tree, store) = edit.tree()?;
                let found = tree.extent_before(store, end)?;
                let Some((_, path)) = found.filter(|(last, _)| last.start >= range.start) else {
                    return Ok(Progress::Done);
                };
                if left < credits(tree)? && end < range.end {
                    return Ok(Progress::More(end));
                }
                let start = path.range().start;
                tree.shift(store, path, range.start, |start| FileBlock(start.0 + by))?;
                if start <= range.start {
                    return Ok(Progress::Done);
                }
                end = start;
            }
        })
    }
}

/// Returns the credits for one leaf and the inode.
fn credits(tree: &Tree<'_>) -> Result<u64> {
    Ok(u64::from(tree_credits(tree.depth()?) + 1))
}
