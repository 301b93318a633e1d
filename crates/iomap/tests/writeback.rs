//! What writes ask of the format and of the device, one behaviour at a time.

mod support;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base::{DeviceOffset, Error, FileOffset, Result};
use device::{Bio, BioOperation, BlockDevice, FaultDevice, FaultPlan, MemoryDevice, SharedDevice};
use iomap::{
    EndIo, FinishedRange, Iomap, IomapKind, MapFlags, MapRead, MapWrite, PageCache, ReadOptions,
    Readahead, WritableFile, detach_cache, lend, punch_cache, read, seek_data, seek_hole,
    truncate_cache, wait_for_writeback, write, write_back, write_back_and_wait, zero_range,
};
use support::format::{Format, GARBAGE};
use support::{block_size, cache, wait_until};

/// A device that lists its requests, and holds writes back on demand.
#[derive(Debug)]
struct Gate {
    inner: Arc<MemoryDevice>,
    /// What was submitted, by operation, with the number of bytes.
    log: Mutex<Vec<(BioOperation, u64)>>,
    /// Writes of more bytes than this are held.
    hold_above: Mutex<u64>,
    held: Mutex<Vec<Bio>>,
}

impl Gate {
    fn new(inner: Arc<MemoryDevice>) -> Arc<Self> {
        let (log, held) = (Mutex::default(), Mutex::default());
        Arc::new(Self { inner, log, hold_above: Mutex::new(u64::MAX), held })
    }

    fn take_log(&self) -> Vec<(BioOperation, u64)> {
        std::mem::take(&mut self.log.lock().expect("no panic"))
    }

    fn hold_above(&self, bytes: u64) {
        *self.hold_above.lock().expect("no panic") = bytes;
    }

    fn release(&self) {
        self.hold_above(u64::MAX);
        self.inner.submit(std::mem::take(&mut self.held.lock().expect("no panic")));
    }
}

impl BlockDevice for Gate {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&self, batch: Vec<Bio>) {
        for bio in batch {
            self.log.lock().expect("no panic").push((bio.operation(), bio.length()));
            let above = *self.hold_above.lock().expect("no panic");
            if bio.operation() == BioOperation::Write && bio.length() > above {
                self.held.lock().expect("no panic").push(bio);
            } else {
                self.inner.submit(vec![bio]);
            }
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

struct Setup {
    format: Arc<Format>,
    gate: Arc<Gate>,
    file: Arc<WritableFile>,
    cache: Arc<PageCache>,
    end_io: Arc<EndIo>,
}

fn setup_with(cache: Arc<PageCache>, block_bytes: u64) -> Setup {
    let size = block_size(block_bytes);
    let format = Format::new(size, (16 << 20) / block_bytes, 1 << 20);
    let gate = Gate::new(format.device());
    let end_io = EndIo::start().expect("a thread");
    let file = writable(&cache, &format, gate.clone(), block_bytes, Arc::clone(&end_io));
    Setup { format, gate, file, cache, end_io }
}

fn setup(folio_order_max: u8, block_bytes: u64) -> Setup {
    setup_with(cache(32 << 20, folio_order_max), block_bytes)
}

fn writable(
    cache: &Arc<PageCache>,
    format: &Arc<Format>,
    device: SharedDevice,
    block_bytes: u64,
    end_io: Arc<EndIo>,
) -> Arc<WritableFile> {
    let (mapping, format) = (cache.new_mapping(block_size(block_bytes)), Arc::clone(format));
    let size = format.size();
    WritableFile::new(mapping, format, device, end_io, size, ReadOptions::default())
}

impl Setup {
    fn write(&self, at: u64, data: &[u8]) {
        assert_eq!(write(&self.file, FileOffset(at), data), Ok(data.len()));
    }

    fn sync(&self) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
    }

    /// Waits until the end of I/O has dealt with all that has ended on the device.
    fn settle(&self) {
        let format = Format::new(block_size(4096), 1, 1);
        let device = format.device();
        let other = writable(&self.cache, &format, device, 4096, Arc::clone(&self.end_io));
        assert_eq!(write(&other, FileOffset(0), &[1]), Ok(1));
        write_back(&other, 0..1);
        wait_for_writeback(&other, 0..1);
    }

    /// The same file with nothing cached.
    fn reopen(mut self, block_bytes: u64) -> Self {
        self.file = writable(
            &self.cache,
            &self.format,
            self.gate.clone(),
            block_bytes,
            Arc::clone(&self.end_io),
        );
        self.gate.take_log();
        self
    }

    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0; length];
        let context = self.file.read_context();
        let got = read(&context, &Readahead::default(), FileOffset(at), &mut buffer);
        buffer.truncate(got.expect("readable"));
        buffer
    }
}

