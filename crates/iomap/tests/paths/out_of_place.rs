//! Writes out of place: placements and their tokens, failed writes, and direct writes.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::support::format::{Format, Mode};
use crate::support::gate::{Setup, setup_of, writable};
use crate::support::{block_size, cache};
use base::{Error, FileOffset, Result};
use device::{FaultDevice, FaultPlan};
use iomap::{
    EarlierReads, EndIo, IomapKind, Refused, SplitExtents, Transform, WritableFile,
    overwrite_direct, truncate_cache, wait_for_writeback, write, write_back, write_direct_alone,
};

const BLOCK: u64 = 4096;
const MODE: Mode = Mode::OutOfPlace { orders_size: true };

/// Returns a file of four written blocks, of 1, 2, 3 and 4.
fn four_blocks(mode: Mode) -> Setup {
    let setup = setup_of(cache(32 << 20, 9), BLOCK, mode);
    let data: Vec<u8> = (1..=4).flat_map(|byte| [byte; BLOCK as usize]).collect();
    setup.write(0, &data);
    setup.sync();
    setup
}

fn sync(file: &Arc<WritableFile>) {
    write_back(file, 0..u64::MAX);
    wait_for_writeback(file, 0..u64::MAX);
}

#[test]
fn data_is_written_to_new_blocks_and_the_old_ones_are_freed() {
    let setup = four_blocks(MODE);
    let (before, free) = (setup.format.addresses(), setup.format.free_blocks());
    setup.write(BLOCK, &[9; 2 * BLOCK as usize]);
    assert_eq!(setup.format.addresses(), before, "nothing moves before writeback");
    setup.sync();
    let after = setup.format.addresses();
    assert_eq!((after[0], after[3]), (before[0], before[3]), "blocks that were not dirty stay");
    assert!(before[1..3].iter().all(|old| !after.contains(old)), "{before:?} {after:?}");
    assert_eq!((setup.format.free_blocks(), setup.format.placements()), (free, 0));
    assert_eq!(setup.format.on_disk()[BLOCK as usize..3 * BLOCK as usize], [9; 2 * BLOCK as usize]);
}

#[test]
fn placements_cover_only_dirty_blocks_and_are_used_once() {
    let setup = four_blocks(MODE);
    setup.format.take_placed();
    for round in 0..2 {
        setup.write(0, &[7 + round; 100]);
        setup.write(2 * BLOCK, &[7 + round; 100]);
        setup.sync();
        assert_eq!(setup.format.take_placed(), [0..BLOCK, 2 * BLOCK..3 * BLOCK]);
    }
}

#[test]
fn the_old_data_stays_until_the_new_data_is_on_the_device() {
    let setup = four_blocks(MODE);
    let before = setup.format.on_disk();
    setup.gate.hold_above(0);
    setup.write(0, &[9; 4 * BLOCK as usize]);
    write_back(&setup.file, 0..u64::MAX);
    assert_eq!(setup.format.on_disk(), before);
    setup.release();
    wait_for_writeback(&setup.file, 0..u64::MAX);
    assert_eq!(setup.format.on_disk(), [9; 4 * BLOCK as usize]);
}

#[test]
fn a_failed_write_leaves_the_old_blocks_and_returns_the_new_ones() {
    let setup = four_blocks(MODE);
    let device = Arc::new(FaultDevice::new(setup.format.device(), FaultPlan::default()));
    let end_io = Arc::clone(&setup.end_io);
    let file = writable(&setup.cache, &setup.format, device.clone(), BLOCK, end_io);
    let (before, on_disk) = (setup.format.addresses(), setup.format.on_disk());
    let free = setup.format.free_blocks();
    device.fail_writes_in(0..u64::MAX);
    assert_eq!(write(&file, FileOffset(0), &[9; 6 * BLOCK as usize]), Ok(6 * BLOCK as usize));
    sync(&file);
    assert!(file.errors().check(&file.errors().cursor()).is_err());
    assert_eq!((setup.format.addresses(), setup.format.on_disk()), (before, on_disk));
    assert_eq!((setup.format.free_blocks(), setup.format.placements()), (free, 0));
    // The lost blocks can be written again, those without a block with a new reservation.
    device.heal();
    assert_eq!(write(&file, FileOffset(0), &[8; 6 * BLOCK as usize]), Ok(6 * BLOCK as usize));
    sync(&file);
    assert_eq!(setup.format.on_disk(), [8; 6 * BLOCK as usize]);
}

