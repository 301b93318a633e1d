//! A writable file system in memory. It panics if its caller breaks the rules of the traits of
//! `fs`: for locks, for loading each inode once, and for releasing inodes.
//!
//! Each inode has a few blocks of the device for its data. Their written state and all metadata are
//! in memory.

mod inode;
pub mod toy;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use base::attributes::{
    Attributes, CheckSummary, DeviceNumber, FileType, StatFs, Timestamp, VolumeInfo,
};
use base::{BlockSize, DeviceOffset, Error, InodeNumber, Result};
use device::{MemoryDevice, SharedDevice};
use fs::{CheckObserver, FileSystem, Inode, NewInode};

use inode::MemoryInode;

/// The maximum size of an inode's data, in bytes.
pub const DATA_BYTES_MAX: u64 = 16 * BLOCK_BYTES;
/// The block size in bytes.
const BLOCK_BYTES: u64 = 4096;
/// Inodes with lower numbers have room for data.
const INODES_MAX: u64 = 64;

/// The inode number of the root directory.
pub const ROOT: u64 = 2;

/// The file system.
#[derive(Debug)]
pub struct MemoryFileSystem {
    disk: Arc<Disk>,
}

/// The persistent state: inodes by number.
#[derive(Debug)]
pub(crate) struct Disk {
    inodes: Mutex<BTreeMap<u64, Record>>,
    loads: AtomicUsize,
    released: AtomicUsize,
    syncs: AtomicUsize,
    closed: AtomicBool,
    pub(crate) device: SharedDevice,
    writable: bool,
}

/// An inode on disk.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) attributes: Attributes,
    pub(crate) entries: BTreeMap<Vec<u8>, u64>,
    pub(crate) parent: u64,
    pub(crate) target: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The written data blocks.
    pub(crate) written: BTreeSet<u64>,
    /// Version, which grows with each change. An inode in memory with another version is stale.
    pub(crate) version: u64,
}

impl MemoryFileSystem {
    /// Creates a file system with an empty root directory that belongs to root.
    pub fn new() -> Arc<Self> {
        Self::with_mode(true)
    }

    /// Creates a read-only file system with an empty root directory.
    pub fn read_only() -> Arc<Self> {
        Self::with_mode(false)
    }

    fn with_mode(writable: bool) -> Arc<Self> {
        let new = NewInode {
            kind: FileType::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            device: DeviceNumber::default(),
            target: b"",
            xattrs: &[],
            time: Timestamp::default(),
            created: Timestamp::default(),
        };
        let garbage = vec![0xee; (INODES_MAX * DATA_BYTES_MAX) as usize];
        let root = Record::new(ROOT, &new, 2, ROOT);
        Arc::new(Self {
            disk: Arc::new(Disk {
                inodes: Mutex::new(BTreeMap::from([(ROOT, root)])),
                loads: AtomicUsize::default(),
                released: AtomicUsize::default(),
                syncs: AtomicUsize::default(),
                closed: AtomicBool::default(),
                device: Arc::new(MemoryDevice::new(garbage)),
                writable,
            }),
        })
    }

    /// Returns the number of times that an inode was loaded.
    pub fn loads(&self) -> usize {
        self.disk.loads.load(Ordering::Relaxed)
    }

    /// Returns the number of released inodes.
    pub fn released(&self) -> usize {
        self.disk.released.load(Ordering::Relaxed)
    }

    /// Returns the number of times that the volume, or an inode, was made durable.
    pub fn syncs(&self) -> usize {
        self.disk.syncs.load(Ordering::Relaxed)
    }

    /// Returns whether the volume was closed.
    pub fn is_closed(&self) -> bool {
        self.disk.closed.load(Ordering::Relaxed)
    }

    /// Sets the flags of an inode that is not loaded, as chattr does.
    pub fn set_flags(&self, number: InodeNumber, flags: u32) {
        let mut inodes = self.disk.inodes();
        inodes.get_mut(&number.0).expect("the inode is there").attributes.flags = flags;
    }