#[test]
fn folios_are_as_large_as_the_write_and_the_option_allow() {
    for (order_max, length, expected) in
        [(9, 4096, 0), (9, 65_536, 4), (9, 2 << 20, 9), (0, 65_536, 0), (2, 65_536, 2)]
    {
        let setup = setup(order_max, 4096);
        setup.write(0, &vec![1; length]);
        let folios = setup.cache.stats().folios;
        assert_eq!(folios[expected] << expected << 12, length as u64, "{folios:?}");
    }
}

#[test]
fn a_write_reserves_once_and_a_rewrite_of_what_is_dirty_not_at_all() {
    for order_max in [0, 9] {
        let setup = setup(order_max, 4096);
        setup.write(0, &vec![1; 1 << 20]);
        assert_eq!(setup.format.map_writes.load(Ordering::Relaxed), 1);
        setup.write(12_345, &vec![2; 4096]);
        assert_eq!(setup.format.map_writes.load(Ordering::Relaxed), 1);
        assert!(setup.format.kinds().iter().all(|(_, kind)| *kind == IomapKind::Delalloc));
        assert_eq!(setup.gate.take_log(), []);
    }
}

#[test]
fn one_request_and_one_call_of_the_format_cover_many_folios() {
    for order_max in [0, 9] {
        let setup = setup(order_max, 4096);
        setup.write(0, &vec![1; 1 << 20]);
        setup.sync();
        assert_eq!(setup.gate.take_log(), [(BioOperation::Write, 1 << 20)]);
        // Once to allocate, and once since that changed what was known.
        assert!(setup.format.map_writebacks.load(Ordering::Relaxed) <= 2);
        assert_eq!(setup.format.end_ios.load(Ordering::Relaxed), 1);
        assert_eq!(setup.format.size(), 1 << 20);
    }
}

#[test]
fn only_dirty_blocks_of_a_large_folio_are_written() {
    let setup = setup(9, 1024);
    setup.write(0, &vec![1; 2 << 20]);
    setup.sync();
    setup.gate.take_log();
    setup.write(5000, &[2; 10]);
    assert_eq!(setup.cache.dirty_stats().bytes_dirty, 1024);
    setup.sync();
    assert_eq!(setup.gate.take_log(), [(BioOperation::Write, 1024)]);
}

#[test]
fn a_block_is_read_first_only_if_it_is_written_in_part_and_has_data() {
    let setup = setup(9, 4096);
    setup.write(0, &vec![1; 40_960]);
    setup.sync();
    let setup = setup.reopen(4096);
    setup.write(4096, &vec![2; 8192]);
    assert_eq!(setup.gate.take_log(), [], "whole blocks");
    setup.write(20_000, &[3; 4096]);
    let reads = setup.gate.take_log();
    assert_eq!(reads.iter().map(|(_, bytes)| bytes).sum::<u64>(), 8192, "{reads:?}");
    setup.write(50_000, &[4; 10]);
    assert_eq!(setup.gate.take_log(), [], "new blocks");
    let mut expected = vec![1; 40_960];
    expected[4096..12_288].fill(2);
    expected[20_000..24_096].fill(3);
    expected.resize(50_000, 0);
    expected.resize(50_010, 4);
    assert_eq!(setup.read(0, 1 << 20), expected);
    setup.sync();
    assert_eq!(setup.format.on_disk(), expected);
}

