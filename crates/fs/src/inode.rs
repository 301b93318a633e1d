//! The interface of inodes for the vfs: attributes, directories, data and allocation.
//!
//! The caller holds the locks of all inodes that are involved in a call: a call that changes an
//! inode excludes all other calls for it. Only [`Inode::attributes`] may be called at any time. The
//! caller checks permissions, and decides which attributes a new inode inherits.
//!
//! The default of a method that changes an inode fails. Read-only formats need not implement these
//! methods.

use std::any::Any;
use std::fmt::Debug;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use base::attributes::{
    AttributeChange, Attributes, DeviceNumber, DirCursor, DirEntry, FileType, Timestamp, XattrMode,
};
use base::{DeviceOffset, Error, FileOffset, InodeNumber, Result, Unsupported};
use iomap::{EndIo, MapRead, Mapping, ReadOptions, WritableFile};

/// An inode in memory. There is only one for each inode number, apart from deleted inodes.
pub trait Inode: Directory + Data + Allocation + Send + Sync + Debug {
    /// Returns the inode as `Any`. A format downcasts an inode that is an argument of a method to
    /// its own type.
    fn as_any(&self) -> &dyn Any;

    /// Returns the attributes that stat(2) reports.
    fn attributes(&self) -> Attributes;

    /// Returns the target of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>>;

    /// Returns the names of the extended attributes with their prefixes, such as `user.mime_type`.
    /// POSIX ACLs appear as `system.posix_acl_access` and `system.posix_acl_default`.
    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>>;

    /// Returns the value of an extended attribute. POSIX ACLs have the form of getxattr(2). Errors:
    /// `NoAttribute` if there is no attribute of this name.
    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>>;

    /// Returns the digest of a file with fs-verity, in the form of `fsverity digest`; `None` for
    /// other inodes.
    fn verity_digest(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Changes attributes.
    fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        let _ = change;
        Err(Error::ReadOnly)
    }

    /// Sets the flags of FS_IOC_SETFLAGS. Bits of `flags` that users may not change are ignored.
    /// Errors: `NotPermitted` if the inode is immutable before and after the change, and other
    /// flags change.
    fn set_flags(&self, flags: u32, time: Timestamp) -> Result<()> {
        let _ = (flags, time);
        Err(Error::ReadOnly)
    }

    /// Sets the project id. Errors: `Unsupported` if the inode cannot have this one.
    fn set_project(&self, project: u32, time: Timestamp) -> Result<()> {
        let _ = (project, time);
        Err(Unsupported::Operation("changing project ids").into())
    }

    /// Sets an extended attribute, named as in [`get_xattr`](Self::get_xattr), with POSIX ACLs in
    /// the same form, and the attributes in `change` in the same transaction.
    fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        change: &AttributeChange,
    ) -> Result<()> {
        let _ = (name, value, mode, change);
        Err(Error::ReadOnly)
    }

    /// Removes an extended attribute, and sets the attributes in `change` in the same transaction.
    /// Errors: `NoAttribute` if there is no attribute of this name.
    fn remove_xattr(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        let _ = (name, change);
        Err(Error::ReadOnly)
    }

    /// Records a change of cached data at `time`, which changes the inode's times. Starts no
    /// transaction: the times are written with the inode's next change, or by
    /// [`write_pending`](Self::write_pending). May be called concurrently with reads.
    fn note_modified(&self, time: Timestamp) {
        let _ = time;
    }

    /// Records an access to the contents at `time`, which changes the access time. Starts no
    /// transaction, like [`note_modified`](Self::note_modified).
    fn note_accessed(&self, time: Timestamp) {
        let _ = time;
    }

    /// Returns whether there are times for [`write_pending`](Self::write_pending) to write.
    fn has_pending(&self) -> bool {
        false
    }

    /// Writes the times that [`note_modified`](Self::note_modified) and
    /// [`note_accessed`](Self::note_accessed) have recorded.
    fn write_pending(&self) -> Result<()> {
        Ok(())
    }

    /// Deletes an inode without a name after its last use. Called once, as the last call for the
    /// inode.
    fn release(&self) -> Result<()> {
        Err(Error::ReadOnly)
    }

    /// Announces a [`sync`](Self::sync), before the data is written back: a format may choose
    /// blocks for the data so that the sync has less to do.
    fn will_sync(&self) {}

    /// Announces that data is written again to move it, or that this has ended. A format that
    /// [moves data by writing](Allocation::is_moved_by_writing) gives it new blocks meanwhile.
    fn set_moving(&self, is_moving: bool) {
        let _ = is_moving;
    }

    /// Makes the inode durable, with the map of its data in `range`, in bytes. With `data_only`,
    /// makes attributes durable only if reading the data needs them. The data itself is on the
    /// device already.
    fn sync(&self, range: Range<u64>, data_only: bool) -> Result<()> {
        let _ = (range, data_only);
        Ok(())
    }
}