#[test]
fn an_error_of_a_placement_loses_only_its_data() {
    let setup = four_blocks(MODE);
    setup.write(0, &[9; 100]);
    setup.write(2 * BLOCK, &[9; 100]);
    setup.format.fail(0, || Error::ReadOnly);
    setup.sync();
    let cursor = setup.file.errors().cursor();
    assert_eq!(setup.file.errors().check(&cursor), Err(Error::ReadOnly));
    let on_disk = setup.format.on_disk();
    assert_eq!((on_disk[0], on_disk[2 * BLOCK as usize]), (1, 9));
    assert_eq!(setup.format.placements(), 0);
}

#[test]
fn writeback_asks_again_for_blocks_after_its_writes_were_submitted() {
    let setup = four_blocks(MODE);
    setup.write(0, &[9; BLOCK as usize]);
    setup.write(2 * BLOCK, &[9; BLOCK as usize]);
    // The second placement fails once.
    setup.format.fail(1, || Error::NoSpace);
    setup.sync();
    let cursor = setup.file.errors().cursor();
    assert_eq!(setup.file.errors().check(&cursor), Ok(()));
    let on_disk = setup.format.on_disk();
    assert_eq!((on_disk[0], on_disk[2 * BLOCK as usize]), (9, 9));
    assert_eq!(setup.format.placements(), 0);
}

thread_local! {
    /// A file whose placements look for earlier reads, and whether they have found any.
    static LOOKED_AT: RefCell<Option<(Arc<WritableFile>, bool)>> = const { RefCell::new(None) };
}

#[test]
fn writeback_is_no_earlier_read_of_its_own_folio() {
    let setup = four_blocks(MODE);
    setup.write(BLOCK, &[9; 2 * BLOCK as usize]);
    LOOKED_AT.set(Some((Arc::clone(&setup.file), true)));
    setup.format.fail(0, || {
        LOOKED_AT.with_borrow_mut(|looked_at| {
            let (file, is_found) = looked_at.as_mut().expect("a file");
            // A format that waits for blocks may move those of the folio first.
            *is_found = EarlierReads::of(file, 0..4 * BLOCK).is_some();
        });
        Error::NoSpace
    });
    setup.sync();
    let looked_at = LOOKED_AT.take();
    assert!(looked_at.is_some_and(|(_, is_found)| !is_found), "waits for its own lock");
    assert_eq!(setup.format.on_disk()[BLOCK as usize..3 * BLOCK as usize], [9; 2 * BLOCK as usize]);
}

#[test]
fn each_range_has_its_own_policy() {
    let setup = four_blocks(MODE);
    truncate_cache(&setup.file, 8 * BLOCK).expect("memory");
    setup.format.truncate(8 * BLOCK);
    setup.format.preallocate(4 * BLOCK..8 * BLOCK);
    let before = setup.format.addresses();
    setup.format.take_placed();
    setup.write(5 * BLOCK, &[5; BLOCK as usize]);
    setup.write(7 * BLOCK, &[7; BLOCK as usize]);
    setup.sync();
    assert_eq!(setup.format.take_placed(), []);
    assert_eq!(setup.format.addresses(), before, "preallocated blocks are written in place");
    // Block 5 is a written block now, and is written out of place the next time.
    setup.write(5 * BLOCK, &[6; BLOCK as usize]);
    setup.sync();
    assert!(setup.format.take_placed().into_iter().eq(std::iter::once(5 * BLOCK..6 * BLOCK)));
    assert_eq!(setup.format.kinds()[4], (4, IomapKind::Unwritten));
}

