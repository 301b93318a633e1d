//! A read-only file system without a format, whose inodes a test lists, for tests of the code above
//! the traits of `fs`. Not here: writing.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::attributes::{
    Attributes, CheckSummary, DeviceNumber, DirCursor, DirEntry, FileType, StatFs, Timestamp,
    VolumeInfo,
};
use base::{BlockSize, DeviceOffset, Error, FileOffset, InodeNumber, Location, Problem, Result};
use device::{MemoryDevice, SharedDevice};
use fs::{Allocation, CheckObserver, Directory, FileData, FileSystem, Inode};
use iomap::{Iomap, IomapKind, MapFlags, MapRead, PageCache};
use vfs::{Volume, VolumeOptions};

use crate::must;

/// The inode of the root directory.
pub const ROOT: u64 = 2;
/// The block size in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// The size of the cache, in bytes.
const CACHE_BYTES_MAX: u64 = 4 << 20;

/// The type and the contents of an inode.
#[derive(Clone, Debug)]
pub enum Content {
    /// A directory: names and inode numbers, in the order of listings. "." and ".." are ordinary
    /// names here.
    Directory(Vec<(Vec<u8>, u64)>),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    /// A file with data.
    Regular(Data),
    /// A named pipe.
    Fifo,
    /// An inode with a wrong checksum, which cannot be loaded.
    Corrupt,
}

impl Content {
    /// Returns a directory with these entries.
    pub fn directory(entries: &[(&str, u64)]) -> Self {
        let owned = entries.iter().map(|(name, inode)| (name.as_bytes().to_vec(), *inode));
        Self::Directory(owned.collect())
    }

    /// Returns a symbolic link to `target`.
    pub fn symlink(target: &str) -> Self {
        Self::Symlink(target.as_bytes().to_vec())
    }

    /// Returns a file without data.
    pub fn empty_file() -> Self {
        Self::Regular(Data::default())
    }
}

/// The data of a file.
#[derive(Clone, Default, Debug)]
pub struct Data {
    /// The size in bytes.
    pub size: u64,
    /// The device's block for each block of the file. All other blocks are holes.
    pub blocks: BTreeMap<u64, u64>,
    /// Called before each request for the data or an attribute's value.
    pub before_use: Hook,
    /// Called before each mapping, when the reader may have folios locked.
    pub before_mapping: Hook,
}

/// A function that is called when a file is used. Does nothing by default.
#[derive(Clone, Default)]
pub struct Hook(Option<Arc<dyn Fn() + Send + Sync>>);

impl Hook {
    /// Returns a hook that calls `action`.
    pub fn new(action: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(action)))
    }

    fn call(&self) {
        if let Some(action) = &self.0 {
            action();
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a hook" } else { "no hook" })
    }
}

/// The file system. Its inodes differ only in type, size and contents. Their other attributes are
/// equal, and each has the extended attributes `user.a` and `trusted.b`, of which only the first
/// can be read.
#[derive(Debug)]
pub struct Toy {
    inodes: BTreeMap<u64, Content>,
    device: SharedDevice,
    loads: AtomicUsize,
}

impl Toy {
    /// Creates a file system with these inodes, including [`ROOT`], on a device with the contents
    /// `data`.
    pub fn new(data: Vec<u8>, inodes: impl IntoIterator<Item = (u64, Content)>) -> Arc<Self> {
        Arc::new(Self {
            inodes: inodes.into_iter().collect(),
            device: Arc::new(MemoryDevice::new(data)),
            loads: AtomicUsize::new(0),
        })
    }

    /// Returns a volume of this file system that caches at most `nodes_max` unused nodes.
    pub fn volume(self: &Arc<Self>, nodes_max: usize) -> Volume {
        let mut options = VolumeOptions { nodes_max, ..VolumeOptions::default() };
        options.cache.bytes_max = CACHE_BYTES_MAX;
        let cache = must(PageCache::new(options.cache), "a cache");
        let file_system: Arc<dyn FileSystem> = Arc::<Self>::clone(self);
        must(Volume::with_file_system(file_system, cache, &options), "a volume")
    }

