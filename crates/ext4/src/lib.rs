//! The ext2, ext3 and ext4 formats.
//!
//! Each module has one on-disk concept: [`ondisk`] has the layouts, the others turn bytes into validated values.
//! [`Volume::open`] is the way from a device to inodes. Everything read from the device is checked before it is used;
//! an inconsistency is a located [`base::Error::Corrupt`].
#![forbid(unsafe_code)]

// The tests inside the crate use what those outside have.
#[cfg(test)]
extern crate self as ext4;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

pub mod dir;
pub mod fast_commit;
pub mod jbd2;
pub mod mmp;
pub mod ondisk;
pub mod xattr;

mod alloc;
mod bitmap;
mod block_validity;
mod check;
mod clock;
mod data_write;
mod error_log;
mod extent;
mod fallocate;
mod features;
mod file_system;
mod geometry;
mod group;
mod indirect;
mod info;
mod inline;
mod inode;
mod inode_flags;
mod inode_record;
mod inode_write;
mod journal;
mod label;
mod map_write;
mod move_extents;
mod namespace;
mod orphan_file;
mod orphan_list;
mod orphan_write;
mod orphans_found;
mod ranks;
mod recovery;
mod statfs;
mod superblock;
mod superblock_copy;
mod symlink;
mod system_zones;
mod times;
mod volume;
mod writer;

pub use bitmap::Bitmap;
pub use error_log::{RecordedError, RecordedErrors};
pub use features::{Feature, FeatureSet, Features};
pub use file_system::Format;
pub use geometry::{CreatorOs, FILE_BLOCKS_MAX, Geometry, SuperblockCopies};
pub use group::GroupDescriptor;
pub use inode::Inode;
pub use inode_record::{InodeFlags, InodeRecord};
pub use move_extents::CopyData;
pub use namespace::{Named, RenameMode};
pub use recovery::{OrphanReport, RecoveryReport};
pub use superblock::{
    Counts, DirectoryHash, NamedInodes, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock,
};
pub use superblock_copy::SuperblockPlace;
pub use volume::{OpenOptions, Probed, Unrecovered, Volume};

/// The inode of the root directory.
pub const ROOT_INODE: base::InodeNumber = base::InodeNumber(2);
