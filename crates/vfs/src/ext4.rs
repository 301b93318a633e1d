//! Presents ext2, ext3 and ext4 volumes as [`FileSystem`]s. Not here: anything about the format.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{Attributes, CheckSummary, DirCursor, DirEntry, StatFs, VolumeInfo};
use base::{BlockSize, Error, InodeNumber, Result};
use device::SharedDevice;
use iomap::MapRead;
use pagecache::PageCache;

use crate::file_system::{FileData, FileSystem, Inode};
use crate::volume::VolumeOptions;

/// Opens the volume on `device`, if it has the format's magic number.
pub(crate) fn open(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    options: &VolumeOptions,
) -> Result<Option<Arc<dyn FileSystem>>> {
    if !ext4::Superblock::has_magic(device)? {
        return Ok(None);
    }
    let options = ext4::OpenOptions {
        no_recovery: options.no_recovery,
        journal_device: options.journal_device.clone(),
    };
    let volume = ext4::Volume::open(Arc::clone(device), cache, &options)?;
    Ok(Some(Arc::new(Ext4 { volume })))
}

#[derive(Debug)]
struct Ext4 {
    volume: Arc<ext4::Volume>,
}

impl FileSystem for Ext4 {
    fn root(&self) -> InodeNumber {
        ext4::ROOT_INODE
    }

    fn block_size(&self) -> BlockSize {
        self.volume.geometry().block_size
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        Ok(Arc::new(Ext4Inode { inode: self.volume.inode(number)? }))
    }

    fn statfs(&self) -> StatFs {
        self.volume.statfs()
    }

    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        self.volume.check(found)
    }

    fn device(&self) -> &SharedDevice {
        self.volume.device()
    }
}

#[derive(Debug)]
struct Ext4Inode {
    inode: ext4::Inode,
}

impl Inode for Ext4Inode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        self.inode.attributes()
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        self.inode.lookup(name)
    }

    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inode.read_dir(from, emit)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.inode.read_link()
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.inode.list_xattrs()
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.inode.get_xattr(name)
    }

    fn data(&self) -> Result<FileData<'_>> {
        if !self.inode.has_map() {
            return Err(Error::WrongType("it has no data blocks"));
        }
        self.inode.check_readable()?;
        let mapper: &dyn MapRead = &self.inode;
        Ok(FileData { mapper, size: self.inode.size() })
    }
}
