//! ext2, ext3, ext4 and f2fs images in user space: the library. The command line is in `main.rs`.
//!
//! An image can be read in any state: a dirty journal is replayed in memory, and the image is not
//! written. Nothing in it is trusted: an inconsistency is an [`Error`] with the structure and its
//! location. The library does not confine the process that uses it, as the command line does: a
//! program that reads images of strangers should have few rights.
//!
//! # Calls as in the standard library
//!
//! [`VolumeOptions`] open the volume on an image. [`Volume`] has the calls of [`std::fs`] except
//! `canonicalize` and `copy`, and [`File`] those of [`std::fs::File`] and of `FileExt` except
//! `try_clone`, `set_times` and locks, with the same names and meanings. Files are
//! [`Read`](std::io::Read), [`Write`](std::io::Write) and [`Seek`](std::io::Seek). `?` converts an
//! [`Error`] to an [`std::io::Error`], and the other way round. [`Volume::get_xattr`] and others
//! have the names and arguments of the calls for extended attributes, and take paths.
//!
//! In the package's `examples/`, `first.rs` shows most of it, and `copy.rs` copies files into an
//! image and out of it with [`std::io::copy`].
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let image = folder.path().join("disk.img");
//! # std::fs::create_dir(folder.path().join("tree")).unwrap();
//! # std::fs::write(folder.path().join("tree/hello"), "Hello, world\n").unwrap();
//! # testkit::Mke2fs::new("ext4", 4096).make(&image, Some(&folder.path().join("tree")));
//! use bifolio::VolumeOptions;
//!
//! let volume = VolumeOptions::new().open(&image)?;
//! println!("{} with {} free blocks", volume.info().format, volume.statfs().blocks_free);
//!
//! for entry in volume.read_dir("/")? {
//!     let entry = entry?;
//!     println!("{} has {} bytes", entry.path().display(), entry.metadata()?.len());
//! }
//!
//! assert_eq!(volume.read_to_string("/hello")?, "Hello, world\n");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! To change an image, open it for writing, and close it at the end. Until then, other programs
//! must not use it. A volume that is dropped instead is left as after a crash: its journal is
//! replayed when it is next opened, and one without a journal needs e2fsck.
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let image = folder.path().join("disk.img");
//! # testkit::Mke2fs::new("ext4", 4096).make(&image, None);
//! use bifolio::{OpenOptions, VolumeOptions};
//!
//! let volume = VolumeOptions::new().writable(true).open(&image)?;
//! volume.create_dir_all("/var/log")?;
//! volume.write("/var/log/first", "Written\n")?;
//!
//! // `create` and `write` replace an existing file; `create_new` does not.
//! let refused = OpenOptions::new().write(true).create_new(true).open(&volume, "/var/log/first");
//! assert_eq!(refused.unwrap_err(), bifolio::Error::Exists);
//!
//! // When this succeeds, all of it is durable. `File::sync_all` and `Volume::sync` do that
//! // earlier.
//! volume.close()?;
//! # Ok::<(), bifolio::Error>(())
//! ```
//!
//! # Differences from the standard library
//!
//! - Paths have the volume's root as their root: a relative path begins there, too, and neither
//!   ".." nor a symbolic link leads out of the volume. The limit of a path is 64 KiB, with all
//!   symbolic links in it, and not 4 KiB.
//! - The calls act as root, without a umask: new files have the permissions 0o644, and new
//!   directories 0o755.
//! - Only regular files can be opened. Directories fail with [`Error::IsDirectory`], and other
//!   types with [`Error::WrongType`].
//! - A volume that is dropped without [`Volume::close`] is left as after a crash. Writes
//!   reach an image when they are synced or written back, or when the volume is closed.
//! - A read or write of a file is shorter than requested only at the end of the file, or after an
//!   error.
//! - [`Attributes`] stand for `Metadata`, with its methods. Their fields are the values as the
//!   volume stores them: times are [`Timestamp`]s, and permissions a number.
//! - Entries of a directory borrow the [`Volume`], and `file_name` returns a borrowed name.
//! - Access times are not kept by default: see [`AccessOptions`].
//! - `remove_dir_all` refuses the root, and paths that end in "." or "..", with
//!   [`Error::InvalidArgument`].
//! - There are no `copy`, `canonicalize`, `try_clone`, `set_times` and file locks.
//!   [`std::io::copy`] copies contents, [`File::set_modified`] or [`Node::set_attributes`] set
//!   times, and `&File` can be read and written by several users.
//! - Errors are the library's own [`Error`], except in the traits of `std::io`. `?` converts them.
//!
//! # More than the standard library
//!
//! Bytes can be lent from the cache, without a copy, for as long as the slice is held:
//!
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let image = folder.path().join("disk.img");
//! # std::fs::create_dir(folder.path().join("tree")).unwrap();
//! # std::fs::write(folder.path().join("tree/hello"), "Hello, world\n").unwrap();
//! # testkit::Mke2fs::new("ext4", 4096).make(&image, Some(&folder.path().join("tree")));
//! # let volume = bifolio::VolumeOptions::new().open(&image)?;
//! use bifolio::FileOffset;
//!
//! let slice = volume.open("/hello")?.lend(FileOffset(7), usize::MAX)?;
//! assert_eq!(&slice[..], b"world\n");
//! # Ok::<(), bifolio::Error>(())
//! ```
//!
//! [`Volume`], [`Node`] and [`File`] can be shared between threads; cached reads do not wait for
//! one another. [`VolumeOptions`] limits the memory of the cache. [`File::uncached`], and for one
//! call [`RwFlags::dontcache`] (RWF_DONTCACHE), keep data that is used once from evicting other
//! data. [`File::read_direct`], [`File::write_direct`] and [`File::submit_direct`] do not use the
//! cache. [`File::map`] maps a range of a file into memory. [`File::move_extents`] and
//! [`Volume::defragment`] move a file to other blocks.
//!
//! # For servers
//!
//! A [`Node`] is an inode that stays the same while its names change. [`Volume::lookup`],
//! [`Volume::create_in`], [`Volume::rename_in`] and others take directories as nodes, names as
//! bytes, and the [`Credentials`] of the user who made the request; [`Volume::create_at`] and
//! others take paths as bytes. [`File::write_with`] takes the [`Privileges`] of a writer.
//! [`Volume::open_device`] opens a volume on any [`BlockDevice`].
//!
//! # Requirements
//!
//! Linux, and Rust 1.87.
#![forbid(unsafe_code)]

