//! Reads of random files, compared with a model.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::support::{
    BadRanges, Late, ModelFile, Random, block_size, cache, check_empty, check_reads,
};
use base::{Error, FileOffset};
use device::{FaultDevice, FaultPlan, MemoryDevice, SharedDevice};
use iomap::{ReadOptions, Readahead, lend, read};

#[test]
fn random_files_read_as_the_model_on_any_device_and_in_any_cache() {
    for seed in 0..300 {
        let mut random = Random(seed);
        println!("seed {seed}");
        let size = block_size(512 << random.below(8));
        let blocks_max = 1 << random.between(1..11);
        let blocks_max = blocks_max.min((8 << 20) / u64::from(size.bytes()));
        let (file, contents) = ModelFile::random(&mut random, size, blocks_max);
        let mut device: SharedDevice = Arc::new(MemoryDevice::new(contents));
        if random.one_in(2) {
            device = Arc::new(Late::device(device, seed));
        }
        let cache = cache(1 << random.between(19..24), random.below(10) as u8);
        let mapping = cache.new_mapping(size);
        let context = file.context(&mapping, &device, ReadOptions::default());
        check_reads(&mut random, context, &file.bytes, 100);
        drop(mapping);
        check_empty(&cache);
    }
}

#[test]
fn several_threads_and_files_share_a_cache_that_is_too_small() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut random = Random(1000 + seed);
        let cache = cache(1 << 20, 9);
        let sizes = [1024, 4096, 65_536, 4096];
        let files: Vec<_> = sizes
            .iter()
            .map(|&bytes| {
                let size = block_size(bytes);
                let (file, contents) = ModelFile::random(&mut random, size, (4 << 20) / bytes);
                let mut device: SharedDevice = Arc::new(MemoryDevice::new(contents));
                if random.one_in(2) {
                    device = Arc::new(Late::device(device, seed));
                }
                (file, cache.new_mapping(size), device)
            })
            .collect();
        thread::scope(|scope| {
            for thread in 0..6 {
                let files = &files;
                scope.spawn(move || {
                    let mut random = Random(seed << 8 | thread);
                    for _ in 0..40 {
                        let (file, mapping, device) = &files[random.below(4) as usize];
                        let context = file.context(mapping, device, ReadOptions::default());
                        check_reads(&mut random, context, &file.bytes, 10);
                    }
                });
            }
        });
        let stats = cache.stats();
        assert!(stats.bytes_resident_max + stats.bytes_index <= 1 << 20);
        assert!(stats.folios_reclaimed > 0);
        drop(files);
        check_empty(&cache);
    }
}

#[test]
fn a_cached_read_calls_neither_format_nor_device() {
    let contents: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
    let size = block_size(4096);
    let file = ModelFile::contiguous(size, 1 << 20, 0, &contents);
    let bad = Arc::new(BadRanges::device(contents));
    let device: SharedDevice = bad.clone();
    let cache = cache(64 << 20, 9);
    let mapping = cache.new_mapping(size);
    let context = file.context(&mapping, &device, ReadOptions::default());
    let mut buffer = vec![0; 1 << 20];
    read(&context, &Readahead::default(), FileOffset(0), &mut buffer).expect("readable");
    let calls = file.calls.load(Ordering::Relaxed);
    let bios = bad.bios.load(Ordering::Relaxed);
    assert_eq!((calls, bios), (1, 1), "one mapping, one request for the whole file");
    for at in (0..1 << 20).step_by(1000) {
        read(&context, &Readahead::default(), FileOffset(at), &mut buffer[..5000]).expect("cached");
    }
    assert_eq!(file.calls.load(Ordering::Relaxed), calls);
    assert_eq!(bad.bios.load(Ordering::Relaxed), bios);
}

