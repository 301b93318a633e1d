//! Blocks that were freed, and what the device is told of them.

mod common;
#[allow(dead_code, reason = "of it, only the random numbers are used")]
#[path = "common/namespace.rs"]
mod namespace;
#[path = "common/written_file.rs"]
mod written_file;

use std::sync::Arc;

use common::Image;
use device::{MemoryDevice, RecordDevice, SharedDevice};
use ext4::{OpenOptions, ROOT_INODE, Volume};
use iomap::{CacheOptions, EndIo, PageCache};
use namespace::Random;
use written_file::{STALE, WrittenFile, with_stale_blocks};

const KINDS: &[&str] = &[
    "-t ext4 -b 1024 -J size=1",
    "-t ext4 -b 4096 -O bigalloc -C 16384",
    "-t ext3 -b 1024 -J size=1",
];

fn cache() -> Arc<PageCache> {
    PageCache::new(CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() }).unwrap()
}

fn open(device: SharedDevice, discard: bool) -> Arc<Volume> {
    let options = OpenOptions { discard, ..OpenOptions::default() };
    Volume::open_for_writing(device, &cache(), &options).unwrap()
}

#[test]
fn freed_blocks_are_discarded_when_that_is_durable() {
    const DATA: u8 = 0xD7;
    const SIZE: usize = 50_000;
    let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == DATA).count();
    for (options, discard) in KINDS.iter().flat_map(|one| [(one, false), (one, true)]) {
        let arguments: Vec<&str> = options.split_whitespace().collect();
        let inner = Arc::new(MemoryDevice::new(Image::make(16, &arguments).bytes()));
        let device = Arc::new(RecordDevice::new(inner.clone()).unwrap());
        let volume = open(device.clone(), discard);
        let (cache, end_io) = (cache(), EndIo::start().unwrap());
        let mut file = WrittenFile::new(&volume, &cache, &end_io, "a");
        file.write_all(&[DATA; SIZE]);
        file.sync();
        let synced = device.recording().crash_points().end - 1;
        file.cut_to(0);
        volume.sync().unwrap();
        let left = count(&inner.snapshot());
        if !discard {
            assert!(left >= SIZE, "{options}: {left}");
            continue;
        }
        assert!(left < SIZE / 50, "{options}: {left}");
        let recording = device.recording();
        let mut points = synced..recording.crash_points().end;
        let first = points.find(|point| count(&recording.image(*point, |_, _| true)) < SIZE);
        let durable = recording.image(first.unwrap(), |_, _| false);
        let volume = common::open(durable).unwrap();
        let number = volume.inode(ROOT_INODE).unwrap().lookup(b"a").unwrap();
        assert_eq!(
            volume.inode(number).unwrap().size(),
            0,
            "{options}: it comes back without data"
        );
    }
}

#[test]
fn a_power_cut_finds_nothing_discarded_that_is_still_there() {
    for (index, options) in KINDS.iter().enumerate() {
        let arguments: Vec<&str> = options.split_whitespace().collect();
        let image = with_stale_blocks(&Image::make(12, &arguments));
        let device = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(image))).unwrap());
        let volume = open(device.clone(), true);
        let (cache, end_io) = (cache(), EndIo::start().unwrap());
        let mut file = WrittenFile::new(&volume, &cache, &end_io, "a");
        volume.sync().unwrap();
        file.is_durable_from(device.recording().crash_points().end - 1);
        let mut random = Random(70 + index as u64);
        for _ in 0..120 {
            match random.below(8) {
                0..=3 => file.write_somewhere(&mut random),
                4..=5 => file.cut_off(&mut random),
                6 => volume.sync().unwrap(),
                _ => {
                    file.sync();
                    file.is_durable_from(device.recording().crash_points().end - 1);
                }
            }
        }
        let recording = device.recording();
        let (begun, end) = (file.begun(), recording.crash_points().end);
        for _ in 0..100 {
            let point = begun + random.below((end - begun) as u64) as usize;
            let kept_of_8 = random.below(9);
            // The superblock's two sectors are written together.
            let torn = recording.image(point, |write, sector| {
                matches!(write.offset.0 / 512 + sector, 2 | 3) || random.below(8) < kept_of_8
            });
            let place = format!("{options}, cut at {point}");
            let volume = common::open(torn).unwrap_or_else(|error| panic!("{place}: {error}"));
            let root = volume.inode(ROOT_INODE).unwrap();
            let inode = volume.inode(root.lookup(b"a").unwrap()).unwrap();
            let found = common::contents(&volume, &inode);
            assert!(!found.contains(&STALE), "{place}");
            file.check(point, &found, &place);
        }
    }
}
