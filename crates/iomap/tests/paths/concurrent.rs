//! Concurrent writers, readers, borrowers and flushers of one file, in a cache that another file
//! fills.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;

use crate::support::format::{Format, GARBAGE, Mode};
use crate::support::{Late, ModelFile, Random, block_size, cache, check_empty};
use base::FileOffset;
use device::SharedDevice;
use iomap::{
    Caching, EndIo, Mapping, PageCache, ReadContext, ReadOptions, Readahead, WritableFile,
    WriteBehind, lend, note_size_on_disk, punch_cache, read, truncate_cache, wait_for_writeback,
    write_as, write_back, zero_range,
};

const SIZE_MAX: u64 = 2 << 20;
const ROUNDS: u64 = 400;

/// A file and its model, whose lock stands for the inode's lock.
struct Subject {
    format: Arc<Format>,
    file: Arc<WritableFile>,
    behind: WriteBehind,
    model: RwLock<Vec<u8>>,
    done: AtomicBool,
    short_of_memory: AtomicU64,
}

impl Subject {
    fn new(random: &mut Random, cache: &Arc<PageCache>) -> Self {
        let size = block_size(1024 << random.below(7));
        let (blocks, mode) = (2 * SIZE_MAX / u64::from(size.bytes()), Mode::random(random));
        let format = Format::with_mode(size, blocks, 1 << 20, mode);
        let device: SharedDevice = Arc::new(Late::device(format.device(), random.next()));
        let (mapping, end_io) = (cache.new_mapping(size), EndIo::start().expect("a thread"));
        let options = ReadOptions::default();
        let file = WritableFile::new(mapping, Arc::clone(&format), device, end_io, 0, options);
        let (model, done) = (RwLock::default(), AtomicBool::new(false));
        let behind = WriteBehind::start(256 << 10).expect("a thread");
        Self { format, file, behind, model, done, short_of_memory: AtomicU64::new(0) }
    }

    fn change(&self, random: &mut Random) {
        let mut model = self.model.write().expect("no panic");
        let at = random.below(model.len() as u64 + 1);
        let length = random.of_magnitude(1..19).max(1).min(SIZE_MAX - at);
        let end = (at + length).min(model.len() as u64);
        match random.below(16) {
            0 => {
                let size = random.below(SIZE_MAX);
                truncate_cache(&self.file, size).expect("memory");
                self.format.truncate(size);
                note_size_on_disk(&self.file);
                model.resize(size as usize, 0);
            }
            1 if at < end => {
                zero_range(&self.file, at..end).expect("memory");
                model[at as usize..end as usize].fill(0);
            }
            2 if at < end => {
                let blocks = punch_cache(&self.file, at..end).expect("memory");
                self.format.punch(blocks);
                model[at as usize..end as usize].fill(0);
            }
            3 => self.sync(&model),
            _ => {
                let data: Vec<u8> =
                    (0..length).map(|at| (at as u8 ^ random.0 as u8) & 0x7f).collect();
                let caching = any_caching(random);
                if caching == Caching::Dropbehind {
                    self.behind.throttle().expect("no cancellation");
                }
                let written = write_as(&self.file, FileOffset(at), &data, caching).unwrap_or(0);
                if caching == Caching::Dropbehind {
                    self.behind.push(&self.file, at..at + written as u64);
                }
                if written < data.len() {
                    self.short_of_memory.fetch_add(1, Ordering::Relaxed);
                }
                let end = at as usize + written;
                if end > model.len() && written > 0 {
                    model.resize(end, 0);
                }
                if written > 0 {
                    model[at as usize..end].copy_from_slice(&data[..written]);
                }
            }
        }
    }

    fn sync(&self, model: &[u8]) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
        assert!(self.format.on_disk() == *model, "the device has other data");
        assert_eq!(self.format.reserved(), 0);
    }

    fn check_read(&self, random: &mut Random, held: &mut Vec<(iomap::FolioSlice, Vec<u8>)>) {
        let model = self.model.read().expect("no panic");
        let at = random.below(model.len() as u64 + 1);
        let length = random.of_magnitude(1..18) as usize;
        let context = self.file.read_context();
        let options = ReadOptions { caching: any_caching(random), ..context.options };
        let context = ReadContext { options, ..context };
        if random.one_in(2) {
            let mut buffer = vec![0; length];
            let got = read(&context, &Readahead::default(), FileOffset(at), &mut buffer);
            let got = got.expect("readable");
            assert!(buffer[..got] == model[at as usize..at as usize + got], "{length} at {at}");
        } else {
            let slice = lend(&context, &Readahead::default(), FileOffset(at), length);
            let slice = slice.expect("readable");
            assert!(*slice == model[at as usize..at as usize + slice.len()], "{length} at {at}");
            held.push((slice.clone(), slice.to_vec()));
        }
        // Lent bytes do not change, also without the lock.
        drop(model);
        if held.len() > 4 {
            let (slice, expected) = held.swap_remove(random.below(4) as usize);
            assert!(*slice == *expected, "changed while it was lent");
        }
    }

    fn flush(&self, random: &mut Random) {
        let at = random.below(SIZE_MAX);
        write_back(&self.file, at..at + random.of_magnitude(10..22));
        if random.one_in(4) {
            wait_for_writeback(&self.file, 0..u64::MAX);
        }
        if random.one_in(8) {
            let on_disk = self.format.on_disk();
            assert!(!on_disk.contains(&GARBAGE), "garbage after a crash");
        }
    }
}

fn any_caching(random: &mut Random) -> Caching {
    if random.one_in(2) { Caching::Dropbehind } else { Caching::Kept }
}

/// Reads another file, which fills the cache.
fn fill_cache(file: &ModelFile, mapping: &Mapping, device: &SharedDevice, random: &mut Random) {
    let context = file.context(mapping, device, ReadOptions::default());
    let at = random.below(file.size);
    read(&context, &Readahead::default(), FileOffset(at), &mut [0; 65_536]).expect("readable");
}

#[test]
fn all_threads_see_the_file_in_the_order_of_the_lock() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let cache = cache((3 << 20) << random.below(2), [0, 4, 9][seed as usize % 3]);
        let subject = Subject::new(&mut random, &cache);
        let contents = vec![5; 4 << 20];
        let other = ModelFile::contiguous(block_size(4096), 4 << 20, 0, &contents);
        let device: SharedDevice = Arc::new(device::MemoryDevice::new(contents));
        let other_mapping = cache.new_mapping(block_size(4096));
        thread::scope(|scope| {
            for thread in 0..3 {
                let (subject, mut random) = (&subject, Random(seed << 8 | thread));
                let (other, other_mapping, device) = (&other, &other_mapping, &device);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    while !subject.done.load(Ordering::Relaxed) {
                        match thread {
                            0 => subject.flush(&mut random),
                            1 => fill_cache(other, other_mapping, device, &mut random),
                            _ => subject.check_read(&mut random, &mut held),
                        }
                    }
                });
            }
            let (subject, mut random) = (&subject, Random(seed << 16));
            scope.spawn(move || {
                // Also after a panic of this thread, so that the others end.
                let _done = SetWhenDropped(&subject.done);
                for _ in 0..ROUNDS {
                    subject.change(&mut random);
                }
            });
        });
        assert!(subject.short_of_memory.load(Ordering::Relaxed) < ROUNDS / 4);
        subject.sync(&subject.model.read().expect("no panic"));
        drop((subject, other_mapping));
        check_empty(&cache);
    }
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