#[test]
fn the_size_on_the_disk_does_not_pass_the_old_last_block_before_that_is_written() {
    let setup = setup(9, 4096);
    setup.write(0, &[1; 5000]);
    setup.sync();
    setup.format.spoil_tail();
    let setup = setup.reopen(4096);
    // Far behind the end: its block is read, and made zeroes from there on.
    setup.write(100_000, &vec![2; 4096]);
    setup.gate.hold_above(0);
    write_back(&setup.file, 0..8192);
    setup.gate.hold_above(u64::MAX);
    write_back(&setup.file, 8192..u64::MAX);
    setup.settle();
    assert_eq!(setup.format.size(), 5000, "the old last block is on its way");
    setup.gate.release();
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert_eq!(setup.format.size(), 104_096);
    let mut expected = vec![1; 5000];
    expected.resize(100_000, 0);
    expected.resize(104_096, 2);
    assert_eq!(setup.format.on_disk(), expected);
}

#[test]
fn the_size_on_the_disk_follows_the_data() {
    let setup = setup(9, 4096);
    setup.write(0, &[1; 100]);
    assert_eq!((setup.file.size(), setup.format.size()), (100, 0));
    setup.gate.hold_above(0);
    write_back(&setup.file, 0..u64::MAX);
    assert_eq!(setup.format.size(), 0);
    assert_eq!(setup.format.kinds(), [(0, IomapKind::Unwritten)]);
    setup.gate.release();
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert_eq!(setup.format.size(), 100);
    assert_eq!(setup.format.kinds(), [(0, IomapKind::Mapped)]);
}

#[test]
fn data_counts_as_written_in_the_order_of_the_file() {
    let setup = setup(0, 4096);
    let on_disk = || (setup.format.size(), setup.format.kinds());
    use IomapKind::{Mapped, Unwritten};
    setup.write(0, &[1; 4096]);
    setup.gate.hold_above(0);
    write_back(&setup.file, 0..u64::MAX);
    setup.gate.hold_above(u64::MAX);
    // What follows arrives at once, and a commit may come now.
    setup.write(4096, &[2; 5000]);
    write_back(&setup.file, 0..u64::MAX);
    setup.settle();
    assert_eq!(on_disk(), (0, vec![(0, Unwritten), (1, Unwritten), (2, Unwritten)]));
    setup.gate.release();
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert_eq!(on_disk(), (9096, vec![(0, Mapped), (1, Mapped), (2, Mapped)]));

    // What is dirty counts as what is on its way.
    setup.write(9096, &[3; 10_000]);
    write_back_and_wait(&setup.file, 16_384..u64::MAX);
    assert_eq!(setup.format.size(), 19_096);
    assert_eq!(setup.format.on_disk()[9096..], [3; 10_000]);
    // What was never written between two writes stays a hole, and is not waited for.
    setup.write(40_960, &[4; 4096]);
    setup.write(32_768, &[5; 4096]);
    setup.gate.hold_above(0);
    write_back(&setup.file, 32_768..36_864);
    setup.write(61_440, &[6; 100]);
    setup.gate.release();
    setup.sync();
    assert_eq!(setup.format.size(), 61_540);
    assert_eq!(setup.format.kinds(), [0, 1, 2, 3, 4, 8, 10, 15].map(|block| (block, Mapped)));
}

