//! Tests of folios that are dirty, under writeback, lent, replaced and removed.
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one element")]

// Included by path, since testkit depends on this crate.
#[allow(dead_code, reason = "only a part of it is used")]
#[path = "../../testkit/src/waiting.rs"]
mod waiting;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use base::BlockSize;
use pagecache::{
    CacheOptions, DirtyStats, FolioHandle, Insertion, LockedFolio, Mapping, ORDER_MAX, PageCache,
};
use waiting::Waiter;

/// Returns a copy of the uptodate bytes of a folio.
fn bytes_of<C: AsRef<PageCache>>(folio: &FolioHandle<C>, start: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let copied = folio.copy_to(start, &mut bytes);
    bytes.truncate(copied);
    bytes
}

fn cache() -> Arc<PageCache> {
    PageCache::new(CacheOptions { bytes_max: 4 << 20, folio_order_max: ORDER_MAX }).expect("memory")
}

fn mapping(cache: &Arc<PageCache>, block_bytes: u64) -> Arc<Mapping> {
    cache.new_mapping(BlockSize::from_bytes(block_bytes).expect("a block size"))
}

fn insert(mapping: &Mapping, index: u64, order: u8) -> LockedFolio {
    match mapping.insert(index, order) {
        Insertion::New(locked) => locked,
        other => panic!("page {index} at order {order}: {other:?}"),
    }
}

fn lock(mapping: &Mapping, page: u64) -> LockedFolio {
    mapping.lock(&mapping.get(page).expect("cached"))
}

/// Writes `byte` to whole blocks of a locked folio.
fn write(mapping: &Mapping, folio: &mut LockedFolio, range: Range<usize>, byte: u8) {
    folio.wait_writeback();
    // SAFETY: tests keep no references to bytes while they write, unless the folio is lent.
    unsafe { folio.copy_in(range.start, &vec![byte; range.len()], false) };
    folio.set_uptodate(range.clone());
    mapping.set_dirty(folio, range);
}

/// Returns the cache's dirty bytes, its bytes under writeback, and the mapping's dirty bytes.
fn bytes(mapping: &Mapping) -> (u64, u64, u64) {
    let stats = mapping.cache().stats();
    (stats.dirty.bytes_dirty, stats.dirty.bytes_writeback, mapping.bytes_dirty())
}

#[test]
fn dirty_blocks_are_counted_once_and_written_back_as_ranges() {
    let cache = cache();
    let mapping = mapping(&cache, 1024);
    let mut folio = insert(&mapping, 0, 4);
    for (range, dirty) in [(1024..3072, 2048), (2048..4096, 3072), (8192..9216, 4096)] {
        write(&mapping, &mut folio, range, 1);
        assert_eq!(bytes(&mapping), (dirty, 0, dirty));
        assert_eq!(cache.dirty_stats().bytes_held, 65_536);
    }
    assert_eq!(folio.folio().dirty_run(0, 65_536, false), 1024);
    assert_eq!(folio.folio().dirty_run(1024, 65_536 - 1024, true), 3072);
    assert_eq!(folio.folio().uptodate_run(4096, 9999, false), 4096);
    let (writeback, runs) = mapping.start_writeback(&folio).expect("dirty");
    assert_eq!(runs[..], [1024..4096, 8192..9216]);
    assert_eq!(bytes(&mapping), (0, 4096, 0));
    assert!(mapping.start_writeback(&folio).is_none());
    assert!(mapping.next_dirty(0..99).is_none());
    assert!(mapping.next_under_writeback(3..4).is_some());
    assert_eq!(cache.dirty_stats().bytes_held, 65_536);
    drop(writeback);
    assert_eq!(bytes(&mapping), (0, 0, 0));
    assert_eq!(cache.dirty_stats().bytes_held, 0);
    assert!(mapping.next_under_writeback(0..99).is_none());
    // Whole folios, with a per-block state and without.
    write(&mapping, &mut folio, 0..65_536, 2);
    assert_eq!(bytes(&mapping).0, 65_536);
    let mut other = insert(&mapping, 16, 4);
    write(&mapping, &mut other, 0..65_536, 2);
    write(&mapping, &mut other, 0..1024, 3);
    assert_eq!(bytes(&mapping).0, 131_072);
    let (writeback, runs) = mapping.start_writeback(&other).expect("dirty");
    assert_eq!(runs[..], [0..65_536]);
    assert_eq!(cache.dirty_stats().bytes_held, 131_072);
    mapping.set_clean(&folio, 0..1024);
    assert_eq!(cache.dirty_stats().bytes_held, 131_072);
    mapping.set_clean(&folio, 1024..65_536);
    assert_eq!(cache.dirty_stats().bytes_held, 65_536);
    drop(writeback);
    write(&mapping, &mut folio, 0..1024, 4);
    drop((folio, other, mapping));
    assert_eq!(cache.dirty_stats(), DirtyStats::default());
}

#[test]
fn dirty_folios_are_found_in_order_by_any_of_their_pages() {
    let cache = cache();
    let mapping = mapping(&cache, 4096);
    for (index, order) in [(64, 0), (16, 4), (8, 3), (48, 2)] {
        write(&mapping, &mut insert(&mapping, index, order), 0..4096 << order, 1);
    }
    let first = |pages| mapping.next_dirty(pages).map(|folio| folio.index());
    assert_eq!(first(0..99), Some(8));
    assert_eq!(first(15..16), Some(8));
    assert_eq!(first(16..17), Some(16));
    assert_eq!(first(31..99), Some(16));
    assert_eq!(first(32..48), None);
    assert_eq!(first(32..99), Some(48));
    assert_eq!(first(52..99), Some(64));
    assert_eq!(first(65..u64::MAX), None);
    assert_eq!(first(9..9), None);
}