#[test]
fn inline_data_is_read_up_to_its_end() {
    let size = block_size(4096);
    let file = ModelFile::inline(size, (0..157).collect());
    let device: SharedDevice = Arc::new(MemoryDevice::new(vec![0xff; 4096]));
    let mapping = cache(1 << 20, 9).new_mapping(size);
    let context = file.context(&mapping, &device, ReadOptions::default());
    let mut buffer = [0xaa; 300];
    for (at, length) in [(0, 157), (100, 57), (156, 1), (157, 0), (4096, 0), (u64::MAX, 0)] {
        let got = read(&context, &Readahead::default(), FileOffset(at), &mut buffer);
        assert_eq!(got, Ok(length), "{at}");
        assert_eq!(buffer[..length], file.bytes[file.bytes.len() - length..]);
    }
}

#[test]
fn sequential_reads_read_ahead_and_random_reads_do_not() {
    let contents = vec![7; 16 << 20];
    let size = block_size(4096);
    let file = ModelFile::contiguous(size, 16 << 20, 0, &contents);
    let bad = Arc::new(BadRanges::device(contents));
    let device: SharedDevice = bad.clone();
    let cache = cache(64 << 20, 9);
    let mut buffer = [0; 4096];

    let mapping = cache.new_mapping(size);
    let context = file.context(&mapping, &device, ReadOptions::default());
    let readahead = Readahead::default();
    let mut random = Random(1);
    let mut pages: Vec<u64> = (0..50).map(|_| 2 + random.below(4000)).collect();
    pages.dedup_by(|a, b| a.abs_diff(*b) < 2);
    for &page in &pages {
        read(&context, &readahead, FileOffset(page << 12), &mut buffer).expect("readable");
    }
    assert!(bad.bytes.load(Ordering::Relaxed) <= (pages.len() as u64) << 12);

    bad.bios.store(0, Ordering::Relaxed);
    let mapping = cache.new_mapping(size);
    let context = file.context(&mapping, &device, ReadOptions::default());
    let readahead = Readahead::default();
    for page in 0..4096 {
        read(&context, &readahead, FileOffset(page << 12), &mut buffer).expect("readable");
    }
    let bios = bad.bios.load(Ordering::Relaxed);
    assert!(bios < 12, "{bios} requests for 16 MiB");
    let folios = cache.stats().folios;
    assert!(folios[9] >= 4, "windows and folios grow: {folios:?}");
}

#[test]
fn a_bad_block_fails_only_reads_of_it_and_is_read_again() {
    let size = block_size(1024);
    let contents: Vec<u8> = (0..4 << 20).map(|at: u32| (at >> 10) as u8).collect();
    let file = ModelFile::contiguous(size, 4 << 20, 0, &contents);
    let bad = Arc::new(BadRanges::device(contents));
    let device: SharedDevice = bad.clone();
    let cache = cache(64 << 20, 9);
    let mapping = cache.new_mapping(size);
    let context = file.context(&mapping, &device, ReadOptions::default());
    let broken = 1_048_576 + 5 * 1024;
    bad.bad.lock().expect("no panic").push(broken..broken + 1024);
    for _ in 0..2 {
        let readahead = Readahead::default();
        for at in (0..4 << 20).step_by(1024) {
            let mut buffer = [0; 1024];
            let got = read(&context, &readahead, FileOffset(at), &mut buffer);
            if at == broken {
                assert!(
                    matches!(got, Err(Error::Io(error)) if error.offset.0 == broken),
                    "{got:?}"
                );
                assert!(lend(&context, &readahead, FileOffset(at + 9), 4096).is_err());
            } else {
                assert_eq!(got, Ok(1024), "{at}");
                assert!(buffer.iter().all(|&byte| byte == (at >> 10) as u8));
            }
        }
        let slice = lend(&context, &readahead, FileOffset(broken - 1024), 9999).expect("readable");
        assert_eq!(slice.len(), 1024, "lent up to the block that cannot be read");
    }
    bad.bad.lock().expect("no panic").clear();
    let mut buffer = vec![0; 4 << 20];
    read(&context, &Readahead::default(), FileOffset(0), &mut buffer).expect("healed");
    assert!(buffer == file.bytes);
}