#[test]
fn the_size_follows_the_data_only_for_formats_that_order_it() {
    for orders_size in [true, false] {
        let setup = setup_of(cache(32 << 20, 0), BLOCK, Mode::OutOfPlace { orders_size });
        // The first block's write is held, the later ones are not.
        setup.write(0, &[1; BLOCK as usize]);
        setup.gate.hold_above(0);
        write_back(&setup.file, 0..BLOCK);
        setup.gate.hold_above(u64::MAX);
        setup.write(BLOCK, &[2; BLOCK as usize]);
        write_back(&setup.file, BLOCK..2 * BLOCK);
        setup.wait_for_ended_writes();
        let size = setup.format.size();
        assert_eq!(size, if orders_size { 0 } else { 2 * BLOCK });
        setup.release();
        setup.sync();
        assert_eq!(setup.format.size(), 2 * BLOCK);
        assert_eq!(setup.format.on_disk()[..BLOCK as usize], [1; BLOCK as usize]);
    }
}

#[test]
fn direct_overwrites_of_whole_blocks_are_written_out_of_place() {
    let setup = four_blocks(MODE);
    let (before, free) = (setup.format.addresses(), setup.format.free_blocks());
    let data = [9; 2 * BLOCK as usize];
    let direct = |at: u64, data: &[u8]| {
        overwrite_direct(&setup.file, FileOffset(at), data, SplitExtents::AtEnd, ())
    };
    assert_eq!(direct(BLOCK, &data), Ok(Ok(data.len())));
    let after = setup.format.addresses();
    assert_eq!((after[0], after[3]), (before[0], before[3]));
    assert!(before[1..3].iter().all(|old| !after.contains(old)), "{before:?} {after:?}");
    assert_eq!((setup.format.free_blocks(), setup.format.placements()), (free, 0));
    assert_eq!(setup.read(BLOCK, 2 * BLOCK as usize), data);
    assert_eq!(direct(512, &data[..512]), Err(Refused::NeedsCache), "a part of a block");
    let alone = write_direct_alone(&setup.file, FileOffset(512), &data[..512], SplitExtents::AtEnd);
    assert_eq!(alone, Ok(None));
}

#[test]
fn a_failed_direct_write_returns_its_blocks() {
    let setup = four_blocks(MODE);
    let device = Arc::new(FaultDevice::new(setup.format.device(), FaultPlan::default()));
    let end_io = Arc::clone(&setup.end_io);
    let file = writable(&setup.cache, &setup.format, device.clone(), BLOCK, end_io);
    let (before, free) = (setup.format.addresses(), setup.format.free_blocks());
    device.fail_writes_in(0..u64::MAX);
    let data = [9; 2 * BLOCK as usize];
    let failed = overwrite_direct(&file, FileOffset(0), &data, SplitExtents::AtEnd, ());
    assert!(matches!(failed, Ok(Err(Error::Io(_)))), "{failed:?}");
    assert_eq!(setup.format.addresses(), before);
    assert_eq!((setup.format.free_blocks(), setup.format.placements()), (free, 0));
}

#[test]
fn a_placement_is_returned_when_the_next_one_fails() {
    // Each block is a placement of its own.
    let format = Format::with_mode(block_size(BLOCK), 16, 1, MODE);
    let (cache, end_io) = (cache(32 << 20, 9), EndIo::start().expect("a thread"));
    let file = writable(&cache, &format, format.device(), BLOCK, end_io);
    let data = [1; 2 * BLOCK as usize];
    assert_eq!(write(&file, FileOffset(0), &data), Ok(data.len()));
    sync(&file);
    let free = format.free_blocks();
    format.fail(1, || Error::NoSpace);
    let failed = overwrite_direct(&file, FileOffset(0), &data, SplitExtents::AtEnd, ());
    assert_eq!(failed, Err(Refused::NeedsCache), "writeback can wait for blocks");
    assert_eq!((format.free_blocks(), format.placements()), (free, 0));
}

