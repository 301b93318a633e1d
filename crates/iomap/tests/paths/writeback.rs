//! Calls of the format and requests to the device that writes and writeback cause.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use crate::support::format::{Format, GARBAGE};
use crate::support::gate::{setup, setup_with, writable};
use crate::support::{block_size, cache, wait_until};
use base::{Error, FileOffset, Result};
use device::{BioOperation, FaultDevice, FaultPlan, MemoryDevice};
use iomap::{
    DirectBatch, DirectRequest, EndIo, FinishedRange, Iomap, IomapKind, MapFlags, MapRead,
    MapWrite, ReadOptions, Readahead, SplitExtents, WritableFile, detach_cache, lend,
    note_size_on_disk, punch_cache, read, seek_data, seek_hole, truncate_cache, wait_for_writeback,
    write, write_back, write_back_and_wait, zero_range,
};

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
fn a_write_reserves_once_and_a_write_to_dirty_blocks_reserves_nothing() {
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
        // Once to allocate, and once since the allocation changed the generation.
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
fn a_folio_that_is_replaced_by_a_copy_is_data_all_the_time() {
    let setup = setup(9, 4096);
    let (mapping, copies) = (setup.file.mapping(), AtomicU64::new(0));
    setup.write(0, &vec![1; 2 << 20]);
    let check = |number| {
        // The other thread starts to copy about now.
        copies.store(number, Ordering::Relaxed);
        if seek_data(&setup.file.read_context(), FileOffset(0)) != Ok(FileOffset(0)) {
            return Err("data is reported as a hole");
        }
        zero_range(&setup.file, 100..300).expect("memory");
        let found = setup.read(100, 200);
        setup.write(100, &[1; 200]);
        if found == [0; 200] { Ok(()) } else { Err("zeroed data reappears") }
    };
    thread::scope(|scope| {
        // Without the inode's lock, as the thread that reclaims mapped folios.
        scope.spawn(|| {
            let mut last = 0;
            while last < u64::MAX {
                let next = copies.load(Ordering::Relaxed);
                if let (true, Some(folio)) = (next > last, mapping.get(0)) {
                    let folio = mapping.lock(&folio);
                    if mapping.holds(&folio) {
                        let _ = mapping.replace_by_copy(folio);
                    }
                }
                last = next;
            }
        });
        let checked = (1..500).try_for_each(check);
        copies.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(checked, Ok(()));
    });
}

#[test]
fn a_written_folio_stays_cached_until_the_format_is_called() {
    let setup = setup_with(cache(2 << 20, 9), 4096);
    setup.write(0, &vec![7; 65_536]);
    let end_io = setup.format.pause();
    write_back(&setup.file, 0..u64::MAX);
    // The I/O has ended. If the folio were evicted now, it would be read as unwritten.
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
fn a_waiter_completes_writes_that_have_ended_and_the_thread_completes_later_ones() {
    let setup = setup(9, 4096);
    let ended_by = || *setup.format.ended_by.lock().expect("no panic");
    setup.write(0, &[7; 10_000]);
    write_back_and_wait(&setup.file, 0..u64::MAX);
    assert_eq!(ended_by(), Some(thread::current().id()));
    assert_eq!(setup.format.on_disk(), vec![7; 10_000]);
    // A device that ends the write later, on another thread.
    setup.write(0, &[8; 10_000]);
    setup.gate.hold_above(0);
    let device = thread::scope(|scope| {
        let device = scope.spawn(|| {
            wait_until("a request", || !setup.gate.held.lock().expect("no panic").is_empty());
            setup.release();
            thread::current().id()
        });
        write_back_and_wait(&setup.file, 0..u64::MAX);
        device.join().expect("no panic")
    });
    assert_eq!(setup.format.on_disk(), vec![8; 10_000]);
    let ended_by = ended_by().expect("the write has ended");
    assert!(ended_by != thread::current().id() && ended_by != device);
}

#[test]
fn a_writer_that_needs_room_writes_back_a_cache_full_of_dirty_folios() {
    let setup = setup_with(cache(512 << 10, 4), 4096);
    let data: Vec<u8> = (0..4_000_000).map(|at: u32| (at >> 10) as u8 & 0x7f).collect();
    setup.write(0, &data);
    assert!(setup.cache.stats().bytes_resident <= 512 << 10);
    setup.sync();
    assert!(setup.format.on_disk() == data);
}

#[test]
fn every_open_file_reports_a_failed_write_once() {
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
    assert_eq!(format.size(), 0, "no data is on the device");
}

#[test]
fn data_lost_by_a_panic_is_reported_and_later_writes_succeed() {
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
        let error = setup.file.errors().check(&cursor);
        assert!(matches!(error, Err(Error::Lost(_))), "{error:?}");
        setup.write(0, &[2; 10_000]);
        setup.sync();
        assert_eq!(setup.file.errors().check(&cursor), Ok(()));
        assert!(setup.format.on_disk() == [2; 10_000]);
    }
}

#[test]
fn a_write_without_space_changes_nothing_and_leaves_no_reservation() {
    let (format, cache) = (Format::new(block_size(4096), 10, 100), cache(1 << 20, 9));
    let file = writable(&cache, &format, format.device(), 4096, EndIo::start().expect("a thread"));
    assert_eq!(write(&file, FileOffset(0), &vec![1; 65_536]), Err(Error::NoSpace));
    assert_eq!((file.size(), format.reserved()), (0, 0));
    assert_eq!(write(&file, FileOffset(100), &[1; 30_000]), Ok(30_000));
    assert_eq!(format.reserved(), 8);
}

#[test]
fn a_failed_write_leaves_only_reservations_of_data_that_was_dirty_before() {
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
fn no_write_of_a_file_is_in_flight_before_a_part_of_it_moves() {
    let setup = setup(0, 4096);
    setup.write(0, &vec![1; 65_536]);
    setup.sync();
    setup.write(4096, &vec![2; 8192]);
    setup.write(40_000, &vec![3; 30_000]);
    detach_cache(&setup.file, 32_768);
    // The end of a later write would change the map during the move.
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
fn truncated_data_does_not_reappear_when_the_file_grows() {
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
fn an_end_of_io_does_not_set_a_size_before_the_format_has_grown() {
    for size in [12_288, 10_000] {
        let setup = setup(9, 4096);
        setup.write(8192, &vec![1; size - 8192]);
        setup.sync();
        setup.write(0, &[2; 4096]);
        truncate_cache(&setup.file, 65_536).expect("memory");
        setup.sync();
        assert_eq!((setup.format.size(), setup.file.size_on_disk()), (size as u64, size as u64));
        setup.format.truncate(65_536);
        note_size_on_disk(&setup.file);
        setup.write(0, &[3; 4096]);
        setup.sync();
        assert_eq!((setup.format.size(), setup.file.size_on_disk()), (65_536, 65_536));
        assert!(setup.read(size as u64, 65_536 - size).iter().all(|&byte| byte == 0));
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
                setup.release();
                wait_for_writeback(&setup.file, 0..u64::MAX);
            }
        }
    }
}

#[test]
fn direct_writes_of_the_same_unwritten_blocks_are_one_range_for_the_format() {
    let setup = setup(9, 4096);
    truncate_cache(&setup.file, 8192).expect("memory");
    setup.format.truncate(8192);
    note_size_on_disk(&setup.file);
    setup.format.preallocate(0..8192);
    let (results, ended) = mpsc::channel();
    let overwrite = |batch: &mut DirectBatch, at: u64, byte: u8| {
        let results = results.clone();
        let done = move |_, written| results.send(written).expect("the test waits");
        let request = DirectRequest::owning(FileOffset(at), vec![byte; 4096], done);
        batch.overwrite(&setup.file, request, SplitExtents::AtEnd, false).expect("admitted");
    };
    // While the thread is at the end of the first write, the others end, and are completed
    // together.
    let paused = setup.format.pause();
    let mut batch = DirectBatch::default();
    overwrite(&mut batch, 0, 1);
    batch.submit(&*setup.format.device());
    wait_until("an end of I/O", || setup.format.waiting.load(Ordering::Relaxed) > 0);
    let mut batch = DirectBatch::default();
    overwrite(&mut batch, 4096, 2);
    overwrite(&mut batch, 4096, 2);
    batch.submit(&*setup.format.device());
    drop(paused);
    for _ in 0..3 {
        assert_eq!(ended.recv().expect("three writes"), Ok(4096));
    }
    assert_eq!(setup.format.end_ios.load(Ordering::Relaxed), 2);
    assert_eq!(setup.format.on_disk(), [[1; 4096], [2; 4096]].concat());
}

/// A file with inline data.
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
fn truncated_inline_data_does_not_reappear() {
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
