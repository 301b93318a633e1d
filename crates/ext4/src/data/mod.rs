//! Data of regular files: writeback, allocation without data, holes, and moves to other blocks.
//! Not here: changes of maps ([`crate::map_write`]).

pub(crate) mod fallocate;
pub(crate) mod move_extents;
pub(crate) mod pointer_reserve;
pub(crate) mod write;
