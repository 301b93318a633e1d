//! Data of regular files: writeback into blocks, preallocation and holes, moves to other blocks.
//!
//! The maps that lead to the blocks are changed in [`crate::map_write`].

pub(crate) mod fallocate;
pub(crate) mod move_extents;
pub(crate) mod write;
