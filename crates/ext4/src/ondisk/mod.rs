//! Raw layouts of the structures on a volume. Not here: their meaning. Field names are those of the
//! kernel's "ext4 disk layout" documentation, without the prefix. All numbers are little-endian.

pub mod dir;
pub mod extent;
pub mod group_descriptor;
pub mod inode;
pub mod mmp;
pub mod orphan;
pub mod superblock;
pub mod xattr;
