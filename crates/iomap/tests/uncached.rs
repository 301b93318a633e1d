//! Uncached reads and writes. They leave no folios in the cache, except those that were cached
//! before or that another access has found.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use base::{Error, FileOffset};
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice};
use iomap::{
    Caching, EndIo, Mapping, PageCache, ReadContext, ReadOptions, Readahead, WritableFile,
    WriteBehind, lend, read, wait_for_writeback, write, write_as, write_back,
};
use parking_lot::{Mutex, MutexGuard};
use support::format::Format;
use support::{ModelFile, Random, block_size, cache, check_empty, wait_until};

const UNCACHED: ReadOptions = ReadOptions {
    batch_pending_accounting: true,
    skip_folio_state: true,
    readahead_bytes_max: 1 << 20,
    caching: Caching::Dropbehind,
};
const CACHED: ReadOptions = ReadOptions { caching: Caching::Kept, ..UNCACHED };

/// Counts bytes, and holds bios while a test holds the gate.
#[derive(Debug, Default)]
struct Counted {
    gate: Mutex<()>,
    read: AtomicU64,
    written: AtomicU64,
    /// Whether reads fail.
    fails: AtomicBool,
    /// Bios that were submitted while the gate was held.
    held: Mutex<Vec<Bio>>,
}

impl Counted {
    fn device(inner: Arc<MemoryDevice>) -> Arc<HookedDevice<Self>> {
        Arc::new(HookedDevice::new(inner, Self::default()))
    }
}

/// Drops the gate, and submits the held bios.
fn open(counted: &HookedDevice<Counted>, gate: MutexGuard<'_, ()>) {
    drop(gate);
    let held = std::mem::take(&mut *counted.held.lock());
    counted.inner().submit(held);
}

impl DeviceHooks for Counted {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let count = match bio.operation() {
                BioOperation::Read => &self.read,
                _ => &self.written,
            };
            count.fetch_add(bio.length(), Ordering::Relaxed);
            if bio.operation() == BioOperation::Read && self.fails.load(Ordering::Relaxed) {
                bio.end(Err(5));
                continue;
            }
            let mut held = self.held.lock();
            if self.gate.is_locked() {
                held.push(bio);
                continue;
            }
            drop(held);
            device.submit(vec![bio]);
        }
    }
}

const FILE_BYTES: u64 = 6 << 20;

struct Reading {
    cache: Arc<PageCache>,
    mapping: Arc<Mapping>,
    counted: Arc<HookedDevice<Counted>>,
    device: SharedDevice,
    file: ModelFile,
}

fn reading(block_bytes: u64) -> Reading {
    let contents: Vec<u8> = (0..FILE_BYTES).map(|at| (at / 512 * 7 + at) as u8).collect();
    // Not a multiple of anything.
    let size = FILE_BYTES - 1234;
    let file = ModelFile::contiguous(block_size(block_bytes), size, 0, &contents);
    let counted = Counted::device(Arc::new(MemoryDevice::new(contents)));
    let (cache, device) = (cache(16 << 20, 9), Arc::clone(&counted) as SharedDevice);
    let mapping = cache.new_mapping(block_size(block_bytes));
    Reading { cache, mapping, counted, device, file }
}

impl Reading {
    fn resident(&self) -> u64 {
        self.cache.stats().bytes_resident
    }

    /// Reads at most `length` bytes at `at`. Returns their number.
    fn read(&self, readahead: &Readahead, options: ReadOptions, at: u64, length: usize) -> usize {
        let context = self.file.context(&self.mapping, &self.device, options);
        let mut buffer = vec![0; length];
        let got = read(&context, readahead, FileOffset(at), &mut buffer).expect("readable");
        let expected = &self.file.bytes[at as usize..at as usize + got];
        assert!(buffer[..got] == *expected, "{length} at {at}");
        got
    }
}

