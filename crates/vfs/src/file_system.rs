//! The two traits that a format implements. What changes something has a default that refuses, for
//! formats and volumes that are only read.
//!
//! Calls that change an inode come one at a time, and none that reads comes meanwhile: the caller
//! holds the locks of all inodes that a call names. [`Inode::attributes`] alone may come at any
//! time. Rights, and what a new inode inherits, are the caller's concern.

use std::any::Any;
use std::fmt::Debug;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use base::attributes::{
    AttributeChange, Attributes, CheckSummary, DeviceNumber, DirCursor, DirEntry, FileType, StatFs,
    Timestamp, VolumeInfo, XattrMode,
};
use base::space::Privilege;
use base::{BlockSize, DeviceOffset, Error, FileOffset, InodeNumber, Result, Unsupported};
use device::SharedDevice;
use iomap::{EndIo, MapRead, ReadOptions, WritableFile};
use pagecache::Mapping;

use crate::rights::Credentials;

/// An open volume of some format.
pub trait FileSystem: Send + Sync + Debug {
    /// The inode of `/`.
    fn root(&self) -> InodeNumber;

    /// The size of a block: the unit in which file data is mapped.
    fn block_size(&self) -> BlockSize;

    /// Loads and verifies an inode. `NotFound` when it is not in use, `Corrupt` when its number
    /// is outside the volume. Callers go through the inode table, which loads each only once.
    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>>;

