//! The ext2, ext3 and ext4 formats.
//!
//! [`ondisk`] has the layouts. Modules that are named for a structure turn its bytes into validated
//! values. `alloc`, `map_write`, `data` and `namespace` change the volume in transactions of
//! `journal`, [`jbd2`] has the log, `recovery` replays it, and `check` finds inconsistencies.
//! [`Volume::open`] opens a device, and the volume returns inodes. All data from the device is
//! checked before it is used; an inconsistency is a located [`base::Error::Corrupt`].
#![forbid(unsafe_code)]

// Lets the shared test code name this crate as the tests outside do.
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
mod block_validity;
mod check;
mod clock;
mod core;
mod data;
mod encryption;
mod extent;
mod features;
mod file_system;
mod indirect;
mod inode;
mod journal;
mod journal_map;
mod layout;
mod map_walk;
mod map_write;
mod namespace;
mod open;
mod orphans;
mod ranks;
mod recovery;
mod superblock;
mod system_zones;
mod volume;

pub use crate::core::Core;
pub use alloc::bitmap::Bitmap;
pub use data::move_extents::CopyData;
pub use features::{Feature, FeatureSet, Features};
pub use file_system::Format;
pub use inode::Inode;
pub use inode::record::{InodeFlags, InodeRecord};
pub use layout::geometry::{CreatorOs, FILE_BLOCKS_MAX, Geometry, SuperblockCopies};
pub use layout::group::GroupDescriptor;
pub use namespace::{Named, RenameMode};
pub use ondisk::superblock::SUPERBLOCK_OFFSET;
pub use superblock::copy::SuperblockLocation;
pub use superblock::error_log::{RecordedError, RecordedErrors};
pub use superblock::{Counts, DirectoryHash, NamedInodes, SUPERBLOCK_BYTES, Superblock};
pub use volume::Volume;
pub use volume::options::OpenOptions;
pub use volume::probe::{Probed, Unrecovered};
pub use volume::report::{OrphanReport, RecoveryReport};

/// Number of the root directory's inode.
pub const ROOT_INODE: base::InodeNumber = base::InodeNumber(2);