    /// Adds a directory entry with any inode number, which may be inconsistent.
    pub fn damage_entry(&self, directory: InodeNumber, name: &[u8], number: u64) {
        let mut inodes = self.disk.inodes();
        let record = inodes.get_mut(&directory.0).expect("the directory is there");
        record.entries.insert(name.to_vec(), number);
    }

    /// Returns the number of inodes, including those without a name.
    pub fn inode_count(&self) -> usize {
        self.disk.inodes().len()
    }

    /// Returns the data of an inode that a crash now would leave.
    pub fn on_disk(&self, number: InodeNumber) -> Vec<u8> {
        let record = self.disk.inodes()[&number.0].clone();
        let mut bytes = vec![0; record.attributes.size as usize];
        for (block, bytes) in (0..).zip(bytes.chunks_mut(BLOCK_BYTES as usize)) {
            if record.written.contains(&block) {
                let at = DeviceOffset(number.0 * DATA_BYTES_MAX + block * BLOCK_BYTES);
                self.disk.device.read_at(at, bytes).expect("the device has room for it");
            }
        }
        bytes
    }

    /// Checks that the tree is consistent. Returns the number of inodes without a name.
    pub fn verify(&self) -> usize {
        verify::verify(&self.disk.inodes())
    }
}

impl Disk {
    pub(crate) fn inodes(&self) -> MutexGuard<'_, BTreeMap<u64, Record>> {
        self.inodes.lock().expect("no call has panicked")
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        let writable = self.writable && !self.closed.load(Ordering::Relaxed);
        if writable { Ok(()) } else { Err(Error::ReadOnly) }
    }

    pub(crate) fn note_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_release(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }
}

impl Record {
    pub(crate) fn new(number: u64, new: &NewInode<'_>, links: u32, parent: u64) -> Self {
        let attributes = Attributes {
            inode: InodeNumber(number),
            kind: new.kind,
            permissions: new.permissions,
            links,
            uid: new.uid,
            gid: new.gid,
            size: new.target.len() as u64,
            blocks: 0,
            device: new.device,
            accessed: new.time,
            modified: new.time,
            changed: new.time,
            created: Some(new.time),
            generation: 1,
            flags: 0,
            project: None,
        };
        let owned = |&(name, value): &(&[u8], &[u8])| (name.to_vec(), value.to_vec());
        Self {
            attributes,
            entries: BTreeMap::new(),
            parent,
            target: new.target.to_vec(),
            xattrs: new.xattrs.iter().map(owned).collect(),
            written: BTreeSet::new(),
            version: 0,
        }
    }
}

impl FileSystem for MemoryFileSystem {
    fn root(&self) -> InodeNumber {
        InodeNumber(ROOT)
    }

    fn block_size(&self) -> BlockSize {
        BlockSize::from_bytes(4096).expect("it is one")
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        self.disk.loads.fetch_add(1, Ordering::Relaxed);
        let version = match self.disk.inodes().get(&number.0) {
            Some(record) if record.attributes.links > 0 => record.version,
            _ => return Err(Error::NotFound),
        };
        // Gives other threads the time to load, change and drop the inode concurrently.
        for _ in 0..20 {
            std::thread::yield_now();
        }
        Ok(Arc::new(MemoryInode::new(&self.disk, number.0, version)))
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            block_size: 4096,
            blocks: 100,
            blocks_free: 50,
            blocks_available: 40,
            inodes: 1000,
            inodes_free: 1000 - self.inode_count() as u64,
            name_bytes_max: 255,
        }
    }

    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            format: "memory",
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
        &self.disk.device
    }

    fn is_writable(&self) -> bool {
        self.disk.writable
    }

    fn sync(&self) -> Result<()> {
        self.disk.note_sync();
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.disk.closed.store(true, Ordering::Relaxed);
        Ok(())
    }
}
