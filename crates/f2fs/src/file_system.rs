//! The implementation of the traits of [`fs`] for f2fs volumes.
//! Not here: the format.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{Attributes, CheckSummary, DirCursor, DirEntry, StatFs, VolumeInfo};
use base::{BlockSize, Error, InodeNumber, Result, Unsupported};
use device::SharedDevice;
use fs::{Allocation, Data, Directory, FileData, FileSystem};
use iomap::PageCache;

use crate::inode::Inode;
use crate::superblock::Superblock;
use crate::volume::Volume;

/// The format f2fs.
#[derive(Clone, Debug, Default)]
pub struct Format {}

impl fs::Format for Format {
    fn is_on(&self, device: &SharedDevice) -> Result<bool> {
        Superblock::has_magic(device)
    }

    fn has_copy_on(&self, device: &SharedDevice, _cache: &Arc<PageCache>) -> Result<bool> {
        Ok(Superblock::has_copy(device))
    }

    fn open(
        &self,
        device: &SharedDevice,
        cache: &Arc<PageCache>,
        options: &fs::FormatOptions,
    ) -> Result<Arc<dyn FileSystem>> {
        if options.writable {
            return Err(Unsupported::Operation("writing f2fs").into());
        }
        let volume = Volume::open(Arc::clone(device), cache, options)?;
        Ok(Arc::new(F2fs { volume }))
    }
}

#[derive(Debug)]
struct F2fs {
    volume: Arc<Volume>,
}

impl FileSystem for F2fs {
    fn root(&self) -> InodeNumber {
        self.volume.geometry().root
    }

    fn block_size(&self) -> BlockSize {
        self.volume.geometry().block_size
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn fs::Inode>> {
        Ok(Arc::new(self.volume.inode(number)?))
    }

    fn load_kept_inode(&self, number: InodeNumber) -> Result<Arc<dyn fs::Inode>> {
        match self.volume.inode(number) {
            Ok(inode) if inode.attributes().links > 0 => Ok(Arc::new(inode)),
            // The caller may pass any number: this error is no damage of the volume.
            Ok(_) | Err(Error::Corrupt(_)) => Err(Error::NotFound),
            Err(error) => Err(error),
        }
    }

    fn statfs(&self) -> StatFs {
        self.volume.statfs()
    }

    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn warning(&self) -> Option<String> {
        self.volume.warning()
    }

    fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        self.volume.check(found)
    }

    fn device(&self) -> &SharedDevice {
        self.volume.device()
    }
}

impl fs::Inode for Inode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        self.shown_attributes()
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.read_link()
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.list_xattrs()
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr(name)
    }

    fn verity_digest(&self) -> Result<Option<String>> {
        self.verity_digest()
    }
}

impl Directory for Inode {
    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        self.lookup(name)
    }

    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.read_dir(from, emit)
    }
}

impl Data for Inode {
    fn data(&self) -> Result<FileData<'_>> {
        self.check_readable()?;
        Ok(FileData { mapper: self, size: self.attributes().size })
    }
}

impl Allocation for Inode {}
