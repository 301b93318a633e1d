//! The memory of the process while far more data is read than the cache may hold. The only test of
//! its process, so that no other memory counts.

mod support;

use std::fs;
use std::sync::Arc;

use base::{DeviceOffset, Error, FileOffset, Result};
use device::{Bio, BlockDevice, SharedDevice};
use iomap::{ReadOptions, Readahead, read};
use support::{ModelFile, Random, block_size, cache};

/// A device without memory of its own: each byte depends on its offset.
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

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a Linux host");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    kibibytes << 10
}

#[test]
fn memory_stays_within_the_limit_and_one_mebibyte() {
    const LIMIT: u64 = 64 << 20;
    let size = 16 << 30;
    let device: SharedDevice = Arc::new(Pattern(size));
    let file = ModelFile::contiguous(block_size(4096), 0, 0, &[]);
    let file =
        ModelFile { size, maps: vec![iomap::Iomap { length: size, ..file.maps[0] }], ..file };
    // Not zeroes, which would not be resident yet.
    let mut buffer = vec![1; 1 << 20];
    let before = resident();
    let cache = cache(LIMIT, 9);
    let mapping = cache.new_mapping(block_size(4096));
    let context = file.context(&mapping, &device, ReadOptions::default());
    let mut random = Random(5);
    // Random single pages need the most memory for the index.
    for _ in 0..100_000 {
        let at = random.below(size >> 12) << 12;
        let readahead = Readahead::default();
        break_sequence(&context, &readahead);
        read(&context, &readahead, FileOffset(at), &mut buffer[..4096]).expect("readable");
        assert!(buffer[..4096].iter().all(|&byte| byte == pattern(at)));
    }
    let after_random = resident();
    for at in (0..1 << 30).step_by(1 << 20) {
        read(&context, &Readahead::default(), FileOffset(at), &mut buffer).expect("readable");
    }
    let stats = cache.stats();
    assert!(stats.bytes_reclaimed > 1 << 30);
    for (when, now) in [("random", after_random), ("in order", resident())] {
        assert!(now - before <= LIMIT + (1 << 20), "{when}: {} KiB", (now - before) >> 10);
    }
    // The data uses most of the limit; the index of random pages takes a small part.
    assert!(stats.bytes_resident_max > LIMIT / 10 * 9);
}

/// Reads the start of the file, so that the next read does not continue a sequence.
fn break_sequence(context: &iomap::ReadContext<'_>, readahead: &Readahead) {
    read(context, readahead, FileOffset(0), &mut [0]).expect("readable");
}
