//! Changes where an inode's data lies: maps blocks, marks them written, unmaps them.
//!
//! - `leaf.rs`, `node.rs`, `tree.rs`, `rewrite.rs`, `patch.rs`: extent trees, without a volume
//! - `pointers.rs`: block maps
//! - `edit.rs`: one change of one inode's map, with its lock and its blocks
//! - `new_blocks.rs`, `convert.rs`, `unmap.rs`, `shift.rs`, `exchange.rs`: the operations
//!
//! Not here: reading maps (`extent/`, `indirect.rs`), the data itself, sizes.
//!
//! An operation that fails with `NoSpace` or `FileTooLarge` has left the map as it was, and the
//! handle too if nothing was changed through it before. Each takes the inode's map exclusively
//! (`extent_status.rs`); the caller keeps the inode's size and kind of map from changing.

mod convert;
mod edit;
mod exchange;
mod leaf;
mod new_blocks;
mod node;
mod patch;
mod pointers;
mod rewrite;
mod shift;
#[cfg(test)]
mod tests;
mod tree;
mod unmap;

use base::FileBlock;
use zerocopy::FromBytes;

use self::edit::{map_credits, tree_credits};
pub(crate) use self::exchange::Pair;
pub(crate) use self::new_blocks::NewBlocks;
pub(crate) use self::node::empty_root;
use crate::alloc::{ALLOCATE_CREDITS, FREE_CREDITS};
use crate::extent::DEPTH_MAX;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::ondisk::extent::RawExtentHeader;

/// The block groups in which one transaction frees blocks, if it can be so many.
const GROUPS_FREED: u32 = 32;

/// How far an operation has come that does as much as its handle has credits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// To its end.
    Done,
    /// To this block; the caller goes on there with another handle.
    More(FileBlock),
}

impl Inode {
    /// Returns the credits that `calls` calls of [`map_new_blocks`](Self::map_new_blocks) or
    /// [`append_block`](Self::append_block) need, or those of
    /// [`convert_written`](Self::convert_written) that stay within one leaf.
    pub(crate) fn credits_for_map(&self, calls: u32) -> u32 {
        // The tree can grow by a level with the first of them.
        let depth = self.map_depth();
        let later = tree_credits(depth.saturating_add(1).min(DEPTH_MAX)) + ALLOCATE_CREDITS;
        let calls = if self.has(InodeFlags::EXTENTS) {
            (tree_credits(depth) + ALLOCATE_CREDITS)
                .saturating_add(later.saturating_mul(calls.saturating_sub(1)))
        } else {
            (map_credits(3) + ALLOCATE_CREDITS).saturating_mul(calls)
        };
        1 + calls
    }

    /// Returns the credits with which [`unmap`](Self::unmap) gets on well, within what a handle can have.
    pub(crate) fn credits_for_unmap(&self) -> u32 {
        self.credits_for_map(1) + 1 + FREE_CREDITS * GROUPS_FREED
    }

    /// Returns whether all of an extent tree lies in the inode.
    pub(crate) fn map_is_in_inode(&self) -> bool {
        self.map_depth() == 0
    }

    fn map_depth(&self) -> u16 {
        let area = self.record().block_area;
        RawExtentHeader::ref_from_prefix(&area)
            .map_or(DEPTH_MAX, |(header, _)| header.depth.get().min(DEPTH_MAX))
    }
}