#[test]
fn a_sequential_read_reads_a_file_once_and_leaves_nothing() {
    for (block_bytes, piece) in [
        (4096, 1 << 20),
        (4096, 65_536),
        (4096, 1000),
        (1024, 1000),
        (65_536, 4096),
        (4096, 5 << 20),
    ] {
        let subject = reading(block_bytes);
        let (readahead, mut at) = (Readahead::default(), 0);
        loop {
            let got = subject.read(&readahead, UNCACHED, at, piece);
            if got == 0 {
                break;
            }
            at += got as u64;
            // Two readahead windows, and the request itself.
            let most = 2 * (1 << 20) + 2 * (piece as u64).max(1 << 20);
            assert!(subject.resident() <= most, "{} at {at}", subject.resident());
        }
        check_empty(&subject.cache);
        let read = subject.counted.read.load(Ordering::Relaxed);
        assert!(read <= FILE_BYTES, "{read} bytes by {piece} with blocks of {block_bytes}");
        let stats = subject.cache.stats();
        assert_eq!(stats.folios_reclaimed, 0);
        assert!(stats.bytes_dropped >= FILE_BYTES - 1234);
    }
}

#[test]
fn random_reads_leave_nothing() {
    let subject = reading(4096);
    let (readahead, mut random) = (Readahead::default(), Random(5));
    for round in 0..300 {
        let at = random.between(1 << 20..FILE_BYTES - 70_000);
        let length = random.of_magnitude(1..16) as usize + 1;
        subject.read(&readahead, UNCACHED, at, length);
        // A sequence in between, which does not continue.
        if round % 50 == 49 {
            for part in 0..5 {
                subject.read(&readahead, UNCACHED, part * 10_000, 10_000);
            }
        }
    }
    let at = random.between(1 << 20..FILE_BYTES - 70_000);
    subject.read(&readahead, UNCACHED, at, 100);
    check_empty(&subject.cache);
}

#[test]
fn a_reader_that_ends_readahead_leaves_nothing() {
    let subject = reading(4096);
    let readahead = Readahead::default();
    for part in 0..20 {
        subject.read(&readahead, UNCACHED, part * 4000, 4000);
    }
    assert!(subject.resident() > 0, "nothing was read ahead");
    readahead.stop(&subject.mapping);
    check_empty(&subject.cache);
    // A folio that another reader has found stays.
    for part in 0..20 {
        subject.read(&readahead, UNCACHED, part * 4000, 4000);
    }
    subject.read(&Readahead::default(), CACHED, 82_000, 100);
    readahead.stop(&subject.mapping);
    let folio = subject.mapping.get(82_000 >> 12).expect("kept");
    assert_eq!(subject.resident(), folio.len() as u64);
}

#[test]
fn a_reader_that_skips_parts_leaves_no_folios_that_it_has_passed() {
    let subject = reading(4096);
    let readahead = Readahead::default();
    for at in (0..FILE_BYTES - 70_000).step_by(20_000) {
        subject.read(&readahead, UNCACHED, at, 6_000);
        assert!(subject.resident() <= 4 << 20, "{} at {at}", subject.resident());
    }
    readahead.stop(&subject.mapping);
    check_empty(&subject.cache);
}

#[test]
fn folios_that_were_cached_or_that_other_readers_find_stay() {
    let subject = reading(4096);
    let (ours, theirs) = (Readahead::default(), Readahead::default());
    subject.read(&theirs, CACHED, 2 << 20, 300_000);
    let cached: Vec<u64> =
        (0..FILE_BYTES >> 12).filter(|page| subject.mapping.get(*page).is_some()).collect();
    let before = subject.counted.read.load(Ordering::Relaxed);
    for part in 0..24 {
        subject.read(&ours, UNCACHED, part << 18, 1 << 18);
    }
    for page in 0..FILE_BYTES >> 12 {
        let is_there = subject.mapping.get(page).is_some();
        assert_eq!(is_there, cached.contains(&page), "page {page}");
    }
    let read = subject.counted.read.load(Ordering::Relaxed);
    assert!(read < before + FILE_BYTES - 200_000, "cached data was read again");
    // A folio that an uncached read lends, and that another reader finds before it is returned.
    let context = subject.file.context(&subject.mapping, &subject.device, UNCACHED);
    let at = FileOffset(5 << 20);
    let slice = lend(&context, &Readahead::default(), at, 4096).expect("readable");
    let cached = subject.file.context(&subject.mapping, &subject.device, CACHED);
    drop(lend(&cached, &Readahead::default(), at, 10).expect("readable"));
    drop(slice);
    assert!(subject.mapping.get((5 << 20) >> 12).is_some());
    // A folio that no other reader has found leaves with its lent bytes.
    let at = FileOffset(4 << 20);
    let slice = lend(&context, &Readahead::default(), at, 4096).expect("readable");
    assert!(subject.mapping.get((4 << 20) >> 12).is_some());
    assert_eq!(slice[..], subject.file.bytes[4 << 20..(4 << 20) + 4096]);
    drop(slice);
    assert!(subject.mapping.get((4 << 20) >> 12).is_none());
}

