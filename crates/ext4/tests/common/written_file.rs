//! A file that is written through the cache, and all that it may hold after a power cut.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::Arc;

use base::FileOffset;
use base::attributes::{DeviceNumber, FileType, Timestamp};
use ext4::{Inode, NewInode, ROOT_INODE, Volume};
use iomap::{
    EndIo, ErrorCursor, MapWrite, PageCache, ReadOptions, WritableFile, truncate_cache,
    wait_for_writeback, write, write_back, write_back_and_wait,
};

use super::common::Image;
use super::namespace::Random;

/// What free blocks hold before anything is written; no file ever does.
pub const STALE: u8 = 0xEE;
const TIME: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 1 };
const SIZE_MAX: u64 = 60_000;

/// The image, with something in each of its free blocks.
pub fn with_stale_blocks(image: &Image) -> Vec<u8> {
    let text = image.dumpe2fs(&[]);
    let size = super::common::number_after(&text, "Block size:").unwrap() as usize;
    let mut bytes = image.bytes();
    for line in text.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for range in line.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|number| number.parse::<usize>().unwrap());
            bytes[first * size..(last + 1) * size].fill(STALE);
        }
    }
    bytes
}

/// A file, and what was in it after each operation.
pub struct WrittenFile {
    pub name: &'static str,
    inode: Arc<Inode>,
    file: Arc<WritableFile>,
    errors: ErrorCursor,
    versions: Vec<Vec<u8>>,
    /// Points of a recording from which on a version, by its index, was durable.
    durable: Vec<(usize, usize)>,
}

impl WrittenFile {
    pub fn new(
        volume: &Arc<Volume>,
        cache: &Arc<PageCache>,
        end_io: &Arc<EndIo>,
        name: &'static str,
    ) -> Self {
        let new = NewInode {
            kind: FileType::Regular,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            device: DeviceNumber::default(),
            target: &[],
            xattrs: &[],
            time: TIME,
        };
        let inode = volume.inode(ROOT_INODE).unwrap().create(name.as_bytes(), &new).unwrap();
        let file = WritableFile::new(
            cache.new_mapping(volume.geometry().block_size),
            Arc::clone(&inode),
            Arc::clone(volume.device()),
            Arc::clone(end_io),
            0,
            ReadOptions::default(),
        );
        let errors = file.errors().cursor();
        Self { name, inode, file, errors, versions: vec![Vec::new()], durable: Vec::new() }
    }

    fn now(&self) -> Vec<u8> {
        self.versions.last().cloned().unwrap_or_default()
    }

    /// At the end as a rule, else in the middle or beyond the end.
    pub fn write_somewhere(&mut self, random: &mut Random) {
        let mut model = self.now();
        let at = match random.below(4) {
            0 => random.below(SIZE_MAX / 2) as usize,
            1 => random.below(model.len() as u64 + 1) as usize,
            _ => model.len(),
        };
        let bits = random.below(14);
        let length = 1 + random.below(1 << bits) as usize;
        let data = vec![1 + random.below(200) as u8; length.min(SIZE_MAX as usize - at)];
        assert_eq!(write(&self.file, FileOffset(at as u64), &data).unwrap(), data.len());
        model.resize(model.len().max(at + data.len()), 0);
        model[at..at + data.len()].copy_from_slice(&data);
        self.versions.push(model);
    }

    /// In the place of all that it holds.
    pub fn write_all(&mut self, data: &[u8]) {
        assert_eq!(write(&self.file, FileOffset(0), data).unwrap(), data.len());
        self.versions.push(data.to_vec());
    }

    pub fn cut_off(&mut self, random: &mut Random) {
        let size = random.below(self.now().len() as u64 + 1);
        self.cut_to(size as usize);
    }

    pub fn cut_to(&mut self, size: usize) {
        let mut model = self.now();
        model.truncate(size);
        truncate_cache(&self.file, size as u64).unwrap();
        self.inode.set_size(size as u64, TIME).unwrap();
        self.versions.push(model);
    }

    pub fn write_back(&self) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
    }

    /// Has what is to be written out get its places, as when writing it has just begun.
    pub fn give_places(&self) {
        for at in (0..self.now().len() as u64).step_by(1024) {
            // Holes get none.
            let _ = self.inode.map_writeback(FileOffset(at), 1024);
        }
    }

    pub fn sync(&mut self) {
        write_back_and_wait(&self.file, 0..u64::MAX);
        self.file.errors().check(&self.errors).unwrap();
        self.inode.sync(false).unwrap();
    }

    /// Notes that the file as it is now is durable.
    pub fn is_durable_from(&mut self, point: usize) {
        self.durable.push((point, self.versions.len() - 1));
    }

    /// The point from which on the file is there.
    pub fn begun(&self) -> usize {
        self.durable.first().map_or(0, |first| first.0)
    }

    /// Whether a cut at `point` may have left this: each byte as it was when the file was synced
    /// last or at some time since, or zero where it was not in the file at some time; and no fewer
    /// or more bytes than at some time.
    pub fn check(&self, point: usize, found: &[u8], place: &str) {
        let durable = self.durable.iter().take_while(|(from, _)| *from <= point).last();
        let since = &self.versions[durable.map_or(0, |(_, version)| *version)..];
        let sizes = since.iter().map(Vec::len);
        let (min, max) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        let (name, length) = (self.name, found.len());
        assert!((min..=max).contains(&length), "{place}: {name} has {length} bytes");
        for (at, byte) in found.iter().enumerate() {
            let was = since.iter().any(|one| one.get(at).copied().unwrap_or(0) == *byte);
            assert!(was, "{place}: {name} has {byte:#x} at {at}, of {length}");
        }
    }
}