    /// Loads the inode of a number from a file handle of any age. Fails with `NotFound` if the inode has no
    /// name, or the number cannot be in use.
    fn load_kept_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        self.load_inode(number)
    }

    /// Space and inode counts.
    fn statfs(&self) -> StatFs;

    /// Returns the granularity of inode times, in nanoseconds.
    fn time_granularity(&self) -> u32 {
        1
    }

    /// Which of the volume's free space `by` may have.
    fn privilege_of(&self, by: &Credentials) -> Privilege {
        if by.uid == 0 { Privilege::Root } else { Privilege::None }
    }

    /// Discards the blocks in `bytes` that are free, of runs of at least `bytes_min`. Returns how many
    /// bytes that were.
    fn trim(&self, bytes: Range<u64>, bytes_min: u64) -> Result<u64> {
        let _ = (bytes, bytes_min);
        Err(Unsupported::Operation("discarding free space").into())
    }

    /// The label as it is now, without padding.
    fn label(&self) -> Result<Vec<u8>> {
        Ok(self.info().label)
    }

    /// Sets the label, durably.
    fn set_label(&self, label: &[u8]) -> Result<()> {
        let _ = label;
        Err(Error::ReadOnly)
    }

    /// What the volume is, for people.
    fn info(&self) -> VolumeInfo;

    /// What people should know before they rely on what they read, if there is something.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Walks the whole volume, which stays as it is, and tells `found` of everything that is
    /// wrong: [`Error::Corrupt`] for an inconsistency, [`Error::Io`] for what could not be read,
    /// [`Error::Unsupported`] for what was left out. It may break the check off.
    fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary;

    /// The device that file data is read from.
    fn device(&self) -> &SharedDevice;

    /// Whether the volume is open for writing.
    fn is_writable(&self) -> bool {
        false
    }

    /// Refuses when nothing can be changed any more: a volume that is open for writing may have met
    /// an error that ended all changes.
    fn check_writable(&self) -> Result<()> {
        if self.is_writable() { Ok(()) } else { Err(Error::ReadOnly) }
    }

    /// Hears of a panic in the background, which was reported where it happened: nobody knows what it has
    /// left half done, so that nothing is to be changed any more. `operation` is what cannot be, such as
    /// going on after it.
    fn panicked(&self, operation: &'static str) {
        let _ = operation;
    }

    /// Calls `work`, which writes data back. Commits that are requested meanwhile wait for it, so that they
    /// include its changes. Commits that must make room do not wait.
    fn delay_commits(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// Makes every change up to now durable.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Ends writing: everything is durable, and the volume says that it is sound. Nothing is
    /// changed afterwards.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// One inode in memory. There is one at a time of each number, save one that was deleted.
pub trait Inode: Send + Sync + Debug {
    /// The format's own type, for inodes that are handed to another one's methods.
    fn as_any(&self) -> &dyn Any;

    /// What `stat` reports.
    fn attributes(&self) -> Attributes;

    /// The inode that `name` stands for in this directory. `NotFound` and `NotDirectory` as usual.
    /// "." and ".." are names like others.
    fn lookup(&self, name: &[u8]) -> Result<InodeNumber>;

    /// Calls `emit` for each entry ("." and ".." included) from `from` on, until it breaks or the
    /// directory ends. Each entry carries the cursor of the one after it.
    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The target of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>>;

    /// The names of the extended attributes with their prefixes, such as `user.mime_type`. POSIX
    /// ACLs appear as `system.posix_acl_access` and `system.posix_acl_default`.
    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>>;

    /// The value of an extended attribute; POSIX ACLs in the form that getxattr(2) gives.
    /// `NoAttribute` when there is none of that name.
    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>>;

    /// The data of a regular file (or of a directory or symbolic link that has blocks, for
    /// `fiemap`); refused by name when the file is of a kind that cannot be read yet.
    fn data(&self) -> Result<FileData<'_>>;

    /// Makes an inode with a name in this directory. `Exists` when the name is taken.
    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = (name, new);
        Err(Error::ReadOnly)
    }

    /// Makes an inode without a name, in the neighbourhood of this directory. It is deleted when it
    /// is released before it gets one.
    fn create_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
        let _ = new;
        Err(Error::ReadOnly)
    }

    /// Gives `inode`, which is no directory, one more name, in this directory. `Exists` when it is
    /// taken.
    fn link(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        let _ = (name, inode, time);
        Err(Error::ReadOnly)
    }

    /// Removes the name of `inode`, which is no directory, from this directory. Without any name it
    /// lives on until it is released.
    fn unlink(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        let _ = (name, inode, time);
        Err(Error::ReadOnly)
    }

    /// Removes the directory `inode` from this one. `NotEmpty` when it has names in it.
    fn rmdir(&self, name: &[u8], inode: &dyn Inode, time: Timestamp) -> Result<()> {
        let _ = (name, inode, time);
        Err(Error::ReadOnly)
    }

    /// Gives `moved`, which has `name` in this directory, the name that `to` says instead. The
    /// caller has seen to it that no directory comes to lie within itself, and that what is
    /// replaced is another inode.
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

    /// Changes attributes.
    fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        let _ = change;
        Err(Error::ReadOnly)
    }

    /// Sets those flags that users may change as they are in `flags`, numbered as FS_IOC_GETFLAGS
    /// does. `NotPermitted` when an inode that stays immutable would change.
    fn set_flags(&self, flags: u32, time: Timestamp) -> Result<()> {
        let _ = (flags, time);
        Err(Error::ReadOnly)
    }

    /// The largest size that the inode's data can have, in bytes.
    fn size_max(&self) -> u64 {
        i64::MAX as u64
    }

    /// Sets the size of a regular file, and with it the times of change. What lies past it is given
    /// back, unless `keeps_space`.
    fn set_size(&self, size: u64, keeps_space: bool, time: Timestamp) -> Result<()> {
        let _ = (size, keeps_space, time);
        Err(Error::ReadOnly)
    }

    /// Gives all blocks of a regular file that have bytes of `range` a place, past its end, too. Those
    /// that have no data read as zeroes. All or, with `NoSpace`, nothing. The size stays.
    fn preallocate(&self, range: Range<FileOffset>) -> Result<()> {
        let _ = range;
        Err(Unsupported::Operation("fallocate").into())
    }

    /// Sees to it that the data of a regular file lies in blocks.
    fn leave_inline(&self) -> Result<()> {
        Ok(())
    }

    /// Makes whole blocks of a regular file a hole, or, if they keep their place, read as zeroes. The
    /// cache has nothing of them.
    fn clear(&self, range: Range<FileOffset>, keeps_space: bool) -> Result<()> {
        let _ = (range, keeps_space);
        Err(Unsupported::Operation("fallocate").into())
    }

    /// Takes `range` out of a regular file of `size` bytes, or puts it in as a hole; what lies behind
    /// it moves. The size follows. The cache has nothing from the range's start on, nor is any of it
    /// dirty.
    fn shift(&self, range: Range<FileOffset>, to: Shift, size: u64, time: Timestamp) -> Result<()> {
        let _ = (range, to, size, time);
        Err(Unsupported::Operation("fallocate").into())
    }

    /// Refuses regular files whose blocks cannot be [exchanged](Self::move_extents).
    fn check_movable(&self) -> Result<()> {
        Err(Unsupported::Operation("moving extents").into())
    }

    /// Moves the data that a regular file has in `range`, whole blocks, to the blocks that `donor` has
    /// from `to` on, which gets the old ones for them: to these, `copy` copies data. What `donor` has there
    /// reads as zeroes then. Durable when it returns; gives how many bytes have moved. The cache has
    /// nothing of `donor`, and nothing of either is on its way to the device or from there.
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

    /// What ranges are multiples of by which data can be [shifted](Self::shift), in bytes.
    fn allocation_unit(&self) -> u64 {
        1
    }

    /// Sets an extended attribute, named as [`get_xattr`](Self::get_xattr) does, POSIX ACLs in that
    /// form too; and with it, at once, the attributes in `change`.
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

    /// Removes an extended attribute; and with it, at once, changes the attributes in `change`.
    /// `NoAttribute` when there is none of that name.
    fn remove_xattr(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        let _ = (name, change);
        Err(Error::ReadOnly)
    }

    /// The regular file as one that is written to; `mapping` has its cached data, and what it writes
    /// ends in `end_io`. `None` where the format keeps data by itself, which is then not written.
    fn writable_file(
        &self,
        mapping: Arc<Mapping>,
        end_io: &Arc<EndIo>,
        options: ReadOptions,
    ) -> Result<Option<Arc<WritableFile>>> {
        let _ = (mapping, end_io, options);
        Ok(None)
    }

    /// Somebody opened the file for writing.
    fn opened_for_writing(&self) {}

    /// The same closed it.
    fn closed_for_writing(&self) {}

    /// Notes that the data was changed in the cache at `time`, which changes the times of the inode.
    /// Takes no transaction: they are written with the inode's next change, or by
    /// [`write_pending`](Self::write_pending). May come while others read.
    fn note_modified(&self, time: Timestamp) {
        let _ = time;
    }

    /// Notes that the contents were read at `time`, which changes the access time. Starts no transaction,
    /// like [`note_modified`](Self::note_modified).
    fn note_accessed(&self, time: Timestamp) {
        let _ = time;
    }

    /// Returns whether [`write_pending`](Self::write_pending) has anything to write.
    fn has_pending(&self) -> bool {
        false
    }

    /// Writes the times that [`note_modified`](Self::note_modified) and
    /// [`note_accessed`](Self::note_accessed) have noted.
    fn write_pending(&self) -> Result<()> {
        Ok(())
    }

    /// Nobody uses the inode any more, and it has lost its last name: it is deleted now. Called
    /// once, and nothing else afterwards.
    fn released(&self) -> Result<()> {
        Err(Error::ReadOnly)
    }

    /// Makes the inode durable as it is now; with `data_only`, as far as its data can be read back.
    /// Its data itself is written already.
    fn sync(&self, data_only: bool) -> Result<()> {
        let _ = data_only;
        Ok(())
    }
}

