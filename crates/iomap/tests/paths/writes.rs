//! Random writes, truncations and reads of one file, compared with a vector of bytes, and the state
//! of the device after syncs and crashes.

use crate::support;
use std::sync::Arc;

use crate::support::format::{Format, GARBAGE, Mode};
use crate::support::{Late, Random, block_size, cache};
use base::{Error, FileOffset, Result};
use device::{FaultDevice, FaultPlan, SharedDevice};
use iomap::{
    EndIo, ErrorCursor, FolioSlice, PageCache, ReadOptions, Readahead, Refused, SplitExtents,
    WritableFile, lend, note_size_on_disk, overwrite_direct, punch_cache, read, truncate_cache,
    wait_for_writeback, write, write_back, write_direct_alone, zero_range,
};

/// A file and its model.
struct Subject {
    format: Arc<Format>,
    file: Arc<WritableFile>,
    cursor: ErrorCursor,
    model: Vec<u8>,
    /// Lent bytes, and copies of them.
    lent: Vec<(FolioSlice, Vec<u8>)>,
    /// Whether the device sometimes fails.
    faulty: bool,
}

const SIZE_MAX: u64 = 3 << 20;

impl Subject {
    fn new(random: &mut Random, cache: &Arc<PageCache>, faulty: bool) -> Self {
        let size = block_size(1024 << random.below(7));
        let blocks = SIZE_MAX / u64::from(size.bytes()) + random.below(64);
        // Sometimes there is not enough space.
        let blocks = if random.one_in(4) { blocks / 2 + 1 } else { blocks };
        let run_max = if random.one_in(2) { random.between(1..20) } else { u64::MAX };
        let mode = Mode::random(random);
        let format = Format::with_mode(size, blocks, run_max.min(1 << 30), mode);
        let mut device: SharedDevice = format.device();
        if faulty {
            let seed = random.next();
            let plan = FaultPlan {
                seed,
                read_errors: 20_000,
                write_errors: 40_000,
                ..FaultPlan::default()
            };
            device = Arc::new(FaultDevice::new(device, plan));
        }
        if random.one_in(2) {
            device = Arc::new(Late::device(device, random.next()));
        }
        let file = WritableFile::new(
            cache.new_mapping(size),
            Arc::clone(&format),
            device,
            EndIo::start().expect("a thread"),
            0,
            ReadOptions::default(),
        );
        let cursor = file.errors().cursor();
        Self { format, file, cursor, model: Vec::new(), lent: Vec::new(), faulty }
    }

    /// Does a random operation.
    fn run_operation(&mut self, random: &mut Random) {
        let at = random.below(self.model.len() as u64 + 10);
        let length = random.of_magnitude(1..20).max(1);
        match random.below(26) {
            0..=7 => self.write(random, at, length),
            8 => self.write(random, (at + length).min(SIZE_MAX / 2), length),
            9 => self.zero(at, at + length),
            10 => self.truncate(random.below(SIZE_MAX)),
            11 => self.truncate(at),
            12 => self.punch(at, at + length),
            13..=16 => self.read(at, length),
            17 | 18 => self.lend(random, at, length),
            19 | 20 => write_back(&self.file, at..at + length),
            21 => self.format.preallocate(at..(at + length).min(self.model.len() as u64)),
            22 => self.sync(random),
            23 | 24 => self.write_direct(random, at / 512 * 512, length.next_multiple_of(512)),
            _ => self.check_crash(),
        }
    }

    fn write(&mut self, random: &mut Random, at: u64, length: u64) {
        let mut data: Vec<u8> = (0..length).map(|at| (at >> 5) as u8 ^ random.0 as u8).collect();
        data.iter_mut().filter(|byte| **byte == GARBAGE).for_each(|byte| *byte = 1);
        random.next();
        let before = self.model.len();
        match write(&self.file, FileOffset(at), &data) {
            Ok(written) => {
                let end = at as usize + written;
                self.model.resize(before.max(end), 0);
                self.model[at as usize..end].copy_from_slice(&data[..written]);
            }
            Err(error) => self.expect_failure(error),
        }
        assert_eq!(self.file.size(), self.model.len() as u64);
    }

    /// Writes directly: an overwrite if that is possible, or else a write that has the file alone.
    fn write_direct(&mut self, random: &mut Random, at: u64, length: u64) {
        let block = u64::from(self.file.mapping().block_size().bytes());
        let unit = if random.one_in(2) { block.max(512) } else { 512 };
        let (at, length) = (at / unit * unit, length.next_multiple_of(unit).min(SIZE_MAX / 4));
        let byte = random.next() as u8 & 0x7f;
        let data = vec![byte; length as usize];
        let split = SplitExtents::default();
        let written = match overwrite_direct(&self.file, FileOffset(at), &data, split, ()) {
            Ok(written) => written.map(Some),
            Err(Refused::NeedsAlone) => {
                write_direct_alone(&self.file, FileOffset(at), &data, split)
            }
            Err(_) => Ok(None),
        };
        match written {
            Ok(Some(written)) => {
                let end = at as usize + written;
                self.model.resize(self.model.len().max(end), 0);
                self.model[at as usize..end].fill(byte);
            }
            Ok(None) => {}
            Err(error) => {
                self.expect_failure(error);
                // A part may have been written, which only the caller learns.
                self.reset();
            }
        }
        assert_eq!(self.file.size(), self.model.len() as u64);
    }