/// The entries of a directory. For inodes of other types, all methods fail.
pub trait Directory {
    /// Returns the inode of `name` in this directory. "." and ".." are names like others. Errors:
    /// `NotFound`, `NotDirectory`.
    fn lookup(&self, name: &[u8]) -> Result<InodeNumber>;

    /// Calls `emit` for each entry from `from` on, including "." and "..", until it breaks or the
    /// directory ends. Each entry has the cursor of the next entry.
    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Creates an inode with a name in this directory. Errors: `Exists` if the name exists.
    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = (name, new);
        Err(Error::ReadOnly)
    }

    /// Creates an inode without a name, in a block group near this directory. It is deleted if it
    /// is released without a name.
    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = new;
        Err(Error::ReadOnly)
    }

    /// Adds a name in this directory to `inode`, which is no directory. Errors: `Exists` if the
    /// name exists.
    fn link(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        let _ = (name, inode, time);
        Err(Error::ReadOnly)
    }

    /// Removes the name of `inode`, which is no directory, from this directory. An inode that has
    /// lost its last name exists until it is released.
    fn unlink(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        let _ = (name, inode, time);
        Err(Error::ReadOnly)
    }

    /// Removes the directory `inode` from this one. Errors: `NotEmpty` if it has names.
    fn rmdir(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        let _ = (name, inode, time);
        Err(Error::ReadOnly)
    }

    /// Renames `moved` from `name` in this directory to `to`. The caller has checked that no
    /// directory is moved into itself, and that the replaced inode is not `moved`.
    fn rename(
        &self,
        name: &[u8],
        moved: &dyn Inode,
        to: RenameTarget<'_>,
        mode: RenameMode<'_>,
        time: Timestamp,
    ) -> Result<()> {
        let _ = (name, moved, to, mode, time);
        Err(Error::ReadOnly)
    }
}

/// The data of a regular file, and the state that writing it needs.
pub trait Data {
    /// Returns the map and the size of a regular file's data. For `fiemap`, also those of a
    /// directory or symbolic link with blocks. Errors: `Unsupported` for files that cannot be read
    /// yet.
    fn data(&self) -> Result<FileData<'_>>;

    /// Returns the state for writing a regular file. `mapping` has its cached data, and `end_io`
    /// completes its writes. Returns `None` if the file cannot be written to.
    fn writable_file(
        &self,
        mapping: Arc<Mapping>,
        end_io: &Arc<EndIo>,
        options: ReadOptions,
    ) -> Result<Option<Arc<WritableFile>>> {
        let _ = (mapping, end_io, options);
        Ok(None)
    }

    /// Fails for a regular file whose data and size the format does not change. Called before the
    /// cache changes any of it.
    fn check_changeable(&self) -> Result<()> {
        Ok(())
    }

    /// Returns how the data is compressed, or `None` if it is not. Errors: `Unsupported` if the
    /// volume has no compressed files.
    fn compression(&self) -> Result<Option<Compression>> {
        Err(Unsupported::Operation("compression").into())
    }

    /// Sets how the data of a compressed file is compressed: the format's number of the algorithm,
    /// and the logarithm to the base 2 of the number of blocks in a cluster. Errors: `FileTooLarge`
    /// for files with blocks; `InvalidArgument` for files that are not compressed, and values that
    /// the format does not have.
    fn set_compression(&self, algorithm: u8, log_cluster_blocks: u8) -> Result<()> {
        let _ = (algorithm, log_cluster_blocks);
        Err(Unsupported::Operation("compression").into())
    }

