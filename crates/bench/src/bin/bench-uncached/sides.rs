//! The sides: the library in this process, and the running kernel on a loop device.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::FileOffset;
use bench::image::Image;
use bench::mount::{Mount, Mounter};
use device::{Bio, BioOperation, OpenDevice, SharedDevice};
use pagecache::CacheOptions;
use rustix::io::ReadWriteFlags;
use testkit::{DeviceHooks, HookedDevice};
use vfs::{Creation, Credentials, OpenMode, Privileges, RwFlags, Volume, VolumeOptions, WriteAt};

/// The flag RWF_DONTCACHE.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// An open file of a side.
pub trait Target: Send + Sync {
    /// Reads all of `buffer`.
    fn read(&self, at: u64, buffer: &mut [u8]);
    /// Writes all of `data`.
    fn write(&self, at: u64, data: &[u8]);
    /// Calls fsync(2), or its equivalent.
    fn sync(&self);
}

/// A volume on an image, opened by the library.
pub struct Library {
    pub volume: Volume,
    device: Arc<HookedDevice<Hooks>>,
    _image: Image,
}

impl Library {
    pub fn new(image: Image, cache_bytes: u64) -> Self {
        let open = OpenDevice { read_only: false, ..OpenDevice::default() };
        let inner = device::open(image.path(), open).expect("the image");
        let device = Arc::new(HookedDevice::new(inner, Hooks::default()));
        let cache = CacheOptions { bytes_max: cache_bytes, ..CacheOptions::default() };
        let options = VolumeOptions { cache, writable: true, ..VolumeOptions::default() };
        let shared = Arc::clone(&device) as SharedDevice;
        let volume = Volume::open_device(shared, &options).expect("a volume");
        Self { volume, device, _image: image }
    }

    /// Opens the file `name`. Creates it if it does not exist.
    pub fn file(&self, name: &str, dontcache: bool) -> Box<dyn Target> {
        let root = self.volume.root().expect("a root");
        let node = self.volume.lookup(&root, name.as_bytes()).or_else(|_| {
            let what = Creation::of(base::attributes::FileType::Regular, 0o644);
            self.volume.create_in(&root, name.as_bytes(), &what, &Credentials::ROOT)
        });
        let mode = OpenMode { write: true, ..OpenMode::default() };
        let file = node.expect("a file").open_for(mode).expect("an open file");
        Box::new(Ours { file, flags: RwFlags { dontcache, ..RwFlags::default() } })
    }

    /// Makes the device end large requests at once without transferring data. So the measured cost
    /// is the library's alone.
    pub fn skip_transfers(&self) {
        self.device.skips_transfers.store(true, Ordering::Relaxed);
    }

    /// Returns the number of bytes that the device has read so far.
    pub fn bytes_read(&self) -> u64 {
        self.device.read.load(Ordering::Relaxed)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.volume.close().expect("a sound volume");
        }
    }
}

struct Ours {
    file: vfs::File,
    flags: RwFlags,
}

impl Target for Ours {
    fn read(&self, at: u64, buffer: &mut [u8]) {
        let read = self.file.read_with(FileOffset(at), buffer, self.flags).expect("a read");
        assert_eq!(read, buffer.len(), "read in part");
    }

    fn write(&self, at: u64, data: &[u8]) {
        let at = WriteAt::Offset(FileOffset(at));
        let written = self.file.write_with(at, data, Privileges::Keep, self.flags);
        assert_eq!(written.expect("a write"), data.len(), "written in part");
    }

    fn sync(&self) {
        self.file.sync_all().expect("a durable file");
    }
}

/// The kernel's mount of an image.
pub struct Kernel {
    mount: Mount,
    _image: Image,
}

impl Kernel {
    pub fn new(image: Image) -> Self {
        Self { mount: Mount::new(&image.path(), Mounter::Kernel), _image: image }
    }

    /// Opens the file `name`. Creates it if it does not exist.
    pub fn file(&self, name: &str, dontcache: bool) -> Box<dyn Target> {
        let path: &Path = &self.mount.path().join(name);
        let open = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let flags = if dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
        Box::new(Theirs { file: open.expect("a file"), flags })
    }
}

struct Theirs {
    file: File,
    flags: ReadWriteFlags,
}

impl Target for Theirs {
    fn read(&self, at: u64, buffer: &mut [u8]) {
        let length = buffer.len();
        let mut buffers = [IoSliceMut::new(buffer)];
        let read = rustix::io::preadv2(&self.file, &mut buffers, at, self.flags);
        assert_eq!(read.expect("a read"), length, "read in part");
    }

    fn write(&self, at: u64, data: &[u8]) {
        let written = rustix::io::pwritev2(&self.file, &[IoSlice::new(data)], at, self.flags);
        assert_eq!(written.expect("a write"), data.len(), "written in part");
    }

    fn sync(&self) {
        self.file.sync_all().expect("a durable file");
    }
}

/// Hooks that count the bytes read, and may skip transfers.
#[derive(Default, Debug)]
struct Hooks {
    read: AtomicU64,
    skips_transfers: AtomicBool,
}

/// Writes to each page of a read's memory, so that all pages are present, as after a transfer.
fn touch_pages(memory: &mut [u8]) {
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
}

/// The minimum size of a request for a stream's data. Requests for metadata are smaller.
const LARGE: u64 = 64 << 10;

impl DeviceHooks for Hooks {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let reads = batch.iter().filter(|bio| bio.operation() == BioOperation::Read);
        self.read.fetch_add(reads.map(Bio::length).sum(), Ordering::Relaxed);
        if !self.skips_transfers.load(Ordering::Relaxed) {
            return device.submit(batch);
        }
        let (large, small): (Vec<Bio>, _) =
            batch.into_iter().partition(|bio| bio.length() >= LARGE);
        device.submit(small);
        for mut bio in large {
            if bio.operation() == BioOperation::Read {
                bio.memory_mut().for_each(touch_pages);
            }
            bio.end(Ok(()));
        }
    }
}