#[test]
fn what_cannot_be_written_keeps_nothing_behind_it_waiting() {
    let setup = setup(0, 4096);
    let cursor = setup.file.errors().cursor();
    let told = || setup.file.errors().check(&cursor);
    setup.write(0, &[1; 4096]);
    setup.gate.hold_above(0);
    write_back(&setup.file, 0..u64::MAX);
    setup.gate.hold_above(u64::MAX);
    setup.write(4096, &[2; 4096]);
    write_back(&setup.file, 0..u64::MAX);
    // A request that is dropped has failed.
    setup.gate.held.lock().expect("no panic").clear();
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert!(matches!(told(), Err(Error::Io(_))));
    assert_eq!(setup.format.size(), 8192);

    setup.write(8192, &[3; 8192]);
    setup.format.fail(0, || Error::NoSpace);
    setup.sync();
    assert_eq!((told(), setup.format.size()), (Err(Error::NoSpace), 16_384));
    let mut expected = vec![0; 16_384];
    expected[4096..8192].fill(2);
    expected[12_288..].fill(3);
    assert_eq!(setup.format.on_disk(), expected);

    setup.write(16_384, &[4; 8192]);
    setup.format.fail(0, || panic!("as the test has it"));
    let panicked = catch_unwind(AssertUnwindSafe(|| write_back(&setup.file, 0..u64::MAX)));
    assert!(panicked.is_err());
    setup.sync();
    assert!(matches!(told(), Err(Error::Lost(_))));
    assert_eq!(setup.format.size(), 24_576);

    // With requests that were collected, and that the thread would have ended itself.
    for at in [4096, 12_288, 20_480] {
        setup.write(at, &[5; 4096]);
    }
    setup.format.fail(2, || panic!("as the test has it"));
    let wait = AssertUnwindSafe(|| write_back_and_wait(&setup.file, 0..u64::MAX));
    assert!(catch_unwind(wait).is_err());
    setup.sync();
    assert!(told().is_err());
    setup.write(24_576, &[6; 4096]);
    setup.sync();
    assert_eq!((told(), setup.format.size()), (Ok(()), 28_672));
}

#[test]
fn a_punched_tail_shows_nothing_that_was_cut_off() {
    let setup = setup(9, 1024);
    setup.write(0, &[1; 2000]);
    setup.sync();
    truncate_cache(&setup.file, 1500).expect("memory");
    setup.format.truncate(1500);
    setup.write(8192, &[2; 1000]);
    // The device has ones up to byte 2000. The blocks that are punched stay until the caller removes them.
    assert_eq!(punch_cache(&setup.file, 0..9192), Ok(0..9216));
    let on_disk = setup.format.on_disk();
    assert!(on_disk.iter().skip(1500).all(|&byte| byte != 1), "{on_disk:?}");
}

#[test]
fn a_truncation_is_not_undone_by_what_set_out_before() {
    let setup = setup(9, 4096);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                write_back(&setup.file, 0..u64::MAX);
            }
        });
        for _ in 0..30_000 {
            setup.write(0, &[1; 5000]);
            truncate_cache(&setup.file, 4500).expect("memory");
            setup.format.truncate(4500);
            wait_for_writeback(&setup.file, 0..u64::MAX);
            let (size, on_disk) = (setup.format.size(), setup.file.size_on_disk());
            if (size, on_disk) != (4500, 4500) {
                done.store(true, Ordering::Relaxed);
                panic!("{size} on the disk, known as {on_disk}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_end_of_io_from_before_a_truncation_does_not_undo_it() {
    let setup = setup(0, 4096);
    setup.write(0, &vec![1; 1 << 20]);
    setup.sync();
    setup.write(0, &[2; 4096]);
    let paused = setup.format.pause();
    write_back(&setup.file, 0..u64::MAX);
    // The end of that write is about to say that the file reaches as far as it did.
    wait_until("an end of I/O", || setup.format.waiting.load(Ordering::Relaxed) > 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            truncate_cache(&setup.file, 65_536).expect("memory");
            setup.format.truncate(65_536);
        });
        thread::sleep(Duration::from_millis(30));
        drop(paused);
    });
    setup.sync();
    assert_eq!(setup.format.size(), 65_536);
}

#[test]
fn a_written_folio_stays_cached_until_the_format_knows() {
    let setup = setup_with(cache(2 << 20, 9), 4096);
    setup.write(0, &vec![7; 65_536]);
    let end_io = setup.format.pause();
    write_back(&setup.file, 0..u64::MAX);
    // The device is done. If the folio went now, it would be read as unwritten.
    let other =
        writable(&setup.cache, &setup.format, setup.gate.clone(), 4096, Arc::clone(&setup.end_io));
    let context = iomap::ReadContext { size: 8 << 20, ..other.read_context() };
    let mut buffer = vec![0; 8 << 20];
    let _ = read(&context, &Readahead::default(), FileOffset(65_536), &mut buffer);
    assert_eq!(setup.read(0, 65_536), vec![7; 65_536]);
    drop(end_io);
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert_eq!(setup.read(0, 65_536), vec![7; 65_536]);
}

