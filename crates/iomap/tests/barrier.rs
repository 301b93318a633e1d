//! The barrier of writes (`EndIo::hold_writes`): holders, writes in flight, and writes that begin.

mod support;

use std::sync::Arc;
use std::thread;

use base::FileOffset;
use iomap::{
    DirectBatch, DirectRequest, Refused, SplitExtents, overwrite_direct, wait_for_direct,
    write_back_and_wait,
};
use support::format::Mode;
use support::gate::{Setup, setup_of};
use support::waiting::Waiter;
use support::{cache, wait_until};

const BLOCK: u64 = 4096;

/// The ways in which data is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Cached,
    Direct,
}

/// Returns a file of four written blocks, which is written out of place. Each block has a folio of its own.
fn four_blocks() -> Setup {
    let setup = setup_of(cache(32 << 20, 0), BLOCK, Mode::OutOfPlace { orders_size: true });
    setup.write(0, &[1; 4 * BLOCK as usize]);
    setup.sync();
    setup
}

/// Makes a block dirty if it is to be written back. A cached write would wait for a direct write in flight.
fn prepare(setup: &Setup, kind: Kind, block: u64, byte: u8) {
    if kind == Kind::Cached {
        setup.write(block * BLOCK, &[byte; BLOCK as usize]);
    }
}

/// Writes a block that was prepared, and waits until it is on the device.
fn write_block(setup: &Setup, kind: Kind, block: u64, byte: u8) {
    let at = block * BLOCK;
    match kind {
        Kind::Cached => write_back_and_wait(&setup.file, at..at + BLOCK),
        Kind::Direct => {
            let data = [byte; BLOCK as usize];
            let split = SplitExtents::AtEnd;
            let written = overwrite_direct(&setup.file, FileOffset(at), &data, split, ());
            assert_eq!(written, Ok(Ok(data.len())));
        }
    }
}

fn check(in_flight: Kind, later: Kind) {
    let setup = four_blocks();
    prepare(&setup, in_flight, 0, 8);
    prepare(&setup, later, 2, 9);
    let (first, holder, second) = (Waiter::default(), Waiter::default(), Waiter::default());
    setup.gate.hold_above(0);
    thread::scope(|scope| {
        scope.spawn(|| first.run(|| write_block(&setup, in_flight, 0, 8)));
        wait_until("a write is in flight", || setup.gate.held.lock().expect("no panic").len() == 1);
        let holding = scope.spawn(|| holder.run(|| setup.end_io.hold_writes()));
        let holder_waits = holder.begins_to_wait();
        scope.spawn(|| second.run(|| write_block(&setup, later, 2, 9)));
        let second_waits = second.begins_to_wait();
        setup.gate.take_log();
        setup.release();
        let held = holding.join().expect("no panic");
        // Before any assertion: a panic drops `held`, and the threads go on.
        assert!(holder_waits, "the holder does not wait for the write in flight");
        assert!(second_waits, "the later write does not wait for the holder");
        assert!(second.begins_to_wait(), "the later write goes on while the barrier is held");
        assert_eq!(setup.format.placements(), 0, "blocks are placed while the barrier is held");
        assert_eq!(setup.gate.take_log(), [], "a write is submitted while the barrier is held");
        assert_eq!(setup.format.on_disk()[0], 8, "the first write has not ended");
        drop(held);
    });
    assert_eq!(setup.format.on_disk()[2 * BLOCK as usize], 9);
    assert_eq!(setup.format.placements(), 0);
}

#[test]
fn a_holder_waits_for_writes_in_flight_and_later_writes_wait_for_the_holder() {
    for in_flight in [Kind::Cached, Kind::Direct] {
        for later in [Kind::Cached, Kind::Direct] {
            check(in_flight, later);
        }
    }
}

#[test]
fn a_batch_that_has_passed_the_barrier_writes_back_while_a_holder_waits() {
    let setup = Arc::new(four_blocks());
    setup.write(2 * BLOCK, &[7; BLOCK as usize]);
    let overwrite = |batch: &mut DirectBatch, file: &_, block: u64, byte: u8| {
        let (at, data) = (FileOffset(block * BLOCK), vec![byte; BLOCK as usize]);
        let request = DirectRequest::owning(at, data, |_, written| {
            assert_eq!(written, Ok(BLOCK as usize));
        });
        let added = batch.overwrite(file, request, SplitExtents::AtEnd, false);
        added.map_err(|(refused, _)| refused)
    };
    let mut batch = DirectBatch::default();
    let past_end = overwrite(&mut batch, &setup.file, 4, 8);
    assert_eq!(past_end, Err(Refused::NeedsAlone), "it has passed the barrier");
    let (holder, writer) = (Arc::new(Waiter::default()), Arc::new(Waiter::default()));
    let (theirs, end_io) = (Arc::clone(&holder), Arc::clone(&setup.end_io));
    let holding = thread::spawn(move || theirs.run(|| end_io.hold_writes()));
    assert!(holder.begins_to_wait(), "the holder does not wait for the batch");
    let (theirs, its_setup) = (Arc::clone(&writer), Arc::clone(&setup));
    let writing = thread::spawn(move || {
        theirs.run(move || {
            // Its block is dirty in the cache, and is written back first.
            assert_eq!(overwrite(&mut batch, &its_setup.file, 2, 9), Ok(()));
            batch.submit(&*its_setup.format.device());
        });
    });
    wait_until("the batch is submitted", || writer.has_ended());
    writing.join().expect("no panic");
    drop(holding.join().expect("no panic"));
    wait_for_direct(&setup.file);
    let on_disk = setup.format.on_disk();
    assert_eq!((on_disk[0], on_disk[2 * BLOCK as usize]), (1, 9));
}
