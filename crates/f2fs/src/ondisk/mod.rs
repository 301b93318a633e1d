//! Layouts of the structures on the device, one file per structure.
//!
//! All numbers are little-endian. The source of the layouts is the kernel's documentation of f2fs
//! and the headers of f2fs-tools.

pub mod checkpoint;
pub mod cluster;
pub mod dentry;
pub mod nat;
pub mod node;
pub mod sit;
pub mod summary;
pub mod superblock;
pub mod xattr;