pub use base::attributes::{
    AttributeChange, Attributes, CheckSummary, Detail, DeviceNumber, DirCursor,
    DirEntry as NodeEntry, FileType, StatFs, Timestamp, VolumeInfo, XattrMode,
};
pub use base::space::ReserveAccessGuard;
pub use base::{
    BlockSize, Container, Corrupt, DeviceOffset, Error, FileBlock, FileOffset, FsBlock,
    GroupNumber, HostError, InodeNumber, IoError, IoOperation, Location, Problem, Result,
    Unsupported, WaitCallback,
};
pub use device::open as open_device;
pub use device::partition::{Partition, PartitionTable, SectorSize, TableKind};
pub use device::{
    Backend, Bio, BioOperation, BlockDevice, MemoryDevice, OpenDevice, Part, Segment, SharedDevice,
    Slice, SparseDevice,
};
pub use iomap::{
    CacheOptions, CacheStats, Caching, DirectOptions, DirtyStats, FiemapExtent, FiemapFlags,
    FolioSlice, ReadOptions, SplitExtents,
};
pub use vfs::{
    AccessOptions, AccessTimes, AtomicWrite, CheckObserver, CheckProgress, Cleaning, Compression,
    Creation, Credentials, Defragmented, DirEntry, DirectIo, ErrorPolicy, Ext4Format,
    F2fsAlgorithm, F2fsCompressedNames, F2fsCompression, F2fsFormat, F2fsMode, Fallocate, File,
    FileMap, Follow, Keys, Layout, MapAccess, MapAdvice, MapSync, Node, OpenMode, OpenOptions,
    Privileges, RangeCleaning, ReadDir, RenameFlags, RwFlags, SuperblockLocation, SyncRange,
    Volume, VolumeOptions, WriteAt, WriteSync,
};

/// Types that can be shared between threads.
const _: () = {
    const fn is_shared_between_threads<T: Send + Sync>() {}
    is_shared_between_threads::<Volume>();
    is_shared_between_threads::<Node>();
    is_shared_between_threads::<File>();
    is_shared_between_threads::<FileMap>();
    is_shared_between_threads::<FolioSlice>();
    is_shared_between_threads::<ReadDir<'_>>();
    is_shared_between_threads::<VolumeOptions>();
    is_shared_between_threads::<Error>();
};
