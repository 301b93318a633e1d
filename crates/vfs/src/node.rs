//! One inode of a volume, as its users hold it.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use base::attributes::{Attributes, DirCursor, DirEntry, FileType};
use base::{Error, FileOffset, InodeNumber, Result};
use iomap::FiemapExtent;
use pagecache::Mapping;

use crate::file::File;
use crate::file_system::{FileData, Inode};
use crate::volume::Shared;

/// An inode in use. Two holders of the same number hold the same node.
#[derive(Debug)]
pub struct Node {
    number: InodeNumber,
    kind: FileType,
    inode: Arc<dyn Inode>,
    volume: Arc<Shared>,
    mapping: OnceLock<Arc<Mapping>>,
}

impl Node {
    pub(crate) fn new(number: InodeNumber, inode: Arc<dyn Inode>, volume: Arc<Shared>) -> Self {
        let kind = inode.attributes().kind;
        Self { number, kind, inode, volume, mapping: OnceLock::new() }
    }

    /// The inode number.
    pub fn number(&self) -> InodeNumber {
        self.number
    }

    /// The type.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// What `stat` reports.
    pub fn attributes(&self) -> Attributes {
        self.inode.attributes()
    }

    /// The inode number that `name` stands for in this directory.
    pub fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        self.require_directory()?;
        self.inode.lookup(name)
    }

    /// Calls `emit` for each entry, "." and ".." included, from `from` on until it breaks.
    pub fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.require_directory()?;
        self.inode.read_dir(from, emit)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        match self.kind {
            FileType::Symlink => self.inode.read_link(),
            _ => Err(Error::WrongType("not a symbolic link")),
        }
    }

    /// The names of the extended attributes, with their prefixes.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.inode.list_xattrs()
    }

    /// The value of an extended attribute.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.inode.get_xattr(name)
    }

    /// Opens a regular file for reading.
    pub fn open(self: &Arc<Self>) -> Result<File> {
        match self.kind {
            FileType::Regular => {
                self.inode.data()?;
                Ok(File::new(Arc::clone(self)))
            }
            FileType::Directory => Err(Error::IsDirectory),
            _ => Err(Error::WrongType("not a regular file")),
        }
    }

    /// Calls `emit` for each allocated extent of the file, directory or symbolic link that touches
    /// `range`, in order.
    pub fn extents(
        &self,
        range: Range<FileOffset>,
        emit: &mut dyn FnMut(FiemapExtent) -> ControlFlow<()>,
    ) -> Result<()> {
        iomap::fiemap(self.inode.data()?.mapper, range, emit)
    }

    /// The cached data of a regular file, made when it is first asked for.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.mapping.get_or_init(|| self.volume.new_mapping())
    }

    pub(crate) fn data(&self) -> Result<FileData<'_>> {
        self.inode.data()
    }

    pub(crate) fn volume(&self) -> &Arc<Shared> {
        &self.volume
    }

    fn require_directory(&self) -> Result<()> {
        if self.kind == FileType::Directory { Ok(()) } else { Err(Error::NotDirectory) }
    }
}