    /// Returns the number of attempts to load an inode.
    pub fn loads(&self) -> usize {
        self.loads.load(Ordering::Relaxed)
    }
}

impl FileSystem for Toy {
    fn root(&self) -> InodeNumber {
        InodeNumber(ROOT)
    }

    fn block_size(&self) -> BlockSize {
        BlockSize::from_bytes(BLOCK_BYTES).expect("a power of two")
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let content = self.inodes.get(&number.0).ok_or(Error::NotFound)?.clone();
        if matches!(content, Content::Corrupt) {
            let problem = Problem::Checksum { stored: 1, computed: 2 };
            return Err(Error::corrupt("inode", Location::inode(number), problem));
        }
        Ok(Arc::new(ToyInode { number, content }))
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            block_size: BLOCK_BYTES as u32,
            blocks: 100,
            blocks_free: 50,
            blocks_available: 40,
            inodes: 30,
            inodes_free: 20,
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

    fn check(&self, _observer: &mut dyn CheckObserver) -> CheckSummary {
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

impl ToyInode {
    fn entries(&self) -> Result<&[(Vec<u8>, u64)]> {
        let Content::Directory(entries) = &self.content else { return Err(Error::NotDirectory) };
        Ok(entries)
    }
}

impl Inode for ToyInode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        let (kind, size) = match &self.content {
            Content::Directory(_) => (FileType::Directory, 0),
            Content::Symlink(_) => (FileType::Symlink, 0),
            Content::Fifo => (FileType::Fifo, 0),
            Content::Regular(data) => (FileType::Regular, data.size),
            Content::Corrupt => unreachable!("it is not loaded"),
        };
        let time = |seconds| Timestamp { seconds, nanoseconds: 5 };
        Attributes {
            inode: self.number,
            kind,
            permissions: 0o4755,
            links: 3,
            uid: 1000,
            gid: 100,
            size,
            blocks: 8,
            device: DeviceNumber { major: 259, minor: 0x12345 },
            accessed: time(-1),
            modified: time(1 << 33),
            changed: time(3),
            created: Some(time(4)),
            generation: 77,
            flags: 0x0008_0030,
            project: Some(42),
        }
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::WrongType("not a symbolic link")),
        }
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(vec![b"user.a".to_vec(), b"trusted.b".to_vec()])
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if let Content::Regular(data) = &self.content {
            data.before_use.call();
        }
        if name == b"user.a" { Ok(b"value".to_vec()) } else { Err(Error::NoAttribute) }
    }
}

impl Directory for ToyInode {
    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        let found = self.entries()?.iter().find(|(entry, _)| entry == name);
        found.map(|(_, inode)| InodeNumber(*inode)).ok_or(Error::NotFound)
    }

    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        for (index, (name, inode)) in (0..).zip(self.entries()?).skip(from.0 as usize) {
            let next = DirCursor(index + 1);
            let entry = DirEntry { name, inode: InodeNumber(*inode), kind: None, next };
            if emit(entry).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl fs::Data for ToyInode {
    fn data(&self) -> Result<FileData<'_>> {
        let Content::Regular(data) = &self.content else {
            return Err(Error::WrongType("no data"));
        };
        data.before_use.call();
        Ok(FileData { mapper: data, size: data.size })
    }
}

impl Allocation for ToyInode {}

impl MapRead for Data {
    fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap> {
        self.before_mapping.call();
        let block = at.0 / BLOCK_BYTES;
        let address = self.blocks.get(&block);
        let end = match address {
            Some(_) => (block + 1) * BLOCK_BYTES,
            None => self.blocks.range(block..).next().map_or(u64::MAX, |(at, _)| at * BLOCK_BYTES),
        };
        let offset = block * BLOCK_BYTES;
        Ok(Iomap {
            offset: FileOffset(offset),
            length: end - offset,
            kind: if address.is_some() { IomapKind::Mapped } else { IomapKind::Hole },
            address: address.map(|block| DeviceOffset(block * BLOCK_BYTES)),
            flags: MapFlags::default(),
        })
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}
