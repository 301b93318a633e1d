//! The two traits that a format implements.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{Attributes, CheckSummary, DirCursor, DirEntry, StatFs, VolumeInfo};
use base::{BlockSize, Error, InodeNumber, Result};
use device::SharedDevice;
use iomap::MapRead;

/// An open volume of some format.
pub trait FileSystem: Send + Sync + Debug {
    /// The inode of `/`.
    fn root(&self) -> InodeNumber;

    /// The size of a block: the unit in which file data is mapped.
    fn block_size(&self) -> BlockSize;

    /// Loads and verifies an inode. `NotFound` when it is not in use, `Corrupt` when its number
    /// is outside the volume. Callers go through the inode table, which loads each only once.
    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>>;

    /// Space and inode counts.
    fn statfs(&self) -> StatFs;

    /// What the volume is, for people.
    fn info(&self) -> VolumeInfo;

    /// Walks the whole volume, which stays as it is, and tells `found` of everything that is
    /// wrong: [`Error::Corrupt`] for an inconsistency, [`Error::Io`] for what could not be read,
    /// [`Error::Unsupported`] for what was left out. It may break the check off.
    fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary;

    /// The device that file data is read from.
    fn device(&self) -> &SharedDevice;
}

/// One inode in memory.
pub trait Inode: Send + Sync + Debug {
    /// What `stat` reports.
    fn attributes(&self) -> Attributes;

    /// The inode that `name` stands for in this directory. `NotFound` and `NotDirectory` as usual. "." and ".." are names like others.
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
}

/// What the I/O path needs to read an inode's data.
#[derive(Clone, Copy)]
pub struct FileData<'a> {
    /// Where its ranges lie.
    pub mapper: &'a dyn MapRead,
    /// Its size in bytes.
    pub size: u64,
}
