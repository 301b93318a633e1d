//! The f2fs format.
//!
//! [`ondisk`] has the layouts. Modules that are named for a structure turn its bytes into validated
//! values. `overlay` has changes in memory since the last checkpoint, `edit` makes them, `live` has
//! inodes that are open for writing, `write` stores blocks and checkpoints, `recovery` brings back
//! what was synced after a checkpoint, and `check` finds inconsistencies. All data from the device
//! is checked before it is used; an inconsistency is a located [`base::Error::Corrupt`].
#![forbid(unsafe_code)]

pub mod compress;
pub mod dir;
pub mod ondisk;
pub mod xattr;

mod check;
mod checkpoint;
mod core;
mod edit;
mod extension;
mod features;
mod file_system;
mod format;
mod geometry;
mod info;
mod inode;
mod live;
mod nat;
mod node;
mod overlay;
mod quota;
mod ranks;
mod recovery;
mod residents;
mod sit;
mod summaries;
mod superblock;
mod temperature;
mod volume;
mod write;

pub use crate::core::Core;
pub use checkpoint::{Checkpoint, VersionBitmap};
pub use features::{Feature, Features};
pub use format::Format;
pub use geometry::{Geometry, SEGMENT_BLOCKS};
pub use inode::Inode;
pub use nat::{Nid, NodeAddress};
pub use recovery::RecoveryReport;
pub use superblock::{Encoding, SUPERBLOCK_BYTES, Superblock};
pub use volume::Volume;
pub use write::Mode;
