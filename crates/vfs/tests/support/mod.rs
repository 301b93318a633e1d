//! A file system in memory that is just large enough to test the format-independent code.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::attributes::{
    Attributes, CheckSummary, DeviceNumber, DirCursor, DirEntry, FileType, StatFs, Timestamp,
    VolumeInfo,
};
use base::{BlockSize, Error, InodeNumber, Result};
use device::{MemoryDevice, SharedDevice};
use pagecache::PageCache;
use vfs::{FileData, FileSystem, Inode, Volume, VolumeOptions};

/// What an inode is.
#[derive(Clone, Debug)]
pub enum Content {
    Directory(BTreeMap<Vec<u8>, u64>),
    Symlink(Vec<u8>),
    Regular,
}

/// Inode 2 is the root.
#[derive(Debug)]
pub struct ToyFileSystem {
    inodes: BTreeMap<u64, Content>,
    device: SharedDevice,
    pub loads: AtomicUsize,
}

impl ToyFileSystem {
    pub fn new(inodes: impl IntoIterator<Item = (u64, Content)>) -> Arc<Self> {
        Arc::new(Self {
            inodes: inodes.into_iter().collect(),
            device: Arc::new(MemoryDevice::new(vec![0; 4096])),
            loads: AtomicUsize::new(0),
        })
    }
}

/// A volume of this file system that keeps `nodes_max` unused nodes.
pub fn volume(file_system: Arc<ToyFileSystem>, nodes_max: usize) -> Volume {
    let options = VolumeOptions { nodes_max, ..VolumeOptions::default() };
    let cache = PageCache::new(options.cache).unwrap();
    Volume::with_file_system(file_system, cache, &options)
}

/// A directory's entries from names and inode numbers.
pub fn directory(entries: &[(&str, u64)]) -> Content {
    Content::Directory(
        entries.iter().map(|(name, inode)| (name.as_bytes().to_vec(), *inode)).collect(),
    )
}

impl FileSystem for ToyFileSystem {
    fn root(&self) -> InodeNumber {
        InodeNumber(2)
    }

    fn block_size(&self) -> BlockSize {
        BlockSize::from_bytes(4096).unwrap()
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let content = self.inodes.get(&number.0).ok_or(Error::NotFound)?.clone();
        Ok(Arc::new(ToyInode { number, content }))
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            block_size: 4096,
            blocks: 1,
            blocks_free: 0,
            blocks_available: 0,
            inodes: 0,
            inodes_free: 0,
            name_bytes_max: 255,
        }
    }

    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            format: "toy",
            label: Vec::new(),
            uuid: [0; 16],
            features: Vec::new(),
            details: Vec::new(),
        }
    }

    fn check(&self, _found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        CheckSummary::default()
    }

    fn device(&self) -> &SharedDevice {
        &self.device
    }
}

#[derive(Debug)]
struct ToyInode {
    number: InodeNumber,
    content: Content,
}

impl Inode for ToyInode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        let kind = match self.content {
            Content::Directory(_) => FileType::Directory,
            Content::Symlink(_) => FileType::Symlink,
            Content::Regular => FileType::Regular,
        };
        Attributes {
            inode: self.number,
            kind,
            permissions: 0o755,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            device: DeviceNumber::default(),
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            created: None,
            generation: 0,
            flags: 0,
            project: None,
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        let Content::Directory(entries) = &self.content else { return Err(Error::NotDirectory) };
        entries.get(name).copied().map(InodeNumber).ok_or(Error::NotFound)
    }

    fn read_dir(
        &self,
        _from: DirCursor,
        _emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::WrongType("not a symbolic link")),
        }
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn get_xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Error::NoAttribute)
    }

    fn data(&self) -> Result<FileData<'_>> {
        Err(Error::WrongType("no data"))
    }
}