#[test]
fn who_waits_for_writeback_ends_what_has_ended_and_leaves_the_rest_to_the_thread() {
    let setup = setup(9, 4096);
    let ended_by = || *setup.format.ended_by.lock().expect("no panic");
    setup.write(0, &[7; 10_000]);
    write_back_and_wait(&setup.file, 0..u64::MAX);
    assert_eq!(ended_by(), Some(thread::current().id()));
    assert_eq!(setup.format.on_disk(), vec![7; 10_000]);
    // A device that ends later, on whatever thread.
    setup.write(0, &[8; 10_000]);
    setup.gate.hold_above(0);
    let device = thread::scope(|scope| {
        let device = scope.spawn(|| {
            wait_until("a request", || !setup.gate.held.lock().expect("no panic").is_empty());
            setup.gate.release();
            thread::current().id()
        });
        write_back_and_wait(&setup.file, 0..u64::MAX);
        device.join().expect("no panic")
    });
    assert_eq!(setup.format.on_disk(), vec![8; 10_000]);
    let ended_by = ended_by().expect("it has ended");
    assert!(ended_by != thread::current().id() && ended_by != device);
}

#[test]
fn a_cache_full_of_dirty_folios_is_written_back_by_who_needs_room() {
    let setup = setup_with(cache(512 << 10, 4), 4096);
    let data: Vec<u8> = (0..4_000_000).map(|at: u32| (at >> 10) as u8 & 0x7f).collect();
    setup.write(0, &data);
    assert!(setup.cache.stats().bytes_resident <= 512 << 10);
    setup.sync();
    assert!(setup.format.on_disk() == data);
}

#[test]
fn a_write_that_fails_is_heard_of_by_every_open_file_once() {
    let (format, cache) = (Format::new(block_size(4096), 100, 100), cache(1 << 20, 9));
    let plan = FaultPlan { write_errors: 1_000_000, ..FaultPlan::default() };
    let device = Arc::new(FaultDevice::new(format.device(), plan));
    let file = writable(&cache, &format, device, 4096, EndIo::start().expect("a thread"));
    let cursors = [file.errors().cursor(), file.errors().cursor()];
    for _ in 0..3 {
        write(&file, FileOffset(0), &[1; 10_000]).expect("in memory");
        write_back(&file, 0..u64::MAX);
        wait_for_writeback(&file, 0..u64::MAX);
    }
    for cursor in &cursors {
        assert!(matches!(file.errors().check(cursor), Err(Error::Io(_))));
        assert_eq!(file.errors().check(cursor), Ok(()));
    }
    assert_eq!(format.size(), 0, "nothing arrived");
}

#[test]
fn what_a_panic_keeps_from_being_written_is_told_and_all_goes_on() {
    let setup = setup(9, 4096);
    let cursor = setup.file.errors().cursor();
    for waits in [false, true] {
        setup.format.panics.store(true, Ordering::Relaxed);
        setup.write(0, &[1; 10_000]);
        if waits {
            write_back_and_wait(&setup.file, 0..u64::MAX);
        } else {
            write_back(&setup.file, 0..u64::MAX);
            wait_for_writeback(&setup.file, 0..u64::MAX);
        }
        let told = setup.file.errors().check(&cursor);
        assert!(matches!(told, Err(Error::Lost(_))), "{told:?}");
        setup.write(0, &[2; 10_000]);
        setup.sync();
        assert_eq!(setup.file.errors().check(&cursor), Ok(()));
        assert!(setup.format.on_disk() == [2; 10_000]);
    }
}

