//! The traits between the vfs and the formats, and the parts that formats share.
//!
//! A format implements [`Format`], [`FileSystem`] and [`Inode`]. The vfs uses formats only through
//! these traits. Not here: any one format, and locks of inodes.
#![forbid(unsafe_code)]

pub mod acl;
pub mod quota;
pub mod xattr;

mod check;
mod credentials;
mod delayed;
mod extent_status;
mod extents;
mod file_system;
mod format;
mod free_extents;
mod inode;
mod known_holes;
mod sync_delays;

pub use check::{CheckObserver, CheckProgress, OnFinding, Report};
pub use credentials::Credentials;
pub use delayed::{Around, Delayed};
pub use extent_status::{ExtentStatus, MapChange};
pub use extents::{Piece, RUNS_AT_ONCE, Run, Span};
pub use file_system::{Cleaning, FileSystem, RangeCleaning};
pub use format::{DefaultOptions, ErrorPolicy, Format, FormatOptions};
pub use free_extents::{Extent, FreeExtents};
pub use inode::{
    Allocation, AtomicWrite, Compression, Data, Directory, FileData, Inode, NewInode, RenameMode,
    RenameTarget, Shift,
};
pub use known_holes::KnownHoles;
pub use sync_delays::SyncDelays;
