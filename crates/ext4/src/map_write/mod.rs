//! Changes of an inode's map: mapping, converting and unmapping of blocks.
//!
//! - `leaf.rs`, `node.rs`, `tree.rs`, `rewrite.rs`, `patch.rs`: extent trees, without a volume
//! - `pointers.rs`: block maps
//! - `edit.rs`: one change of one inode's map, with its lock and its blocks
//! - `new_blocks.rs`, `given.rs`, `convert.rs`, `unmap.rs`, `shift.rs`, `exchange.rs`: the
//!   operations
//!
//! Not here: reading maps (`extent/`, `indirect/`), the data itself, sizes.
//!
//! An operation that fails with `NoSpace` or `FileTooLarge` has not changed the map, and has not
//! changed the handle if that had no changes before. Each operation locks the inode's map
//! exclusively (`fs/extent_status.rs`). The caller ensures that the inode's size and kind of map do
//! not change.

mod convert;
mod edit;
mod exchange;
mod given;
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

pub(crate) use self::edit::units_per_cluster;
use self::edit::{map_credits, tree_credits};
pub(crate) use self::exchange::Pair;
pub(crate) use self::new_blocks::{NewBlocks, block_beside};
pub(crate) use self::node::empty_root;
pub(crate) use self::pointers::{NEEDS_EXTENTS, NO_CLUSTERS};
use crate::alloc::{ALLOCATE_CREDITS, FREE_CREDITS};
use crate::extent::DEPTH_MAX;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::ondisk::extent::RawExtentHeader;

/// Maximum number of block groups in which one transaction frees blocks, if its credits reach.
const GROUPS_FREED: u32 = 32;

/// The progress of an operation that does as much as its handle has credits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// The operation is complete.
    Done,
    /// The operation has stopped at this block. The caller continues there with another handle.
    More(FileBlock),
}

impl Inode {
    /// Returns the credits that `calls` calls of [`map_new_blocks`](Self::map_new_blocks) or
    /// [`append_block`](Self::append_block) need, or those of
    /// [`convert_written`](Self::convert_written) that stay within one leaf.
    pub(crate) fn credits_for_map(&self, calls: u32) -> u32 {
        // The first call may add a level to the tree.
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

    /// Returns the credits with which [`unmap`](Self::unmap) is efficient, within the limits of a
    /// handle.
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
