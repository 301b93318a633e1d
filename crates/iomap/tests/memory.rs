//! The memory of the process while far more is read than the cache may hold. Alone in its process,
//! so that nobody else's memory counts.

mod support;

use std::fs;
use std::sync::Arc;

use base::{DeviceOffset, Error, FileOffset, Result};
use device::{Bio, BlockDevice, SharedDevice};
use iomap::{ReadOptions, Readahead, read};
use support::{ModelFile, Random, block_size, cache};

/// A device without memory of its own: each byte says where it lies.
#[derive(Debug)]
struct Pattern(u64);

fn pattern(at: u64) -> u8 {
    (at >> 12) as u8 ^ (at >> 20) as u8
}

impl BlockDevice for Pattern {
    fn size(&self) -> u64 {
        self.0
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn submit(&self, batch: Vec<Bio>) {
        for mut bio in batch {
            let mut at = bio.offset().0;
            for memory in bio.memory_mut() {
                for page in memory.chunks_mut(4096) {
                    page.fill(pattern(at));
                    at += page.len() as u64;
                }
            }
            bio.end(Ok(()));
        }
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: DeviceOffset, _: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }
}

/// The memory of this process that is in RAM, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a Linux host");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    kibibytes << 10
}

#[test]
fn memory_stays_below_the_limit_and_a_mebibyte() {
    const LIMIT: u64 = 64 << 20;
    let size = 16 << 30;
    let device: SharedDevice = Arc::new(Pattern(size));
    let file = ModelFile::contiguous(block_size(4096), 0, 0, &[]);
    let file =
        ModelFile { size, maps: vec![iomap::Iomap { length: size, ..file.maps[0] }], ..file };
    // Not zeroes, which would be no memory yet.
    let mut buffer = vec![1; 1 << 20];
    let before = resident();
    let cache = cache(LIMIT, 9);
    let mapping = cache.new_mapping(block_size(4096));
    let context = file.context(&mapping, &device, ReadOptions::default());
    let mut random = Random(5);
    // Scattered single pages: the most index for the least data.
    for _ in 0..100_000 {
        let at = random.below(size >> 12) << 12;
        let readahead = Readahead::default();
        readahead_nowhere(&context, &readahead);
        read(&context, &readahead, FileOffset(at), &mut buffer[..4096]).expect("readable");
        assert!(buffer[..4096].iter().all(|&byte| byte == pattern(at)));
    }
    let scattered = resident();
    for at in (0..1 << 30).step_by(1 << 20) {
        read(&context, &Readahead::default(), FileOffset(at), &mut buffer).expect("readable");
    }
    let stats = cache.stats();
    assert!(stats.bytes_reclaimed > 1 << 30);
    for (when, now) in [("scattered", scattered), ("in order", resident())] {
        assert!(now - before <= LIMIT + (1 << 20), "{when}: {} KiB", (now - before) >> 10);
    }
    // And it is used: the index of scattered pages takes part of it, but not much.
    assert!(stats.bytes_resident_max > LIMIT / 10 * 9);
}

/// Has the next read be one that does not follow the one before.
fn readahead_nowhere(context: &iomap::ReadContext<'_>, readahead: &Readahead) {
    read(context, readahead, FileOffset(0), &mut [0]).expect("readable");
}
