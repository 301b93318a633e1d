//! The sides: each is a way of reading the same files.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use device::SharedDevice;
use iomap::ReadOptions;
use pagecache::CacheOptions;
use rustix::fs::Advice;
use testkit::LoopMount;
use testkit::encryption::master_keys;
use vfs::{Follow, Volume, VolumeOptions};

use crate::buffer::Buffer;
use crate::case::{Case, Content, State};
use crate::image::{FILE_BYTES, Image, name};

/// A function that fills a buffer from an offset of the file.
pub type Read<'a> = Box<dyn FnMut(u64, &mut [u8]) + Send + 'a>;

/// A way of reading.
pub trait Side {
    /// Returns the heading of the column.
    fn name(&self) -> &'static str;

    /// Brings the caches into the state of the case.
    fn prepare(&mut self, case: &Case);

    /// Returns a function with which one thread reads.
    fn reader<'a>(&'a self, case: &Case) -> Read<'a>;
}

/// Returns all sides, in the order of the columns.
pub fn all(image: &Image) -> Vec<Box<dyn Side>> {
    let defaults = ReadOptions::default();
    let open = image.opener();
    let ours = |name, order, read| -> Box<dyn Side> {
        Box::new(Ours::new(Arc::clone(&open), name, order, read))
    };
    let large = CacheOptions::default().folio_order_max;
    vec![
        Box::new(Memory { source: Buffer::new(FILE_BYTES as usize) }),
        Box::new(Kernel { mount: image.mount(), cached: None }),
        ours("ours", large, defaults),
        ours("order 0", 0, defaults),
        ours("no batch", large, ReadOptions { batch_pending_accounting: false, ..defaults }),
        ours("no skip", large, ReadOptions { skip_folio_state: false, ..defaults }),
        ours(
            "neither",
            large,
            ReadOptions { batch_pending_accounting: false, skip_folio_state: false, ..defaults },
        ),
    ]
}

/// Copies from memory to memory: the upper limit.
struct Memory {
    source: Buffer,
}

impl Side for Memory {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn prepare(&mut self, _: &Case) {}

    fn reader<'a>(&'a self, _: &Case) -> Read<'a> {
        Box::new(|at, buffer| {
            buffer.copy_from_slice(&self.source[at as usize..at as usize + buffer.len()]);
        })
    }
}

/// The running kernel's ext4, through pread(2).
struct Kernel {
    mount: LoopMount,
    /// The contents of the file that is cached.
    cached: Option<Content>,
}

impl Kernel {
    fn open(&self, content: Content) -> std::fs::File {
        std::fs::File::open(self.mount.path().join(name(content))).expect("a file of the image")
    }
}

impl Side for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn prepare(&mut self, case: &Case) {
        if case.state == State::Cached {
            if self.cached != Some(case.content) {
                read_all(&mut *self.reader(case));
            }
            self.cached = Some(case.content);
        } else {
            let file = self.open(case.content);
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("advice");
            self.cached = None;
        }
    }

    fn reader<'a>(&'a self, case: &Case) -> Read<'a> {
        let file = self.open(case.content);
        Box::new(move |at, buffer| {
            let read = rustix::io::pread(&file, &mut *buffer, at).expect("a read");
            assert_eq!(read, buffer.len());
        })
    }
}

/// A function that opens the device of an image.
pub type Opener = Arc<dyn Fn() -> SharedDevice>;

/// The library in this process.
pub struct Ours {
    name: &'static str,
    open: Opener,
    cache: CacheOptions,
    read: ReadOptions,
    /// The folder of the file, unless it is in the root.
    folder: Option<&'static str>,
    volume: Option<Volume>,
    /// The state of the volume's cache.
    state: Option<(State, Content)>,
}

/// The limit of a cache with space for a whole file.
const LARGE_CACHE: u64 = 2 * FILE_BYTES;
/// The limit of a cache that is smaller than a file.
const SMALL_CACHE: u64 = FILE_BYTES / 4;

impl Ours {
    /// Returns a side that reads the device with folios up to an order, and with `read`.
    pub fn new(open: Opener, name: &'static str, folio_order_max: u8, read: ReadOptions) -> Self {
        let cache = CacheOptions { folio_order_max, ..Default::default() };
        Self { name, open, cache, read, folder: None, volume: None, state: None }
    }

    /// Reads the file in a folder instead of that in the root.
    pub fn below(self, folder: Option<&'static str>) -> Self {
        Self { folder, ..self }
    }

    fn open_volume(&mut self, bytes_max: u64) {
        self.volume = None;
        let cache = CacheOptions { bytes_max, ..self.cache };
        self.volume = Some(open_volume((self.open)(), cache, self.read));
    }
}

/// Opens the volume of a device.
pub fn open_volume(device: SharedDevice, cache: CacheOptions, read: ReadOptions) -> Volume {
    let keys = Arc::new(master_keys());
    let options = VolumeOptions { cache, read, keys, ..Default::default() };
    Volume::open_device(device, &options).expect("a volume")
}

/// Opens one of the files in the volume's root.
pub fn open_file(volume: &Volume, content: Content) -> vfs::File {
    open_path(volume, name(content))
}

fn open_path(volume: &Volume, path: &Path) -> vfs::File {
    let node = volume.resolve(path.as_os_str().as_bytes(), Follow::No);
    let node: Arc<vfs::Node> = node.expect("a file of the image");
    node.open().expect("a regular file")
}

impl Side for Ours {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&mut self, case: &Case) {
        let wanted = (case.state, case.content);
        match case.state {
            State::Cold => self.open_volume(LARGE_CACHE),
            // The cache is already in this state. A file larger than the cache is never cached when
            // it is read again.
            _ if self.state == Some(wanted) => {}
            State::Cached | State::Full => {
                self.open_volume(if case.state == State::Full { SMALL_CACHE } else { LARGE_CACHE });
                read_all(&mut *self.reader(case));
            }
        }
        self.state = Some(wanted);
    }

    fn reader<'a>(&'a self, case: &Case) -> Read<'a> {
        let volume = self.volume.as_ref().expect("a volume was opened");
        let file =
            open_path(volume, &Path::new(self.folder.unwrap_or("")).join(name(case.content)));
        Box::new(move |at, buffer| {
            let read = file.read_at(buffer, at).expect("a read");
            assert_eq!(read, buffer.len());
        })
    }
}

fn read_all(read: &mut (dyn FnMut(u64, &mut [u8]) + Send)) {
    let mut buffer = vec![0; 1 << 20];
    for at in (0..FILE_BYTES).step_by(buffer.len()) {
        read(at, &mut buffer);
    }
}