#[test]
fn a_write_without_space_changes_nothing_and_keeps_nothing_reserved() {
    let (format, cache) = (Format::new(block_size(4096), 10, 100), cache(1 << 20, 9));
    let file = writable(&cache, &format, format.device(), 4096, EndIo::start().expect("a thread"));
    assert_eq!(write(&file, FileOffset(0), &vec![1; 65_536]), Err(Error::NoSpace));
    assert_eq!((file.size(), format.reserved()), (0, 0));
    assert_eq!(write(&file, FileOffset(100), &[1; 30_000]), Ok(30_000));
    assert_eq!(format.reserved(), 8);
}

#[test]
fn a_write_that_fails_keeps_nothing_reserved_but_what_was_dirty_before() {
    let setup = setup(9, 4096);
    setup.write(0, &[1; 4096]);
    setup.sync();
    let device = Arc::new(FaultDevice::new(setup.format.device(), FaultPlan::default()));
    let file =
        writable(&setup.cache, &setup.format, device.clone(), 4096, Arc::clone(&setup.end_io));
    assert_eq!(write(&file, FileOffset(20_480), &[2; 4096]), Ok(4096));
    device.fail_reads_in(0..u64::MAX);
    let failed = write(&file, FileOffset(100), &[3; 40_000]);
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    assert_eq!(setup.format.reserved(), 1);
    device.heal();
    write_back(&file, 0..u64::MAX);
    wait_for_writeback(&file, 0..u64::MAX);
    assert_eq!(file.errors().check(&file.errors().cursor()), Ok(()));
    let expected = [vec![1; 4096], vec![0; 16_384], vec![2; 4096]].concat();
    assert_eq!(setup.format.on_disk(), expected);
}

#[test]
fn nothing_of_a_file_is_on_its_way_when_a_part_of_it_is_to_move() {
    let setup = setup(0, 4096);
    setup.write(0, &vec![1; 65_536]);
    setup.sync();
    setup.write(4096, &vec![2; 8192]);
    setup.write(40_000, &vec![3; 30_000]);
    detach_cache(&setup.file, 32_768);
    // What ends later would change what the format knows of blocks amid their moving.
    assert_eq!(setup.cache.dirty_stats().bytes_dirty, 0);
    assert!(setup.file.mapping().next_under_writeback(0..u64::MAX).is_none());
    assert_eq!(setup.file.mapping().next_cached(8..u64::MAX >> 12), None);
    assert_eq!(setup.file.size_on_disk(), 70_000);
    let on_disk = setup.format.on_disk();
    assert_eq!((on_disk[4096], on_disk[40_000], on_disk.len()), (2, 3, 70_000));
}

#[test]
fn zeroes_are_written_only_over_data() {
    let setup = setup(9, 4096);
    setup.write(0, &vec![1; 65_536]);
    setup.sync();
    truncate_cache(&setup.file, 1 << 20).expect("memory");
    setup.format.truncate(1 << 20);
    setup.format.preallocate(65_536..131_072);
    setup.gate.take_log();
    zero_range(&setup.file, 60_000..1 << 20).expect("memory");
    assert_eq!(setup.cache.dirty_stats().bytes_dirty, 8192);
    assert_eq!(setup.read(59_999, 65_536), [vec![1], vec![0; 65_535]].concat());
    setup.sync();
    let writes: u64 = setup.gate.take_log().iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(writes, 8192);
}

#[test]
fn what_is_cut_off_does_not_come_back_when_the_file_grows() {
    for order_max in [0, 9] {
        let setup = setup(order_max, 4096);
        setup.write(0, &vec![1; 65_536]);
        setup.sync();
        setup.write(30_000, &vec![2; 35_536]);
        let lent =
            lend(&setup.file.read_context(), &Readahead::default(), FileOffset(20_480), 4096);
        let lent = lent.expect("readable");
        truncate_cache(&setup.file, 21_000).expect("memory");
        setup.format.truncate(21_000);
        assert_eq!(*lent, [1; 4096], "a snapshot");
        truncate_cache(&setup.file, 65_536).expect("memory");
        setup.format.truncate(65_536);
        let mut expected = vec![1; 21_000];
        expected.resize(65_536, 0);
        assert_eq!(setup.read(0, 65_536), expected);
        assert_eq!(setup.format.on_disk(), expected, "before the size grew");
        punch_cache(&setup.file, 100..9000)
            .map(|blocks| setup.format.punch(blocks))
            .expect("memory");
        expected[100..9000].fill(0);
        assert_eq!(setup.read(0, 65_536), expected);
        setup.sync();
        assert_eq!(setup.format.on_disk(), expected);
        assert!(!setup.format.on_disk().contains(&GARBAGE));
    }
}

