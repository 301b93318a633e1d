//! Reservations that writeback cancels during a write, since it finds no blocks for the data. The
//! write has space all the same, and lost data does not reappear.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::gate::{Setup, setup};
use base::{Error, FileOffset};
use iomap::{
    Caching, IomapKind, WritableFile, fault_for_store, truncate_cache, wait_for_writeback,
    write_as, write_back, zero_range,
};
use pagecache::PAGE_SHIFT;

/// Returns a function that writes back the folios with bytes of `range`, and finds no blocks for
/// the first mapping.
fn fail_writeback(setup: &Setup, range: std::ops::Range<u64>) -> impl FnOnce() + Send + use<> {
    let (format, file) = (Arc::clone(&setup.format), Arc::clone(&setup.file));
    move || {
        format.fail(0, || Error::NoSpace);
        write_back(&file, range.clone());
        wait_for_writeback(&file, range);
    }
}

/// Checks that the lost data is reported, and that writeback succeeds from now on and leaves
/// `expected` on the device.
fn check(setup: &Setup, expected: &[u8]) {
    let cursor = setup.file.errors().cursor();
    assert_eq!(setup.file.errors().check(&cursor), Err(Error::NoSpace), "no data was lost");
    check_sound(setup, expected);
}

fn check_sound(setup: &Setup, expected: &[u8]) {
    let cursor = setup.file.errors().cursor();
    let _ = setup.file.errors().check(&cursor);
    setup.sync();
    assert_eq!(setup.file.errors().check(&cursor), Ok(()));
    assert!(setup.format.on_disk() == expected);
    assert_eq!(setup.format.reserved(), 0);
}

#[test]
fn a_dirty_block_at_the_end_of_a_write_that_lost_its_space_is_reserved_again() {
    for caching in [Caching::Kept, Caching::Dropbehind] {
        let setup = setup(0, 4096);
        setup.write(8192, &[1; 8192]);
        // The write reserves nothing for dirty blocks, and reaches them later.
        setup.format.after_reservation.set(fail_writeback(&setup, 8192..16_384));
        let written = write_as(&setup.file, FileOffset(0), &[2; 16_384], caching);
        assert_eq!(written, Ok(16_384));
        assert!(setup.format.kinds().iter().all(|(_, kind)| *kind != IomapKind::Hole));
        check(&setup, &[2; 16_384]);
    }
}

#[test]
fn a_dirty_block_beside_a_store_that_lost_its_space_is_reserved_again() {
    let setup = setup(0, 1024);
    setup.write(0, &[1; 4096]);
    setup.sync();
    setup.format.punch(0..4096);
    setup.write(0, &[2; 1024]);
    let window = setup.file.mapping().open_window(0..1, true, 4096).expect("a window");
    setup.format.after_reservation.set(fail_writeback(&setup, 0..1024));
    assert_eq!(fault_for_store(&setup.file, None, &window, 0, 1, || ()), Ok(1));
    drop(window);
    let contents = setup.read(0, 4096);
    check(&setup, &contents);
}

/// Returns whether the page of this process at `address` can be accessed without a fault.
fn is_present(address: NonNull<u8>) -> bool {
    let mut entry = [0; 8];
    let at = (address.addr().get() >> PAGE_SHIFT) as u64 * 8;
    File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, at).unwrap();
    u64::from_ne_bytes(entry) >> 63 == 1
}

#[test]
fn a_page_is_dirty_before_it_can_be_stored_to() {
    let setup = setup(0, 4096);
    setup.write(0, &[1; 4096]);
    setup.sync();
    let window = setup.file.mapping().open_window(0..1, true, 4096).expect("a window");
    let calls = Cell::new(0);
    let dirtied = || {
        assert!(setup.file.mapping().next_dirty(0..1).is_some());
        assert!(!is_present(window.start()));
        calls.set(calls.get() + 1);
    };
    assert_eq!(fault_for_store(&setup.file, None, &window, 0, 1, dirtied), Ok(1));
    assert!(is_present(window.start()));
    assert_eq!(calls.get(), 1);
}

/// Calls `change` for a file of dirty data while writeback of the data fails. The order of the two
/// is random.
fn race(change: fn(&Arc<WritableFile>), expected: u8) {
    for round in 0..40 {
        let setup = setup(0, 4096);
        setup.write(0, &[1; 4096]);
        let (file, lose) = (&setup.file, fail_writeback(&setup, 0..4096));
        thread::scope(|scope| {
            let held = file.mapping().get_locked(0).expect("it is dirty");
            let mut lose = Some(lose);
            let late = if round % 2 == 0 { lose.take() } else { None };
            if let Some(lose) = lose {
                scope.spawn(lose);
                thread::sleep(Duration::from_millis(2));
            }
            scope.spawn(|| change(file));
            thread::sleep(Duration::from_millis(2));
            if let Some(late) = late {
                scope.spawn(late);
                thread::sleep(Duration::from_millis(2));
            }
            drop(held);
        });
        let cursor = file.errors().cursor();
        let lost = file.errors().check(&cursor).is_err();
        let was_changed_before = lost && setup.file.mapping().bytes_dirty() == 0;
        match was_changed_before {
            // The data is only in memory.
            true => assert!(setup.read(0, 4096) == [expected; 4096]),
            false => check_sound(&setup, &[expected; 4096]),
        }
    }
}

#[test]
fn a_write_to_blocks_that_were_dirty_has_space_after_concurrent_writeback() {
    race(|file| assert_eq!(write_as(file, FileOffset(0), &[2; 4096], Caching::Kept), Ok(4096)), 2);
}

#[test]
fn zeroes_over_blocks_that_were_dirty_have_space_after_concurrent_writeback() {
    race(|file| zero_range(file, 0..4096).expect("memory"), 0);
}

#[test]
fn truncated_data_that_found_no_blocks_does_not_reappear() {
    for order_max in [0, 9] {
        let setup = setup(order_max, 4096);
        setup.write(0, &[1; 9000]);
        fail_writeback(&setup, 0..u64::MAX)();
        truncate_cache(&setup.file, 5000).expect("memory");
        setup.format.truncate(5000);
        truncate_cache(&setup.file, 8192).expect("memory");
        setup.format.truncate(8192);
        assert!(setup.read(5000, 4096) == [0; 3192]);
    }
}
