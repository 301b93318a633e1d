//! Volumes in memory, and models of their files. Not here: the tests.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use base::{BlockSize, Error, FileOffset};
use device::{MemoryDevice, SharedDevice};
use testkit::Random;
use testkit::f2fs::make::{MakeOptions, make_file};
use testkit::f2fs::{BLOCK_SIZE, Kind, check_by_both, check_kinds_of_sections, findings};
use vfs::{Credentials, F2fsMode, Follow, OpenMode, Volume, VolumeOptions};

pub const ROOT: &Credentials = &Credentials::ROOT;
pub const WRITE: OpenMode = OpenMode { write: true, append: false };
/// The size of a block of a model, which is a part of a block of a volume with blocks of 16 KiB.
pub const BLOCK: u64 = 4096;
pub const THREADS: u64 = 4;
/// The version of a block that is a hole.
const HOLE: u32 = u32::MAX;

/// Returns an empty volume's image of `megabytes`.
pub fn image(megabytes: u64) -> Vec<u8> {
    image_of("plain", megabytes)
}

/// Returns an empty volume's image of a kind.
pub fn image_of(kind: &str, megabytes: u64) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    Kind::named(kind).make(&path, megabytes);
    std::fs::read(path).unwrap()
}

/// Returns an empty volume's image with blocks of 16 KiB, which mkfs.f2fs does not make.
pub fn image_with_blocks_of_16k(megabytes: u64) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let block_size = BlockSize::from_shift(14).unwrap();
    make_file(&path, &MakeOptions::new(block_size, megabytes << 20));
    std::fs::read(path).unwrap()
}

pub fn open(device: &Arc<MemoryDevice>) -> Volume {
    open_on(Arc::clone(device) as _)
}

pub fn open_on(device: SharedDevice) -> Volume {
    open_in(device, F2fsMode::Adaptive)
}

pub fn open_in(device: SharedDevice, mode: F2fsMode) -> Volume {
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    // Much less than the data, so that writeback begins early.
    options.cache.bytes_max = 8 << 20;
    options.f2fs.mode = mode;
    // On a busy machine, any test may be idle long enough.
    options.f2fs.cleans_in_background = false;
    Volume::open_device(device, &options).unwrap()
}

