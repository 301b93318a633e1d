//! ext2, ext3 and ext4 images in user space: the library. The command line is in `main.rs`.
//!
//! An image can be read in any state: a dirty journal is replayed in memory, and the image is not written. Nothing
//! in it is trusted: an inconsistency gives an [`Error`] with the structure and its place.
//!
//! ```
//! use std::ops::ControlFlow;
//! use bifolio::{DirCursor, FileOffset, Follow, Part, VolumeOptions};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let image = folder.path().join("disk.img");
//! # std::fs::create_dir(folder.path().join("tree")).unwrap();
//! # std::fs::write(folder.path().join("tree/hello"), "Hello, world\n").unwrap();
//! # testkit::Mke2fs::new("ext4", 4096).make(&image, Some(&folder.path().join("tree")));
//! let volume = bifolio::open(&image, Part::Whole, &VolumeOptions::default())?;
//! println!("{} with {} free blocks", volume.info().format, volume.statfs().blocks_free);
//!
//! // Names are bytes.
//! let mut names = Vec::new();
//! volume.root()?.read_dir(DirCursor::default(), &mut |entry| {
//!     names.push(entry.name.to_vec());
//!     ControlFlow::Continue(())
//! })?;
//! assert!(names.contains(&b"hello".to_vec()));
//!
//! let node = volume.resolve(b"/hello", Follow::Yes)?;
//! assert_eq!(node.attributes().size, 13);
//!
//! // Data is copied into a buffer …
//! let file = node.open()?;
//! let mut buffer = [0; 5];
//! assert_eq!(file.read_at(FileOffset(7), &mut buffer)?, 5);
//! assert_eq!(&buffer, b"world");
//!
//! // … or lent from the cache, without a copy, for as long as the slice is held.
//! let slice = file.lend(FileOffset(0), usize::MAX)?;
//! assert_eq!(&slice[..], b"Hello, world\n");
//! # Ok::<(), bifolio::Error>(())
//! ```
//!
//! To change an image, open it for writing. Until it is closed, other programs must not use it.
//!
//! ```
//! use bifolio::{Credentials, FileOffset, OpenMode, Part, Privileges, VolumeOptions};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let image = folder.path().join("disk.img");
//! # testkit::Mke2fs::new("ext4", 4096).make(&image, None);
//! let volume = bifolio::open_for_writing(&image, Part::Whole, &VolumeOptions::default())?;
//! let node = volume.create_file(b"/new", 0o644, &Credentials::ROOT)?;
//! let file = node.open_for(OpenMode { write: true, ..OpenMode::default() })?;
//! file.write_at(FileOffset(0), b"Written\n", Privileges::Keep)?;
//!
//! // When this succeeds, all of it is durable. `File::sync` and `Volume::sync` do that earlier.
//! volume.close()?;
//! # Ok::<(), bifolio::Error>(())
//! ```
//!
//! [`Volume`], [`Node`] and [`File`] can be shared between threads; cached reads do not wait for one
//! another. [`VolumeOptions`] limits the memory of the cache. [`File::uncached`], and for one call
//! [`RwFlags::dontcache`] (RWF_DONTCACHE), keep data that is used once from evicting other data.
//! [`File::read_direct`], [`File::write_direct`] and [`File::submit_direct`] do not use the cache. [`File::map`]
//! maps a range of a file into memory. [`File::move_extents`] and [`Volume::defragment`] move a file to other
//! blocks.
#![forbid(unsafe_code)]

use std::path::Path;

pub use base::attributes::{
    AttributeChange, Attributes, CheckSummary, Detail, DeviceNumber, DirCursor, DirEntry, FileType,
    StatFs, Timestamp, VolumeInfo, XattrMode,
};
pub use base::space::Acting;
pub use base::{
    BlockSize, Corrupt, DeviceOffset, Error, FileOffset, InodeNumber, IoError, Patience, Place,
    Problem, Result, Unsupported,
};
pub use device::partition::{Partition, PartitionTable};
pub use device::{BlockDevice, MemoryDevice, OpenDevice, Part, SharedDevice};
pub use iomap::{
    CacheOptions, Caching, DirectOptions, FiemapExtent, FiemapFlags, FolioSlice, ReadOptions,
    SplitExtents,
};
pub use vfs::{
    Creation, Credentials, Defragmented, DirectIo, ErrorPolicy, Ext4Format, Fallocate, File,
    FileMap, Follow, Layout, MapAccess, MapAdvice, MapSync, Node, OpenMode, Privileges,
    RenameFlags, RwFlags, SuperblockPlace, SyncRange, Volume, VolumeOptions, WriteAt, WriteSync,
};

/// Opens the volume on a part of `image`, a file or a block device, read-only. For other devices,
/// there is [`Volume::open`].
pub fn open(image: &Path, part: Part, options: &VolumeOptions) -> Result<Volume> {
    let device = device::open(image, OpenDevice { part, ..OpenDevice::default() })?;
    Volume::open(device, &VolumeOptions { writable: false, ..options.clone() })
}

/// Opens the volume on a part of `image` for reading and writing. The caller [closes](Volume::close) it; otherwise
/// it is left as after a crash. Errors: [`Error::Open`] with EBUSY if another program has the image open. Loop
/// devices of the host that use the image are not noticed.
pub fn open_for_writing(image: &Path, part: Part, options: &VolumeOptions) -> Result<Volume> {
    let read_only = false;
    let device = device::open(image, OpenDevice { part, read_only, ..OpenDevice::default() })?;
    Volume::open(device, &VolumeOptions { writable: true, ..options.clone() })
}