#[test]
fn data_in_the_cache_is_data_even_where_blocks_are_unwritten() {
    let setup = setup(9, 4096);
    truncate_cache(&setup.file, 1 << 20).expect("memory");
    setup.format.truncate(1 << 20);
    setup.format.preallocate(0..1 << 20);
    let data = |at| seek_data(&setup.file.read_context(), FileOffset(at)).map(|at| at.0);
    let hole = |at| seek_hole(&setup.file.read_context(), FileOffset(at)).map(|at| at.0);
    setup.read(600_000, 20_000);
    assert_eq!((data(0), hole(0)), (Err(Error::NoSuchOffset), Ok(0)), "zeroes that were read");
    setup.write(100_000, &[1; 5000]);
    for when in ["dirty", "under writeback", "written"] {
        // Blocks 24 and 25.
        assert_eq!((data(0), hole(99_000)), (Ok(98_304), Ok(106_496)), "{when}");
        assert_eq!((data(106_496), hole(110_000)), (Err(Error::NoSuchOffset), Ok(110_000)));
        match when {
            "dirty" => {
                setup.gate.hold_above(0);
                write_back(&setup.file, 0..u64::MAX);
            }
            _ => {
                setup.gate.release();
                wait_for_writeback(&setup.file, 0..u64::MAX);
            }
        }
    }
}

/// A file within its inode.
#[derive(Debug)]
struct InlineFile(Mutex<Vec<u8>>);

impl MapRead for InlineFile {
    fn map_read(&self, _: FileOffset, _: u64) -> Result<Iomap> {
        let length = self.inline_data()?.len().max(1) as u64;
        let (kind, flags) = (IomapKind::Inline, MapFlags::default());
        Ok(Iomap { offset: FileOffset(0), length, kind, address: None, flags })
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Ok(self.0.lock().expect("no panic").clone())
    }
}

impl MapWrite for InlineFile {
    fn map_write(&self, _: FileOffset, _: u64) -> Result<Iomap> {
        Err(Error::NoSpace)
    }

    fn end_write(&self, _: Range<FileOffset>) {}

    fn map_writeback(&self, _: FileOffset, _: u64) -> Result<Iomap> {
        panic!("nothing is dirty")
    }

    fn end_io(&self, _: &[FinishedRange], _: FileOffset) -> Result<()> {
        Ok(())
    }
}

#[test]
fn inline_data_that_is_cut_off_does_not_come_back() {
    let inline = Arc::new(InlineFile(Mutex::new(vec![1; 100])));
    let mapping = cache(1 << 20, 9).new_mapping(block_size(4096));
    let device = Arc::new(MemoryDevice::new(Vec::new()));
    let (end_io, options) = (EndIo::start().expect("a thread"), ReadOptions::default());
    let file = WritableFile::new(mapping, inline.clone(), device, end_io, 100, options);
    let expect = |size: usize| {
        let mut buffer = vec![9; 200];
        let context = file.read_context();
        let got = read(&context, &Readahead::default(), FileOffset(0), &mut buffer);
        assert_eq!(got, Ok(size));
        let expected = [vec![1; size.min(50)], vec![0; size - size.min(50)]].concat();
        assert_eq!(buffer[..size], expected);
    };
    let mut buffer = [0; 100];
    read(&file.read_context(), &Readahead::default(), FileOffset(0), &mut buffer).expect("inline");
    for size in [50, 70, 90] {
        truncate_cache(&file, size).expect("memory");
        inline.0.lock().expect("no panic").resize(size as usize, 0);
        expect(size as usize);
    }
    assert_eq!(write(&file, FileOffset(120), b"not inline"), Err(Error::NoSpace));
    expect(90);
}