    /// Frees the blocks that compression saves. Returns their number. The data cannot be changed
    /// afterwards. The cache has no dirty data, and none is in flight. Errors: `InvalidArgument` if
    /// the file is not compressed, or they are free.
    fn release_saved_blocks(&self, time: Timestamp) -> Result<u64> {
        let _ = time;
        Err(Unsupported::Operation("compression").into())
    }

    /// Reserves the blocks that were [released](Self::release_saved_blocks). Returns their number.
    /// The data can be changed afterwards. Errors: `InvalidArgument` if the file is not compressed,
    /// or they were not released.
    fn reserve_saved_blocks(&self, time: Timestamp) -> Result<u64> {
        let _ = time;
        Err(Unsupported::Operation("compression").into())
    }

    /// Starts an atomic write of a regular file: data that is written from now on, and the size,
    /// are shown by reads, but the file on the device stays as it is until
    /// [`commit_atomic_write`](Self::commit_atomic_write). The cache has no dirty data, and none is
    /// in flight. Until the end of the atomic write, the file is not truncated, and its blocks are
    /// not allocated or freed by other calls. Errors: `Unsupported` for files whose data cannot be
    /// written in this way.
    fn start_atomic_write(&self, kind: AtomicWrite) -> Result<()> {
        let _ = kind;
        Err(Unsupported::Operation("atomic writes").into())
    }

    /// Commits the atomic write, durably: gives the file its data, and a size of `size` bytes.
    /// After a crash, the file has all of it or none. The cache has no dirty data, and none is in
    /// flight.
    fn commit_atomic_write(&self, size: u64) -> Result<()> {
        let _ = size;
        Err(Unsupported::Operation("atomic writes").into())
    }

    /// Ends the atomic write, if there is one, and drops its data: the file is as it was before.
    /// The cache has no dirty data, and none is in flight. May be called after the volume was
    /// closed.
    fn abort_atomic_write(&self) {}

    /// Records that the file was opened for writing once more.
    fn opened_for_writing(&self) {}

    /// Records that the file was closed after it was opened for writing.
    fn closed_for_writing(&self) {}
}

/// The compression of a file's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compression {
    /// The format's number of the algorithm.
    pub algorithm: u8,
    /// The logarithm to the base 2 of the number of blocks in a cluster.
    pub log_cluster_blocks: u8,
    /// The number of blocks that compression has saved.
    pub saved_blocks: u64,
}

/// What a file has after an [atomic write](Data::start_atomic_write), besides the data of the
/// write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicWrite {
    /// Its old data, where nothing was written.
    Update,
    /// Nothing: it was empty when the write started.
    Replace,
}

/// The size of a regular file, and the blocks that are allocated for its ranges.
pub trait Allocation {
    /// Returns the maximum size of the inode's data, in bytes.
    fn size_max(&self) -> u64 {
        i64::MAX as u64
    }

    /// Fails if a regular file cannot be truncated to `size`, which is not greater than its size.
    /// Called before the cache changes.
    fn check_truncation(&self, size: u64) -> Result<()> {
        let _ = size;
        Ok(())
    }

    /// Sets the size of a regular file, and the times of its change. Frees the blocks past the
    /// size, unless `keeps_space`.
    fn set_size(&self, size: u64, keeps_space: bool, time: Timestamp) -> Result<()> {
        let _ = (size, keeps_space, time);
        Err(Error::ReadOnly)
    }

    /// Allocates all blocks of a regular file in `range`, also past its end. Blocks without data
    /// read as zeroes. The size stays. Errors: `NoSpace`; then nothing was allocated.
    fn preallocate(&self, range: Range<FileOffset>) -> Result<()> {
        let _ = range;
        Err(Unsupported::Operation("fallocate").into())
    }

    /// Prepares a regular file for [`clear`](Self::clear), before the cache zeroes parts of its
    /// blocks. Formats that store data in the inode move it to blocks.
    fn prepare_to_clear(&self) -> Result<()> {
        Ok(())
    }

    /// Makes whole blocks of a regular file a hole. With `keeps_space`, makes them allocated blocks
    /// that read as zeroes. The cache has no data of these blocks.
    fn clear(&self, range: Range<FileOffset>, keeps_space: bool) -> Result<()> {
        let _ = (range, keeps_space);
        Err(Unsupported::Operation("fallocate").into())
    }

