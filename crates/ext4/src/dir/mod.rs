//! Directories: entries in blocks, the hash index, listing and lookup.

pub mod block;
pub mod hash;
pub mod index;
