//! Full f2fs volumes: threads fill a volume, overwrite when it is full, delete files and go on. Data whose write succeeded
//! reaches the device. The judges are a model of each file, and fsck.f2fs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use base::{Error, FileOffset};
use device::MemoryDevice;
use testkit::Random;
use testkit::f2fs::{Kind, check_by_both};
use vfs::{Creation, Credentials, Fallocate, Follow, OpenMode, Privileges, Volume, VolumeOptions};

const ROOT: &Credentials = &Credentials::ROOT;
const WRITE: OpenMode = OpenMode { write: true, append: false };
const BLOCK: u64 = 4096;
const THREADS: u64 = 4;

/// Returns an empty volume's image of `megabytes`.
fn image(megabytes: u64) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    Kind::named("plain").make(&path, megabytes);
    std::fs::read(path).unwrap()
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    // Much less than the data, so that writeback begins early.
    options.cache.bytes_max = 8 << 20;
    Volume::open_device(Arc::clone(device) as _, &options).unwrap()
}

/// Closes the volume, and lets fsck.f2fs and the library check it.
fn close(device: &MemoryDevice, volume: Volume) {
    volume.close().unwrap();
    drop(volume);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, device.snapshot()).unwrap();
    check_by_both(&path);
}

/// A file, and the version of each of its blocks.
struct Model {
    path: String,
    versions: Vec<u32>,
}

impl Model {
    fn data(&self, block: usize) -> Vec<u8> {
        let start = format!("{} {block} {} ", self.path, self.versions[block]);
        start.bytes().cycle().take(BLOCK as usize).collect()
    }

    /// Appends blocks until the volume is full, or up to `blocks_max`. Returns whether it is full.
    fn fill(&mut self, volume: &Volume, blocks_max: usize) -> bool {
        let node = match volume.create_file(self.path.as_bytes(), 0o644, ROOT) {
            Ok(node) => node,
            Err(Error::NoSpace) => return true,
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
                Err(Error::NoSpace) => 0,
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
    fn overwrite(&mut self, volume: &Volume, random: &mut Random, count: u64) {
        let node = volume.resolve(self.path.as_bytes(), Follow::No).unwrap();
        let file = node.open_for(WRITE).unwrap();
        for _ in 0..count {
            let block = random.below(self.versions.len() as u64) as usize;
            self.versions[block] += 1;
            let written = file.write_at(&self.data(block), block as u64 * BLOCK);
            assert_eq!(written, Ok(BLOCK as usize), "{}: block {block}", self.path);
        }
    }

    fn check(&self, volume: &Volume, place: &str) {
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

/// Fills a volume with files whose names begin with `prefix`, of up to `blocks_max` blocks. Returns their models.
fn fill(volume: &Volume, prefix: &str, blocks_max: usize) -> Vec<Vec<Model>> {
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

fn check(volume: &Volume, models: &[Vec<Model>], place: &str) {
    models.iter().flatten().for_each(|model| model.check(volume, place));
}

fn fill_overwrite_and_delete(megabytes: u64, blocks_max: usize, seed: u64) {
    let device = Arc::new(MemoryDevice::new(image(megabytes)));
    let volume = open(&device);
    let before = volume.statfs();
    let mut models = fill(&volume, "first", blocks_max);
    volume.sync().unwrap();
    let full = volume.statfs();
    // A write may need nodes, too, and each thread has tried one of 16 blocks.
    assert!(full.blocks_free < 64, "{} of {} blocks are free", full.blocks_free, before.blocks);
    check(&volume, &models, "full");
    for round in 0..3 {
        thread::scope(|scope| {
            for (thread, models) in models.iter_mut().enumerate() {
                let volume = &volume;
                scope.spawn(move || {
                    let mut random = Random(seed + round * THREADS + thread as u64);
                    for model in models.iter_mut() {
                        let count = model.versions.len() as u64;
                        model.overwrite(volume, &mut random, count);
                    }
                });
            }
        });
        volume.sync().unwrap();
    }
    check(&volume, &models, "overwritten");
    assert_eq!(volume.statfs().blocks_free, full.blocks_free);
    // Deleting, truncating and punching need no free blocks.
    for models in &mut models {
        let half = models.len() / 2;
        for model in models.drain(..half) {
            volume.remove(model.path.as_bytes(), ROOT).unwrap();
        }
        for model in models.iter_mut() {
            let node = volume.resolve(model.path.as_bytes(), Follow::No).unwrap();
            model.versions.truncate(model.versions.len().div_ceil(2));
            node.set_size(model.versions.len() as u64 * BLOCK, Privileges::Keep).unwrap();
        }
    }
    volume.sync().unwrap();
    let freed = volume.statfs().blocks_free - full.blocks_free;
    assert!(freed > before.blocks_free / 3, "{freed} blocks were freed");
    let more = fill(&volume, "again", blocks_max);
    let written: usize = more.iter().flatten().map(|model| model.versions.len()).sum();
    models.extend(more);
    volume.sync().unwrap();
    assert!(written as u64 > freed * 9 / 10, "{written} of {freed} freed blocks could be written");
    check(&volume, &models, "filled again");
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
}

#[test]
fn threads_fill_overwrite_and_delete_large_files() {
    fill_overwrite_and_delete(64, 4096, 1);
}

#[test]
fn threads_fill_overwrite_and_delete_small_files() {
    fill_overwrite_and_delete(64, 32, 2);
}

#[test]
fn files_are_created_until_the_volume_is_full_and_all_are_deleted() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    let before = volume.statfs().blocks_free;
    let mut count = 0;
    loop {
        match volume.create_at(
            format!("/{count}").as_bytes(),
            &Creation::symlink(&[b't'; 3000]),
            ROOT,
        ) {
            Ok(_) => count += 1,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    volume.sync().unwrap();
    let full = volume.statfs().blocks_free;
    assert!(full < 8, "{full} of {before} blocks are free");
    for number in 0..count {
        volume.remove(format!("/{number}").as_bytes(), ROOT).unwrap();
    }
    volume.sync().unwrap();
    let after = volume.statfs().blocks_free;
    // The directory has grown.
    assert!(after + 1000 > before, "{after} of {before} blocks are free again");
    close(&device, volume);
}

#[test]
fn allocated_blocks_of_a_full_volume_can_be_written() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    let node = volume.create_file(b"/allocated", 0o644, ROOT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    let range = FileOffset(0)..FileOffset(4 << 20);
    file.fallocate(Fallocate::Allocate { keep_size: false }, range, Privileges::Keep).unwrap();
    let models = fill(&volume, "file", 4096);
    for at in 0..4 {
        assert_eq!(file.write_at(&vec![7; 1 << 20], at << 20), Ok(1 << 20));
    }
    file.sync_all().unwrap();
    check(&volume, &models, "full");
    close(&device, volume);
}
