//! Maps of files on ext4 volumes: loads and stores by pointers together with reads and writes,
//! judged by a model and e2fsck.

mod coherence;
mod limits;
mod model;
mod signals;
mod threads;

use std::ops::Range;
use std::path::{Path, PathBuf};

use base::FileOffset;
use base::attributes::FileType;
use device::OpenDevice;
use iomap::CacheOptions;
use tempfile::TempDir;
use testkit::Mke2fs;
use vfs::{
    Creation, Credentials, File, FileMap, Follow, MapAccess, OpenMode, Volume, VolumeOptions,
};

const WRITE: OpenMode = OpenMode { write: true, append: false };
const PAGE: usize = 4096;

/// An image, and a volume on it that is open for writing.
struct Stage {
    folder: TempDir,
    volume: Option<Volume>,
    cache: CacheOptions,
}

impl Stage {
    fn new(block_bytes: u32, cache_bytes: u64) -> Self {
        let cache = CacheOptions { bytes_max: cache_bytes, ..CacheOptions::default() };
        Self::with(&Mke2fs::new("ext4", block_bytes), cache)
    }

    fn with(mke2fs: &Mke2fs, cache: CacheOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        mke2fs.make(&folder.path().join("image"), None);
        let mut stage = Self { folder, volume: None, cache };
        stage.open();
        stage
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn open(&mut self) {
        self.volume = Some(open(&self.image(), self.cache));
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn make(&self, name: &str) -> File {
        let creation = Creation::of(FileType::Regular, 0o644);
        let root = self.volume().root().unwrap();
        let node = self.volume().create_in(&root, name.as_bytes(), &creation, &Credentials::ROOT);
        node.unwrap().open_for(WRITE).unwrap()
    }

    fn file(&self, name: &str) -> File {
        let path = format!("/{name}");
        self.volume().resolve(path.as_bytes(), Follow::No).unwrap().open_for(WRITE).unwrap()
    }

    /// Closes the volume. Panics if e2fsck finds an inconsistency.
    fn close(&mut self) {
        let volume = self.volume.take().unwrap();
        volume.close().unwrap();
        drop(volume);
        testkit::check_by_e2fsck(&self.image());
    }
}

fn open(image: &Path, cache: CacheOptions) -> Volume {
    let device = device::open(image, OpenDevice { read_only: false, ..OpenDevice::default() });
    let options = VolumeOptions { writable: true, cache, ..VolumeOptions::default() };
    Volume::open_device(device.unwrap(), &options).unwrap()
}

fn bytes(range: Range<u64>) -> Range<FileOffset> {
    FileOffset(range.start)..FileOffset(range.end)
}

fn write(file: &File, at: u64, data: &[u8]) {
    assert_eq!(file.write_at(data, at).unwrap(), data.len());
}

fn read(file: &File, at: u64, length: usize) -> Vec<u8> {
    let mut found = vec![0xEE; length];
    let read = file.read_at(&mut found, at).unwrap();
    found.truncate(read);
    found
}

fn map(file: &File, range: Range<u64>) -> FileMap {
    file.map(bytes(range), MapAccess::ReadWrite).unwrap()
}

/// Loads bytes of a map by a pointer.
fn load(map: &FileMap, range: Range<usize>) -> Vec<u8> {
    assert!(range.end <= map.len());
    let at = |at: usize| {
        // SAFETY: the byte is in the map. Other threads may store to it, but a byte is loaded as a
        // whole.
        unsafe { map.as_ptr().add(at).read_volatile() }
    };
    range.map(at).collect()
}

/// Stores bytes to a map by a pointer.
fn store(map: &FileMap, at: usize, data: &[u8]) {
    assert!(at + data.len() <= map.len());
    for (index, byte) in data.iter().enumerate() {
        // SAFETY: the byte is in the map, and no other thread stores to it.
        unsafe { map.as_ptr().add(at + index).write_volatile(*byte) };
    }
}
