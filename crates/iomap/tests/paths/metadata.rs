//! Reads and changes of metadata blocks through the cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::support::gate::Gate;
use crate::support::{BadRanges, Late, Random, block_size, cache};
use base::{Error, FsBlock, Location};
use device::{BioOperation, MemoryDevice, SharedDevice};
use iomap::{MetadataBuffer, MetadataCache, PageCache};

/// Returns bytes that depend on their offset.
fn contents(size: u64) -> Vec<u8> {
    (0..size).map(|at| (at / 512 * 31 + at % 7) as u8).collect()
}

fn metadata(cache: &Arc<PageCache>, device: SharedDevice, block_bytes: u64) -> MetadataCache {
    MetadataCache::new(cache, device, block_size(block_bytes))
}

fn get(metadata: &MetadataCache, block: u64) -> Result<MetadataBuffer, Error> {
    metadata.read(FsBlock(block), "test block", Location::default())
}

#[test]
fn blocks_of_every_size_are_read_to_the_end_of_any_device() {
    for shift in 9..=16 {
        for size in [1 << 18, (1 << 18) + 512, (1 << 18) + 5 * 1024 + 100] {
            let (block, expected) = (1 << shift, contents(size));
            let device = Arc::new(MemoryDevice::new(expected.clone()));
            let metadata = metadata(&cache(8 << 20, 9), device, block);
            for number in 0..size / block {
                let buffer = get(&metadata, number).expect("readable");
                let start = (number * block) as usize;
                assert!(*buffer == expected[start..start + block as usize], "{block}: {number}");
                assert_eq!(buffer.block(), FsBlock(number));
            }
            for outside in [size / block, size / block + 1, 1 << 52, u64::MAX] {
                assert!(matches!(get(&metadata, outside), Err(Error::Corrupt(_))), "{outside}");
            }
        }
    }
}

#[test]
fn blocks_that_are_read_ahead_take_one_request_and_hide_no_change() {
    for block in [1024, 4096, 16_384] {
        let expected = contents(1 << 20);
        let gate = Gate::device(Arc::new(MemoryDevice::new(expected.clone())));
        let metadata = metadata(&cache(8 << 20, 9), gate.clone(), block);
        let change = |number: u64, byte: u8| {
            let change = |bytes: &mut [u8]| bytes[0] = byte;
            metadata
                .change(FsBlock(number), "test block", Location::default(), change)
                .expect("readable");
        };
        change(20, 0xaa);
        gate.take_log();
        // A changed block is in memory, and no read starts.
        metadata.read_ahead(FsBlock(20), FsBlock(16)..FsBlock(48));
        assert_eq!(gate.take_log(), []);
        metadata.read_ahead(FsBlock(17), FsBlock(16)..FsBlock(48));
        let log = gate.take_log();
        // The folio with the changed block may be cached already.
        assert!((1..=2).contains(&log.len()), "{log:?}");
        assert!(log.iter().all(|(operation, _)| *operation == BioOperation::Read));
        change(21, 0xbb);
        for number in 16..48 {
            let start = (number * block) as usize;
            let mut expected = expected[start..start + block as usize].to_vec();
            match number {
                20 => expected[0] = 0xaa,
                21 => expected[0] = 0xbb,
                _ => {}
            }
            assert!(*get(&metadata, number).expect("readable") == expected, "{block}: {number}");
        }
        assert_eq!(gate.take_log(), [], "all blocks are cached");
        metadata.read_ahead(FsBlock(17), FsBlock(16)..FsBlock(48));
        assert_eq!(gate.take_log(), []);
        // After the changed block is written, the folio that was read ahead is stale.
        let written = metadata.changed(FsBlock(21)).expect("changed");
        let at = base::DeviceOffset(21 * block);
        let device: &dyn device::BlockDevice = &*gate;
        device.write_at(at, &written).expect("memory");
        metadata.written(FsBlock(21), &written);
        assert_eq!(get(&metadata, 21).expect("readable")[0], 0xbb, "{block}");
        // Up to the end of the device.
        let end = (1 << 20) / block;
        metadata.read_ahead(FsBlock(end - 1), FsBlock(end - 3)..FsBlock(end));
        assert!(!gate.take_log().is_empty());
        assert!(get(&metadata, end - 1).is_ok());
    }
}