/// Asserts that `work` panics.
fn assert_panics(work: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(work)).is_err(), "no panic");
}

#[test]
fn placements_are_returned_when_the_next_one_panics() {
    let format = Format::with_mode(block_size(BLOCK), 16, 1, MODE);
    let (cache, end_io) = (cache(32 << 20, 9), EndIo::start().expect("a thread"));
    let file = writable(&cache, &format, format.device(), BLOCK, end_io);
    let data = [1; 4 * BLOCK as usize];
    assert_eq!(write(&file, FileOffset(0), &data), Ok(data.len()));
    sync(&file);
    let (free, addresses) = (format.free_blocks(), format.addresses());
    for after in 0..4 {
        format.fail(after, || panic!("as the test has it"));
        assert_panics(|| {
            let _ = overwrite_direct(&file, FileOffset(0), &data, SplitExtents::AtEnd, ());
        });
        assert_eq!((format.free_blocks(), format.placements()), (free, 0), "direct, {after}");
        assert_eq!(write(&file, FileOffset(0), &data), Ok(data.len()));
        format.fail(after, || panic!("as the test has it"));
        assert_panics(|| write_back(&file, 0..u64::MAX));
        wait_for_writeback(&file, 0..u64::MAX);
        assert_eq!((format.free_blocks(), format.placements()), (free, 0), "writeback, {after}");
    }
    let mut after = format.addresses();
    after.sort_unstable();
    assert_eq!(after, addresses);
}

/// A transform that changes nothing, and panics once, after so many blocks.
#[derive(Debug, Default)]
struct Panicking(AtomicI64);

impl Transform for Panicking {
    fn store(&self, _at: FileOffset, data: &[u8], stored: &mut [u8]) -> Result<()> {
        assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "as the test has it");
        stored.copy_from_slice(data);
        Ok(())
    }

    fn load(&self, _at: FileOffset, _stored: &mut [u8]) -> Result<()> {
        Ok(())
    }
}

#[test]
fn placements_are_returned_when_a_transform_panics() {
    for (after, appends) in [(0, false), (1, false), (3, false), (0, true), (1, true), (3, true)] {
        let transform = Arc::new(Panicking::default());
        let stored: Arc<dyn Transform> = Arc::clone(&transform) as _;
        let format = Format::with_transform(block_size(BLOCK), 16, 1, MODE, Some(stored));
        let (cache, end_io) = (cache(32 << 20, 9), EndIo::start().expect("a thread"));
        let file = writable(&cache, &format, format.device(), BLOCK, end_io);
        transform.0.store(-1, Ordering::Relaxed);
        // Freed blocks are used again in reverse order: each block of the third write is a bio of
        // its own.
        for _ in 0..2 {
            let data = [1; 4 * BLOCK as usize];
            assert_eq!(write(&file, FileOffset(0), &data), Ok(data.len()));
            sync(&file);
        }
        let (on_disk, free) = (format.on_disk(), format.free_blocks());
        let at = if appends { 4 * BLOCK } else { 0 };
        let data = [9; 4 * BLOCK as usize];
        assert_eq!(write(&file, FileOffset(at), &data), Ok(data.len()));
        transform.0.store(after, Ordering::Relaxed);
        assert_panics(|| write_back(&file, 0..u64::MAX));
        wait_for_writeback(&file, 0..u64::MAX);
        assert!(file.errors().check(&file.errors().cursor()).is_err());
        assert_eq!((format.free_blocks(), format.placements()), (free, 0), "{after} {appends}");
        assert_eq!(format.on_disk(), on_disk);
    }
}