/// What a new inode is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewInode<'a> {
    /// Its type.
    pub kind: FileType,
    /// The low 12 bits of `st_mode`.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// For character and block devices.
    pub device: DeviceNumber,
    /// For symbolic links: what they lead to.
    pub target: &'a [u8],
    /// Extended attributes that it begins with, named as [`Inode::get_xattr`] does.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
    /// All times of the inode but that of its creation.
    pub time: Timestamp,
    /// The time of its creation.
    pub created: Timestamp,
}

/// What becomes of a range by which data moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// It is taken out (FALLOC_FL_COLLAPSE_RANGE).
    Collapse,
    /// A hole is put in (FALLOC_FL_INSERT_RANGE).
    Insert,
}

/// Where a name moves.
#[derive(Clone, Copy, Debug)]
pub struct RenameTarget<'a> {
    /// The directory: the one that the name is in, or another.
    pub directory: &'a dyn Inode,
    /// The new name.
    pub name: &'a [u8],
    /// What has that name now.
    pub replaced: Option<&'a dyn Inode>,
}

/// What becomes of the names of a rename.
#[derive(Clone, Copy, Debug)]
pub enum RenameMode<'a> {
    /// The old name goes. What had the new one loses it; a directory must be empty.
    Move,
    /// Both names stay, each for what the other one stood for.
    Exchange,
    /// As a move, but the old name stands for this inode afterwards, which had none.
    Whiteout(&'a dyn Inode),
}

/// What the I/O path needs to read an inode's data.
#[derive(Clone, Copy)]
pub struct FileData<'a> {
    /// Where its ranges lie.
    pub mapper: &'a dyn MapRead,
    /// Its size in bytes.
    pub size: u64,
}