    /// Removes `range` from a regular file of `size` bytes, or inserts a hole there. The data
    /// behind the range moves, and the size changes. The cache has no data from the start of the
    /// range on, and all of it is on the device.
    fn shift(&self, range: Range<FileOffset>, to: Shift, size: u64, time: Timestamp) -> Result<()> {
        let _ = (range, to, size, time);
        Err(Unsupported::Operation("fallocate").into())
    }

    /// Returns how often cleaning has failed to move the blocks of a pinned file, which are written
    /// in place; `None` for a regular file that is not pinned. Errors: `Unsupported` for formats
    /// that never move blocks.
    fn pin_failures(&self) -> Result<Option<u32>> {
        Err(Unsupported::Operation("pinning files").into())
    }

    /// Pins a regular file, or ends that. The cache has no dirty data, and none is in flight.
    /// Errors: `FileTooLarge` for a file that has blocks already; `Unsupported` for formats without
    /// pinned files, and files that cannot be written in place.
    fn set_pinned(&self, is_pinned: bool) -> Result<()> {
        let _ = is_pinned;
        Err(Unsupported::Operation("pinning files").into())
    }

    /// Returns whether the data of a regular file gets other blocks when it is written again.
    fn is_moved_by_writing(&self) -> bool {
        false
    }

    /// Fails with `NoSpace` if `bytes` of data that is written now would be scattered.
    fn check_room_to_move(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Fails for regular files whose blocks cannot be [exchanged](Self::move_extents), or
    /// [moved by writing](Self::is_moved_by_writing).
    fn check_movable(&self) -> Result<()> {
        Err(Unsupported::Operation("moving extents").into())
    }

    /// Exchanges the blocks of a regular file in `range`, which are whole blocks, with those of
    /// `donor` from `to` on. Calls `copy` to copy the data to the new blocks before. Returns the
    /// number of bytes whose move is durable. The range of `donor` reads as zeroes afterwards. The
    /// cache has no data of `donor`, and no I/O is in flight for either file.
    fn move_extents(
        &self,
        range: Range<FileOffset>,
        donor: &dyn Inode,
        to: FileOffset,
        copy: &mut dyn FnMut(Range<FileOffset>, DeviceOffset) -> Result<()>,
    ) -> Result<u64> {
        let _ = (range, donor, to, copy);
        Err(Unsupported::Operation("moving extents").into())
    }

    /// Returns the unit, in bytes, of ranges that can be [shifted](Self::shift).
    fn allocation_unit(&self) -> u64 {
        1
    }
}

/// The attributes of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// The type.
    pub kind: FileType,
    /// The low 12 bits of `st_mode`.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number, for character and block devices.
    pub device: DeviceNumber,
    /// The target, for symbolic links.
    pub target: &'a [u8],
    /// The first extended attributes, named as in [`Inode::get_xattr`].
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
    /// All times of the inode except the time of creation.
    pub time: Timestamp,
    /// The time of creation.
    pub created: Timestamp,
}

/// The kind of a [shift](Allocation::shift).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// The range is removed (FALLOC_FL_COLLAPSE_RANGE).
    Collapse,
    /// A hole is inserted (FALLOC_FL_INSERT_RANGE).
    Insert,
}

/// The new name of a rename.
#[derive(Clone, Copy, Debug)]
pub struct RenameTarget<'a> {
    /// The directory of the new name.
    pub directory: &'a dyn Inode,
    /// The new name.
    pub name: &'a [u8],
    /// The inode that has this name now.
    pub replaced: Option<&'a dyn Inode>,
}

/// The kind of a rename.
#[derive(Clone, Copy, Debug)]
pub enum RenameMode<'a> {
    /// The old name is removed. An inode that has the new name loses it; a directory must be empty.
    Move,
    /// The two names are exchanged.
    Exchange,
    /// A move after which the old name belongs to this inode, which had no name before.
    Whiteout(&'a dyn Inode),
}

/// The parts of an inode that the I/O path needs to read its data.
#[derive(Clone, Copy)]
pub struct FileData<'a> {
    /// The map of the data.
    pub mapper: &'a dyn MapRead,
    /// The size in bytes.
    pub size: u64,
}