#[test]
fn data_before_a_bad_sector_is_lent_for_requests_of_any_length() {
    let size = block_size(4096);
    let contents: Vec<u8> = (0..256 << 10).map(|at: u32| (at >> 12) as u8).collect();
    let file = ModelFile::contiguous(size, 256 << 10, 0, &contents);
    let faulty = FaultDevice::new(Arc::new(MemoryDevice::new(contents)), FaultPlan::default());
    let bad = 5 * 4096;
    faulty.fail_reads_in(bad + 512..bad + 1024);
    let device: SharedDevice = Arc::new(faulty);
    let mapping = cache(8 << 20, 9).new_mapping(size);
    let context = file.context(&mapping, &device, ReadOptions::default());
    let readahead = Readahead::default();
    let mut at = 0;
    while at < bad {
        let slice = lend(&context, &readahead, FileOffset(at), 256 << 10).expect("readable");
        let end = at + slice.len() as u64;
        assert!(!slice.is_empty() && end <= bad, "{at}..{end}");
        assert!(slice[..] == file.bytes[at as usize..end as usize]);
        at = end;
    }
    assert!(lend(&context, &readahead, FileOffset(bad), 256 << 10).is_err());
    assert!(lend(&context, &readahead, FileOffset(bad + 4096), 4096).is_ok());
}

#[test]
fn only_a_read_that_waits_for_the_device_calls_the_listener() {
    let size = block_size(4096);
    let contents = vec![7; 64 << 10];
    let file = ModelFile::contiguous(size, 64 << 10, 0, &contents);
    let device: SharedDevice = Arc::new(MemoryDevice::new(contents));
    let mapping = cache(8 << 20, 9).new_mapping(size);
    let context = file.context(&mapping, &device, ReadOptions::default());
    let calls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&calls);
    let _listening = base::waiting::listen(move || counted.set(counted.get() + 1));
    let mut buffer = vec![0; 64 << 10];
    read(&context, &Readahead::default(), FileOffset(0), &mut buffer).expect("readable");
    let cold = calls.get();
    assert!(cold > 0, "the listener was not called");
    read(&context, &Readahead::default(), FileOffset(0), &mut buffer).expect("cached");
    lend(&context, &Readahead::default(), FileOffset(0), 4096).expect("cached");
    assert_eq!(calls.get(), cold);
}

#[test]
fn a_short_device_is_read_to_its_end_and_the_rest_is_an_error() {
    let size = block_size(4096);
    let contents: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 12) as u8).collect();
    let file = ModelFile::contiguous(size, 1 << 20, 0, &contents);
    let short: SharedDevice = Arc::new(MemoryDevice::new(contents[..600_000].to_vec()));
    let mapping = cache(8 << 20, 9).new_mapping(size);
    let context = file.context(&mapping, &short, ReadOptions::default());
    let readahead = Readahead::default();
    for page in 0..256 {
        let mut buffer = [0; 4096];
        let got = read(&context, &readahead, FileOffset(page << 12), &mut buffer);
        assert_eq!(got.is_ok(), (page + 1) << 12 <= 600_000, "page {page}");
    }
}

#[test]
fn lent_slices_do_not_change_while_the_cache_is_too_small() {
    let size = block_size(4096);
    let contents: Vec<u8> = (0..4 << 20).map(|at: u32| (at >> 12) as u8).collect();
    let file = ModelFile::contiguous(size, 4 << 20, 0, &contents);
    let device: SharedDevice = Arc::new(MemoryDevice::new(contents));
    let cache = cache(1 << 20, 9);
    let mapping = cache.new_mapping(size);
    let context = file.context(&mapping, &device, ReadOptions::default());
    let readahead = Readahead::default();
    // More than fits into the cache: the rest is copied to the heap, and all data is right.
    let held: Vec<_> = (0..512)
        .map(|page| lend(&context, &readahead, FileOffset(page << 12), 4096).expect("readable"))
        .collect();
    let mut buffer = vec![0; 4 << 20];
    read(&context, &readahead, FileOffset(0), &mut buffer).expect("readable");
    assert!(buffer == file.bytes);
    drop(mapping);
    for (page, slice) in held.iter().enumerate() {
        assert!(slice.iter().all(|&byte| byte == page as u8), "page {page}");
    }
    assert!(cache.stats().bytes_resident > 0);
    drop(held);
    assert_eq!(cache.stats().bytes_resident, 0);
}