    fn zero(&mut self, at: u64, end: u64) {
        let end = end.min(self.model.len() as u64);
        let done = zero_range(&self.file, at..end);
        if self.succeeded(done) && at < end {
            self.model[at as usize..end as usize].fill(0);
        }
    }

    fn truncate(&mut self, size: u64) {
        let done = truncate_cache(&self.file, size);
        if self.succeeded(done) {
            self.format.truncate(size);
            note_size_on_disk(&self.file);
            self.model.resize(size as usize, 0);
        }
    }

    fn punch(&mut self, at: u64, end: u64) {
        let end = end.min(self.model.len() as u64).max(at);
        match punch_cache(&self.file, at..end) {
            Ok(blocks) => {
                self.format.punch(blocks);
                let at = (at as usize).min(self.model.len());
                let end = (end as usize).min(self.model.len());
                self.model[at..end].fill(0);
            }
            Err(error) => {
                self.expect_failure(error);
                self.reset();
            }
        }
    }

    /// Returns whether an operation succeeded. A failed one may be half done, so the file is
    /// emptied.
    fn succeeded(&mut self, result: Result<()>) -> bool {
        match result {
            Ok(()) => true,
            Err(error) => {
                self.expect_failure(error);
                self.reset();
                false
            }
        }
    }

    fn expect_failure(&self, error: Error) {
        match error {
            Error::Io(_) if self.faulty => {}
            Error::NoSpace | Error::OutOfMemory => {}
            error => panic!("{error}"),
        }
    }

    fn read(&mut self, at: u64, length: u64) {
        let mut buffer = vec![0xaa; length as usize];
        let context = self.file.read_context();
        match read(&context, &Readahead::default(), FileOffset(at), &mut buffer) {
            Ok(got) => self.compare(at, &buffer[..got]),
            Err(error) => self.expect_failure(error),
        }
    }

    fn lend(&mut self, random: &mut Random, at: u64, length: u64) {
        let context = self.file.read_context();
        match lend(&context, &Readahead::default(), FileOffset(at), length as usize) {
            Ok(slice) => {
                self.compare(at, &slice);
                let expected = slice.to_vec();
                self.lent.push((slice, expected));
            }
            Err(error) => self.expect_failure(error),
        }
        if self.lent.len() > 6 {
            let (slice, expected) = self.lent.swap_remove(random.below(6) as usize);
            assert!(*slice == *expected, "changed while it was lent");
        }
    }

    fn compare(&mut self, at: u64, got: &[u8]) {
        let at = at as usize;
        let expected = &self.model[at.min(self.model.len())..];
        let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
        if let Some(first) = differs {
            assert!(
                self.faulty,
                "byte {} is {} instead of {}, size {}, kinds {:?}",
                at + first,
                got[first],
                expected[first],
                self.model.len(),
                self.format.kinds(),
            );
            write_back(&self.file, 0..u64::MAX);
            wait_for_writeback(&self.file, 0..u64::MAX);
            self.file.errors().check(&self.cursor).expect_err("nothing failed, but bytes differ");
            self.reset();
        }
    }

    /// Empties the file.
    fn reset(&mut self) {
        truncate_cache(&self.file, 0).expect("nothing to be read");
        self.format.truncate(0);
        self.model.clear();
        let _ = self.file.errors().check(&self.cursor);
    }

    /// Writes back all data, and compares the device with the model.
    fn sync(&mut self, random: &mut Random) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
        assert_eq!(self.format.reserved(), 0, "kinds {:?}", self.format.kinds());
        assert_eq!(self.file.mapping().bytes_dirty(), 0);
        match self.file.errors().check(&self.cursor) {
            Ok(()) => {
                assert_eq!(self.format.size(), self.model.len() as u64);
                let on_disk = self.format.on_disk();
                let differs = on_disk.iter().zip(&self.model).position(|(one, two)| one != two);
                assert_eq!(differs, None, "on the device, kinds {:?}", self.format.kinds());
                if random.one_in(2) {
                    self.format.spoil_tail();
                }
            }
            Err(error) => {
                self.expect_failure(error);
                self.reset();
            }
        }
    }

    /// Checks that a crash would expose no bytes that were never the file's.
    fn check_crash(&self) {
        let garbage = self.format.on_disk().iter().position(|byte| *byte == GARBAGE);
        // A failed write may leave any bytes.
        assert!(garbage.is_none() || self.faulty, "garbage at {garbage:?}");
        assert!(self.format.size() <= self.file.size());
    }
}

fn check_seeds(seeds: std::ops::Range<u64>, faulty: bool) {
    for seed in seeds {
        println!("seed {seed}");
        let mut random = Random(seed);
        let cache = cache((1 << 20) << random.below(4), random.below(10) as u8);
        let mut subject = Subject::new(&mut random, &cache, faulty);
        for _ in 0..200 {
            subject.run_operation(&mut random);
        }
        subject.sync(&mut random);
        subject.read(0, SIZE_MAX);
        drop(subject);
        support::check_empty(&cache);
        let stats = cache.stats();
        assert_eq!((stats.dirty.bytes_dirty, stats.dirty.bytes_writeback), (0, 0));
    }
}

#[test]
fn random_writes_read_back_and_reach_the_device() {
    check_seeds(0..150, false);
}

#[test]
fn a_failing_device_loses_only_data_that_fsync_reports() {
    check_seeds(1000..1100, true);
}