/// Closes the volume, and lets fsck.f2fs and the library check it. fsck.f2fs cannot read blocks of
/// 16 KiB.
pub fn close(device: &MemoryDevice, volume: Volume) {
    let block_size = volume.statfs().block_size;
    volume.close().unwrap();
    drop(volume);
    if block_size > BLOCK_SIZE {
        let device = MemoryDevice::new(device.snapshot());
        return assert_eq!(findings(Arc::new(device)), [""; 0]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, device.snapshot()).unwrap();
    check_by_both(&path);
    let superblock = f2fs::Superblock::read(&(Arc::new(MemoryDevice::new(device.snapshot())) as _));
    let per_section = superblock.unwrap().geometry.segments_per_section;
    check_kinds_of_sections(&path, per_section as usize);
}

/// A file, and the version of each of its blocks.
#[derive(Clone)]
pub struct Model {
    pub path: String,
    pub versions: Vec<u32>,
}

impl Model {
    pub fn data(&self, block: usize) -> Vec<u8> {
        if self.versions[block] == HOLE {
            return vec![0; BLOCK as usize];
        }
        let start = format!("{} {block} {} ", self.path, self.versions[block]);
        start.bytes().cycle().take(BLOCK as usize).collect()
    }

    /// Appends blocks until the volume is full, or up to `blocks_max`. Returns whether it is full.
    pub fn fill(&mut self, volume: &Volume, blocks_max: usize) -> bool {
        let node = match volume.create_file(self.path.as_bytes(), 0o644, ROOT) {
            Ok(node) => node,
            Err(Error::NoSpace | Error::NoInodes) => return true,
            Err(error) => panic!("{error}"),
        };
        let file = node.open_for(WRITE).unwrap();
        while self.versions.len() < blocks_max {
            let first = self.versions.len();
            self.versions.extend([0; 16]);
            let data: Vec<u8> =
                (first..self.versions.len()).flat_map(|block| self.data(block)).collect();
            let written = match file.write_at(&data, first as u64 * BLOCK) {
                Ok(written) => written as u64 / BLOCK,
                Err(Error::NoSpace | Error::NoInodes) => 0,
                Err(error) => panic!("{error}"),
            };
            self.versions.truncate(first + written as usize);
            if written < 16 {
                return true;
            }
        }
        false
    }

    /// Overwrites blocks at random.
    pub fn overwrite(&mut self, volume: &Volume, random: &mut Random, count: u64) {
        let node = volume.resolve(self.path.as_bytes(), Follow::No).unwrap();
        let file = node.open_for(WRITE).unwrap();
        for _ in 0..count {
            let block = random.below(self.versions.len() as u64) as usize;
            self.versions[block] = self.versions[block].wrapping_add(1);
            let written = file.write_at(&self.data(block), block as u64 * BLOCK);
            assert_eq!(written, Ok(BLOCK as usize), "{}: block {block}", self.path);
        }
    }

    /// Overwrites all blocks, in the order of the file.
    pub fn overwrite_all(&mut self, volume: &Volume) {
        let node = volume.resolve(self.path.as_bytes(), Follow::No).unwrap();
        let file = node.open_for(WRITE).unwrap();
        self.versions.iter_mut().for_each(|version| *version += 1);
        let blocks = 0..self.versions.len();
        let data: Vec<u8> = blocks.flat_map(|block| self.data(block)).collect();
        assert_eq!(file.write_at(&data, 0), Ok(data.len()), "{}", self.path);
    }

    /// Records that blocks are holes.
    pub fn punch(&mut self, blocks: Range<usize>) {
        self.versions[blocks].fill(HOLE);
    }

    /// Compares all of the file with the model, by direct reads.
    pub fn check_directly(&self, volume: &Volume, place: &str) {
        let node = volume.resolve(self.path.as_bytes(), Follow::No).unwrap();
        let mut found = vec![0; self.versions.len() * BLOCK as usize];
        let read = node.open().unwrap().read_direct(FileOffset(0), &mut found).unwrap();
        assert_eq!(read, found.len());
        self.compare(&found, place);
    }

    /// Compares the contents of the whole file with the model.
    pub fn compare(&self, found: &[u8], place: &str) {
        for (block, found) in found.chunks(BLOCK as usize).enumerate() {
            let text = String::from_utf8_lossy(&found[..40]).into_owned();
            let path = &self.path;
            assert!(found == self.data(block), "{place}: {path}: block {block} has {text:?}");
        }
    }

    pub fn check(&self, volume: &Volume, place: &str) {
        let node = volume.resolve(self.path.as_bytes(), Follow::No).unwrap();
        let file = node.open().unwrap();
        let mut found = vec![0; BLOCK as usize];
        for block in 0..self.versions.len() {
            file.read_at(&mut found, block as u64 * BLOCK).unwrap();
            let expected = self.data(block);
            let text = String::from_utf8_lossy(&found[..40]).into_owned();
            assert!(found == expected, "{place}: {}: block {block} has {text:?}", self.path);
        }
    }
}

/// Fills a volume with files whose names begin with `prefix`, of up to `blocks_max` blocks. Returns
/// their models.
pub fn fill(volume: &Volume, prefix: &str, blocks_max: usize) -> Vec<Vec<Model>> {
    let number = AtomicU64::new(0);
    thread::scope(|scope| {
        let work = || {
            let mut models = Vec::new();
            loop {
                let path = format!("/{prefix}{}", number.fetch_add(1, Ordering::Relaxed));
                let mut model = Model { path, versions: Vec::new() };
                let is_full = model.fill(volume, blocks_max);
                models.extend(Some(model).filter(|model| !model.versions.is_empty()));
                if is_full {
                    return models;
                }
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn check(volume: &Volume, models: &[Vec<Model>], place: &str) {
    models.iter().flatten().for_each(|model| model.check(volume, place));
}
