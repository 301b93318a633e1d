//! The order in which writes complete, also with truncations among them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::gate::setup;
use crate::support::wait_until;
use crate::support::waiting::Waiter;
use base::Error;
use iomap::{
    IomapKind, punch_cache, truncate_cache, wait_for_writeback, write_back, write_back_and_wait,
};

#[test]
fn the_size_on_the_disk_does_not_pass_the_old_last_block_before_it_is_written() {
    let setup = setup(9, 4096);
    setup.write(0, &[1; 5000]);
    setup.sync();
    setup.format.spoil_tail();
    let setup = setup.reopen(4096);
    // Far past the end, whose block is read, and zeroed from the end on.
    setup.write(100_000, &vec![2; 4096]);
    setup.gate.hold_above(0);
    write_back(&setup.file, 0..8192);
    setup.gate.hold_above(u64::MAX);
    write_back(&setup.file, 8192..u64::MAX);
    setup.wait_for_ended_writes();
    assert_eq!(setup.format.size(), 5000, "the old last block is in flight");
    setup.release();
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
    setup.release();
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert_eq!(setup.format.size(), 100);
    assert_eq!(setup.format.kinds(), [(0, IomapKind::Mapped)]);
}

#[test]
fn writes_complete_in_the_order_of_the_file() {
    let setup = setup(0, 4096);
    let on_disk = || (setup.format.size(), setup.format.kinds());
    use IomapKind::{Mapped, Unwritten};
    setup.write(0, &[1; 4096]);
    setup.gate.hold_above(0);
    write_back(&setup.file, 0..u64::MAX);
    setup.gate.hold_above(u64::MAX);
    // The data behind is on the device at once, and a commit may come now.
    setup.write(4096, &[2; 5000]);
    write_back(&setup.file, 0..u64::MAX);
    setup.wait_for_ended_writes();
    assert_eq!(on_disk(), (0, vec![(0, Unwritten), (1, Unwritten), (2, Unwritten)]));
    setup.release();
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert_eq!(on_disk(), (9096, vec![(0, Mapped), (1, Mapped), (2, Mapped)]));

    // Dirty data counts like data in flight.
    setup.write(9096, &[3; 10_000]);
    write_back_and_wait(&setup.file, 16_384..u64::MAX);
    assert_eq!(setup.format.size(), 19_096);
    assert_eq!(setup.format.on_disk()[9096..], [3; 10_000]);
    // A hole between two writes stays one, and no write waits for it.
    setup.write(40_960, &[4; 4096]);
    setup.write(32_768, &[5; 4096]);
    setup.gate.hold_above(0);
    write_back(&setup.file, 32_768..36_864);
    setup.write(61_440, &[6; 100]);
    setup.release();
    setup.sync();
    assert_eq!(setup.format.size(), 61_540);
    assert_eq!(setup.format.kinds(), [0, 1, 2, 3, 4, 8, 10, 15].map(|block| (block, Mapped)));
}

#[test]
fn past_the_size_on_the_disk_a_bio_covers_one_range() {
    let setup = setup(0, 4096);
    let writes = || setup.gate.take_log().into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>();
    for at in [0, 1 << 20] {
        setup.write(at, &[1; 4096]);
    }
    // Adjacent on the device, but data between them in the file completes before the second.
    setup.sync();
    assert_eq!(writes(), [4096, 4096]);
    for at in [0, 1 << 20] {
        setup.write(at, &[2; 4096]);
    }
    setup.sync();
    assert_eq!(writes(), [8192]);
}

#[test]
fn later_data_does_not_wait_for_data_that_cannot_be_written() {
    let setup = setup(0, 4096);
    let cursor = setup.file.errors().cursor();
    let error = || setup.file.errors().check(&cursor);
    setup.write(0, &[1; 4096]);
    setup.gate.hold_above(0);
    write_back(&setup.file, 0..u64::MAX);
    setup.gate.hold_above(u64::MAX);
    setup.write(4096, &[2; 4096]);
    write_back(&setup.file, 0..u64::MAX);
    // A bio that is dropped fails.
    setup.gate.held.lock().expect("no panic").clear();
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert!(matches!(error(), Err(Error::Io(_))));
    assert_eq!(setup.format.size(), 8192);

    setup.write(8192, &[3; 8192]);
    setup.format.fail(0, || Error::NoSpace);
    setup.sync();
    assert_eq!((error(), setup.format.size()), (Err(Error::NoSpace), 16_384));
    let mut expected = vec![0; 16_384];
    expected[4096..8192].fill(2);
    expected[12_288..].fill(3);
    assert_eq!(setup.format.on_disk(), expected);

    setup.write(16_384, &[4; 8192]);
    setup.format.fail(0, || panic!("as the test has it"));
    let panicked = catch_unwind(AssertUnwindSafe(|| write_back(&setup.file, 0..u64::MAX)));
    assert!(panicked.is_err());
    setup.sync();
    assert!(matches!(error(), Err(Error::Lost(_))));
    assert_eq!(setup.format.size(), 24_576);

    // With collected bios, which this thread would have completed itself.
    for at in [4096, 12_288, 20_480] {
        setup.write(at, &[5; 4096]);
    }
    setup.format.fail(2, || panic!("as the test has it"));
    let wait = AssertUnwindSafe(|| write_back_and_wait(&setup.file, 0..u64::MAX));
    assert!(catch_unwind(wait).is_err());
    setup.sync();
    assert!(error().is_err());
    setup.write(24_576, &[6; 4096]);
    setup.sync();
    assert_eq!((error(), setup.format.size()), (Ok(()), 28_672));
}

#[test]
fn a_punched_tail_exposes_no_truncated_data() {
    let setup = setup(9, 1024);
    setup.write(0, &[1; 2000]);
    setup.sync();
    truncate_cache(&setup.file, 1500).expect("memory");
    setup.format.truncate(1500);
    setup.write(8192, &[2; 1000]);
    // The device has ones up to byte 2000. The blocks that are punched stay until the caller
    // removes them.
    assert_eq!(punch_cache(&setup.file, 0..9192), Ok(0..9216));
    let on_disk = setup.format.on_disk();
    assert!(on_disk.iter().skip(1500).all(|&byte| byte != 1), "{on_disk:?}");
}

#[test]
fn concurrent_writeback_does_not_undo_a_truncation() {
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
                panic!("the format has size {size}, and the file {on_disk}");
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
    // The end of that write is about to set the old size.
    wait_until("an end of I/O", || setup.format.waiting.load(Ordering::Relaxed) > 0);
    let waiter = Waiter::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            waiter.run(|| {
                truncate_cache(&setup.file, 65_536).expect("memory");
                setup.format.truncate(65_536);
            });
        });
        let waits = waiter.begins_to_wait();
        drop(paused);
        assert!(waits, "the race was not reached");
    });
    setup.sync();
    assert_eq!(setup.format.size(), 65_536);
}