#[test]
fn blocks_that_are_set_clean_are_not_written_back() {
    let cache = cache();
    let mapping = mapping(&cache, 4096);
    let mut folio = insert(&mapping, 0, 2);
    write(&mapping, &mut folio, 0..16_384, 1);
    mapping.set_clean(&folio, 4096..16_384);
    assert_eq!(bytes(&mapping), (4096, 0, 4096));
    let (writeback, runs) = mapping.start_writeback(&folio).expect("dirty");
    assert_eq!(runs[..], [0..4096]);
    drop(writeback);
    write(&mapping, &mut folio, 0..16_384, 1);
    mapping.set_clean(&folio, 0..16_384);
    assert_eq!(bytes(&mapping), (0, 0, 0));
    assert!(mapping.next_dirty(0..9).is_none());
}

#[test]
fn reclaim_evicts_neither_dirty_folios_nor_folios_under_writeback() {
    let cache = cache();
    let mapping = mapping(&cache, 4096);
    write(&mapping, &mut insert(&mapping, 0, 4), 0..65_536, 7);
    let mut folio = insert(&mapping, 16, 4);
    write(&mapping, &mut folio, 0..65_536, 8);
    let writeback = mapping.start_writeback(&folio).expect("dirty");
    drop(folio);
    let overrun = || {
        for index in (1024..8192).step_by(16) {
            let mut folio = insert(&mapping, index, 4);
            folio.take_piece(folio.remaining(), true).zero();
        }
    };
    overrun();
    assert_eq!(bytes_of(&mapping.get(0).expect("dirty"), 9, 1), [7]);
    assert_eq!(bytes_of(&mapping.get(16).expect("under writeback"), 9, 1), [8]);
    drop(writeback);
    overrun();
    assert!(mapping.get(0).is_some() && mapping.get(16).is_none());
    drop(mapping);
    let stats = cache.stats();
    assert_eq!((stats.dirty.bytes_dirty, stats.bytes_resident), (0, 0));
}

#[test]
fn a_writer_waits_for_writeback() {
    let cache = cache();
    let mapping = mapping(&cache, 4096);
    let mut folio = insert(&mapping, 0, 0);
    write(&mapping, &mut folio, 0..4096, 1);
    let (writeback, _) = mapping.start_writeback(&folio).expect("dirty");
    drop(folio);
    let (ended, waiter) = (AtomicBool::new(false), Waiter::default());
    thread::scope(|scope| {
        scope.spawn(|| {
            waiter.run(|| write(&mapping, &mut lock(&mapping, 0), 0..4096, 2));
            assert!(ended.load(Ordering::SeqCst));
        });
        let waits = waiter.begins_to_wait();
        assert_eq!(bytes_of(writeback.folio(), 0, 1), [1]);
        ended.store(true, Ordering::SeqCst);
        drop(writeback);
        assert!(waits, "the race was not reached");
    });
    assert_eq!(bytes(&mapping), (4096, 0, 4096));
}

#[test]
#[should_panic(expected = "under writeback or lent")]
fn a_write_to_a_lent_folio_panics() {
    let cache = cache();
    let mapping = mapping(&cache, 4096);
    let mut folio = insert(&mapping, 0, 0);
    write(&mapping, &mut folio, 0..4096, 1);
    let lent = mapping.lend(mapping.borrow(folio.folio()));
    let again = lent.clone();
    drop(lent);
    write(&mapping, &mut folio, 0..4096, 2);
    drop(again);
}

#[test]
fn a_copy_replaces_a_lent_folio_with_its_whole_state() {
    let cache = cache();
    let mapping = mapping(&cache, 1024);
    let mut folio = insert(&mapping, 0, 2);
    write(&mapping, &mut folio, 1024..3072, 1);
    let lent = mapping.lend(mapping.borrow(folio.folio()));
    let stale = mapping.get(1).expect("cached");
    assert!(folio.is_lent());
    let mut copy = mapping.replace_by_copy(folio).expect("memory");
    assert!(!copy.is_lent() && mapping.holds(&copy));
    assert_eq!(bytes(&mapping), (2048, 0, 2048));
    assert_eq!(
        (copy.folio().dirty_run(1024, 9999, true), copy.folio().uptodate_run(0, 9, false)),
        (2048, 9)
    );
    write(&mapping, &mut copy, 2048..4096, 2);
    drop(copy);
    assert_eq!(lent.bytes(1024, 9999), [1; 2048]);
    let now = mapping.get(1).expect("cached");
    assert_eq!(bytes_of(&now, 1024, 1024), [1; 1024]);
    assert_eq!(bytes_of(&now, 2048, 9999), [2; 2048]);
    // A thread that found the old folio before learns that the file does not contain it any more.
    let stale = mapping.lock(&stale);
    assert!(!mapping.holds(&stale) && mapping.start_writeback(&stale).is_none());
    let (_writeback, runs) = mapping.start_writeback(&lock(&mapping, 0)).expect("dirty");
    assert_eq!(runs[..], [1024..4096]);
}

#[test]
fn a_removed_folio_is_neither_found_nor_dirty_but_keeps_its_borrowed_bytes() {
    let cache = cache();
    let mapping = mapping(&cache, 4096);
    let mut folio = insert(&mapping, 4, 2);
    write(&mapping, &mut folio, 0..8192, 5);
    let lent = mapping.lend(mapping.borrow(folio.folio()));
    mapping.remove(folio);
    assert_eq!(bytes(&mapping), (0, 0, 0));
    assert!(mapping.get(5).is_none() && mapping.next_cached(0..99).is_none());
    assert_eq!(lent.bytes(8000, 99), [5; 99]);
    drop(lent);
    assert_eq!(cache.stats().bytes_resident, 0);
}