#[test]
fn an_uncached_read_of_inline_data_leaves_nothing() {
    let file = ModelFile::inline(block_size(4096), b"short".to_vec());
    let cache = cache(1 << 20, 9);
    let (mapping, device) =
        (cache.new_mapping(block_size(4096)), Arc::new(MemoryDevice::new(vec![0; 4096])));
    let device: SharedDevice = device;
    let context = file.context(&mapping, &device, UNCACHED);
    let mut buffer = [0; 10];
    assert_eq!(read(&context, &Readahead::default(), FileOffset(0), &mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"short");
    check_empty(&cache);
}

struct Writing {
    cache: Arc<PageCache>,
    format: Arc<Format>,
    counted: Arc<HookedDevice<Counted>>,
    file: Arc<WritableFile>,
    behind: WriteBehind,
}

const LIMIT: u64 = 1 << 20;

fn writing() -> Writing {
    let format = Format::new(block_size(4096), 8 << 8, 1 << 20);
    let counted = Counted::device(format.device());
    let cache = cache(32 << 20, 9);
    let (mapping, end_io) = (cache.new_mapping(block_size(4096)), EndIo::start());
    let device = Arc::clone(&counted) as SharedDevice;
    let end_io = end_io.expect("a thread");
    let options = ReadOptions::default();
    let file = WritableFile::new(mapping, Arc::clone(&format), device, end_io, 0, options);
    let behind = WriteBehind::start(LIMIT).expect("a thread");
    Writing { cache, format, counted, file, behind }
}

impl Writing {
    fn write(&self, at: u64, data: &[u8]) {
        self.behind.throttle().expect("no cancellation");
        let written = write_as(&self.file, FileOffset(at), data, Caching::Dropbehind);
        assert_eq!(written, Ok(data.len()));
        self.behind.push(&self.file, at..at + data.len() as u64);
    }

    fn bytes_not_written(&self) -> u64 {
        let stats = self.cache.dirty_stats();
        stats.bytes_dirty + stats.bytes_writeback
    }
}

/// Returns bytes that depend on their offset.
fn data(from: u64, length: u64) -> Vec<u8> {
    (from..from + length).map(|at| (at / 4096 + at) as u8 & 0x7f).collect()
}

#[test]
fn uncached_writes_reach_the_device_without_a_sync_and_leave_nothing() {
    let subject = writing();
    for (piece, total) in [(65_536, 4 << 20), (4096, 1 << 20), (1000, 500_000), (3 << 20, 6 << 20)]
    {
        let mut at = 0;
        while at < total {
            subject.write(at, &data(at, piece));
            at += piece;
        }
        check_empty(&subject.cache);
        let on_disk = subject.format.on_disk();
        assert!(on_disk[..at as usize] == data(0, at), "by {piece}");
    }
    assert_eq!(subject.cache.stats().folios_reclaimed, 0);
    assert_eq!(subject.format.reserved(), 0);
}

#[test]
fn a_writer_does_not_wait_for_the_device_before_the_limit() {
    let subject = writing();
    let gate = subject.counted.gate.lock();
    let written = AtomicU64::new(0);
    thread::scope(|scope| {
        let (waits, waiting) = mpsc::channel();
        let (subject, written) = (&subject, &written);
        let writer = scope.spawn(move || {
            let _listening = base::waiting::listen(move || waits.send(()).expect("no panic"));
            for part in 0..80 {
                subject.write(part * 65_536, &data(part * 65_536, 65_536));
                written.fetch_add(65_536, Ordering::Relaxed);
            }
        });
        waiting.recv().expect("the writer never waits");
        // No data is on the device, and no folio has left the cache.
        assert_eq!(written.load(Ordering::Relaxed), LIMIT + 65_536);
        assert_eq!(subject.bytes_not_written(), LIMIT + 65_536);
        // All of it is submitted before any write has to end.
        wait_until("all is submitted", || {
            subject.counted.written.load(Ordering::Relaxed) >= LIMIT + 65_536
        });
        open(&subject.counted, gate);
        writer.join().expect("no panic");
    });
    check_empty(&subject.cache);
    assert!(subject.format.on_disk() == data(0, 80 * 65_536));
}

/// Checks that a folio with both pages is not under writeback after `write`, once 1 MiB of that is
/// submitted. Tries again if this thread was delayed for about as long as tails wait (100 ms),
/// since it sees nothing then.
fn check_tail_waits(pages: [u64; 2], write: impl Fn(&Writing)) {
    let checked = (0..200).any(|_| {
        let subject = writing();
        subject.write(1 << 20, &data(1 << 20, 65_536));
        check_empty(&subject.cache);
        let gate = subject.counted.gate.lock();
        let start = Instant::now();
        write(&subject);
        wait_until("all is submitted", || {
            subject.counted.written.load(Ordering::Relaxed) >= 65_536 + (1 << 20)
        });
        let tail_waits = pages.iter().all(|&page| {
            subject.file.mapping().get(page).is_some_and(|folio| !folio.is_under_writeback())
        });
        let in_time = start.elapsed() < Duration::from_millis(90);
        open(&subject.counted, gate);
        check_empty(&subject.cache);
        assert!(tail_waits || !in_time);
        in_time
    });
    assert!(checked, "this machine is too slow for the test");
}

#[test]
fn writeback_of_a_tail_that_the_next_write_may_continue_waits_for_a_moment() {
    // Both pages are of one folio, for whose writeback a write at byte 6000 would wait.
    check_tail_waits([0, 1], |subject| {
        subject.write(0, &data(0, 6000));
        // Enough for a large request.
        subject.write(2 << 20, &data(2 << 20, 1 << 20));
    });
    let subject = writing();
    for part in 0..300 {
        subject.write(part * 1000, &data(part * 1000, 1000));
    }
    check_empty(&subject.cache);
    assert!(subject.format.on_disk() == data(0, 300_000));
}

#[test]
fn writeback_of_the_last_folio_of_a_large_write_waits_for_a_moment_too() {
    let at = 2 << 20;
    check_tail_waits([768, 769], |subject| {
        subject.write(at, &data(at, (1 << 20) + 6000));
    });
}

#[test]
fn cached_folios_are_written_and_stay() {
    let subject = writing();
    assert_eq!(write(&subject.file, FileOffset(0), &data(0, 65_536)), Ok(65_536));
    subject.write(4096, &data(4096, 200_000));
    let folio = subject.file.mapping().get(0).expect("cached");
    let length = folio.len() as u64;
    drop(folio);
    wait_until("all data is written", || subject.bytes_not_written() == 0);
    assert!(subject.format.on_disk() == data(0, 204_096));
    let stays = |subject: &Writing| subject.cache.stats().bytes_resident == length;
    wait_until("a folio that stays", || stays(&subject));
    // So does a folio that a cached write finds.
    subject.write(1 << 20, &data(1 << 20, 4096));
    assert_eq!(write(&subject.file, FileOffset(1 << 20), &[3; 10]), Ok(10));
    write_back(&subject.file, 0..u64::MAX);
    wait_for_writeback(&subject.file, 0..u64::MAX);
    assert!(
        subject.file.mapping().get((1 << 20) >> 12).is_some() || {
            // It had left the cache before.
            subject.cache.stats().folios_dropped > 1
        }
    );
}

#[test]
fn a_dirty_folio_that_is_read_uncached_stays_until_it_is_written() {
    let subject = writing();
    let gate = subject.counted.gate.lock();
    subject.write(0, &data(0, 65_536));
    let context = subject.file.read_context();
    let context = ReadContext { options: UNCACHED, ..context };
    let mut buffer = vec![0; 65_536];
    let got = read(&context, &Readahead::default(), FileOffset(0), &mut buffer);
    assert_eq!(got, Ok(65_536));
    assert!(buffer == data(0, 65_536));
    assert_eq!(
        (subject.bytes_not_written(), subject.cache.stats().bytes_resident),
        (65_536, 65_536)
    );
    open(&subject.counted, gate);
    check_empty(&subject.cache);
}

#[test]
fn a_failed_write_leaves_nothing() {
    let subject = writing();
    subject.write(0, &data(0, 65_536));
    check_empty(&subject.cache);
    // The rest of the block would have to be read.
    subject.counted.fails.store(true, Ordering::Relaxed);
    let refused = write_as(&subject.file, FileOffset(100), &[1; 10], Caching::Dropbehind);
    assert!(matches!(refused, Err(Error::Io(_))), "{refused:?}");
    assert_eq!(subject.cache.stats().bytes_resident, 0);
}
