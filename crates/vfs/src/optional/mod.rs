//! What only some formats can do.
//!
//! - `atomic.rs`, `pinned.rs`, `compression.rs`: files of f2fs
//! - `defragment.rs`, `write_again.rs`, `move_extents.rs`: moves of data to other blocks

pub(crate) mod atomic;
pub(crate) mod compression;
pub(crate) mod defragment;
pub(crate) mod move_extents;
pub(crate) mod pinned;
pub(crate) mod write_again;