#[test]
fn each_block_is_verified_once_while_it_is_cached() {
    for block in [512, 1024, 4096, 65_536] {
        let device = Arc::new(MemoryDevice::new(contents(1 << 18)));
        let metadata = metadata(&cache(8 << 20, 9), device, block);
        for number in 0..(1 << 18) / block {
            let mut runs = 0;
            let refused = Error::InvalidArgument("no");
            let verdict = get(&metadata, number)
                .and_then(|buffer| buffer.verify_once(|_| Err(refused.clone())));
            assert_eq!(verdict, Err(refused), "block {number} of {block}");
            for _ in 0..3 {
                let buffer = get(&metadata, number).expect("readable");
                let verdict = buffer.verify_once(|bytes| {
                    runs += 1;
                    assert_eq!(bytes.len() as u64, block);
                    Ok(())
                });
                assert_eq!(verdict, Ok(()));
            }
            assert_eq!(runs, 1, "block {number} of {block}");
        }
    }
}

#[test]
fn only_a_bad_block_fails_and_it_is_read_again() {
    let device = Arc::new(BadRanges::device(contents(1 << 16)));
    device.bad.lock().expect("no panic").push(5 * 1024..6 * 1024);
    let metadata = metadata(&cache(8 << 20, 9), device.clone(), 1024);
    for round in 0..2 {
        for number in 0..64 {
            let got = get(&metadata, number);
            assert_eq!(matches!(got, Err(Error::Io(_))), number == 5, "round {round}: {number}");
        }
    }
    device.bad.lock().expect("no panic").clear();
    let bios = device.bios.load(Ordering::Relaxed);
    assert!(get(&metadata, 5).is_ok() && get(&metadata, 5).is_ok());
    assert_eq!(device.bios.load(Ordering::Relaxed), bios + 1);
}

#[test]
fn more_blocks_than_fit_into_the_cache_can_be_in_use() {
    let expected = contents(4 << 20);
    let device = Arc::new(MemoryDevice::new(expected.clone()));
    let cache = cache(1 << 20, 9);
    let metadata = metadata(&cache, device, 65_536);
    let held: Vec<MetadataBuffer> =
        (0..64).map(|number| get(&metadata, number).expect("readable")).collect();
    for (number, buffer) in held.iter().enumerate() {
        assert!(**buffer == expected[number << 16..(number + 1) << 16], "{number}");
        let mut runs = 0;
        let copy = buffer.clone();
        copy.verify_once(|_| {
            runs += 1;
            Ok(())
        })
        .expect("verified");
        assert_eq!(runs, 1);
    }
    assert!(cache.stats().bytes_resident <= 1 << 20);
}

#[test]
fn threads_share_a_small_cache_of_blocks() {
    for (block, seed) in [(1024, 1), (4096, 2), (65_536, 3)] {
        let expected = contents(4 << 20);
        let device = Arc::new(MemoryDevice::new(expected.clone()));
        let late = Arc::new(Late::device(device, seed));
        let metadata = metadata(&cache(1 << 20, 9), late, block);
        thread::scope(|scope| {
            for thread in 0..6 {
                let (metadata, expected) = (&metadata, &expected);
                scope.spawn(move || {
                    let mut random = Random(thread << 8 | seed);
                    let mut held = Vec::new();
                    for _ in 0..500 {
                        let number = random.below((4 << 20) / block);
                        let buffer = get(metadata, number).expect("readable");
                        let start = (number * block) as usize;
                        assert!(*buffer == expected[start..start + block as usize]);
                        held.push(buffer);
                        if held.len() > 4 {
                            held.swap_remove(random.below(5) as usize);
                        }
                    }
                });
            }
        });
    }
}
