//! Tests of dropbehind folios. They leave the cache with their last reference, unless another
//! access has kept them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use base::BlockSize;
use pagecache::{
    CacheOptions, Folio, FolioHandle, Insertion, LockedFolio, Mapping, ORDER_MAX, PageCache,
};

/// Returns a copy of the uptodate bytes of a folio.
fn bytes_of<C: AsRef<PageCache>>(folio: &FolioHandle<C>, start: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let copied = folio.copy_to(start, &mut bytes);
    bytes.truncate(copied);
    bytes
}

fn cache(bytes_max: u64) -> Arc<PageCache> {
    PageCache::new(CacheOptions { bytes_max, folio_order_max: ORDER_MAX }).expect("memory")
}

fn mapping(cache: &Arc<PageCache>) -> Arc<Mapping> {
    cache.new_mapping(BlockSize::from_bytes(4096).expect("a block size"))
}

fn insert(mapping: &Mapping, index: u64, order: u8) -> LockedFolio {
    match mapping.insert(index, order) {
        Insertion::New(locked) => locked,
        other => panic!("page {index} at order {order}: {other:?}"),
    }
}

/// Inserts and fills a folio, as an uncached read does.
fn insert_dropbehind(mapping: &Mapping, index: u64, order: u8) -> Folio {
    let mut locked = insert(mapping, index, order);
    locked.set_dropbehind();
    locked.take_piece(locked.remaining(), true).zero();
    locked.folio().clone()
}

fn resident(mapping: &Mapping) -> u64 {
    mapping.cache().stats().bytes_resident
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        for shift in [13, -7, 17] {
            self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
        }
        self.0 % end
    }
}

#[test]
fn a_dropbehind_folio_that_was_not_read_stays_until_it_is_reclaimed() {
    let cache = cache(4 << 20);
    let mapping = mapping(&cache);
    drop(insert_dropbehind(&mapping, 0, 2));
    assert_eq!(resident(&mapping), 16_384);
    assert!(mapping.get(3).is_some_and(|folio| folio.is_dropbehind()));
    for index in (512..4096).step_by(16) {
        let mut folio = insert(&mapping, index, 4);
        folio.take_piece(folio.remaining(), true).zero();
    }
    assert!(mapping.get(0).is_none(), "it can be reclaimed");
}

#[test]
fn a_done_folio_leaves_with_its_last_reference() {
    let cache = cache(4 << 20);
    let mapping = mapping(&cache);
    let folio = insert_dropbehind(&mapping, 16, 4);
    folio.set_done();
    let other = mapping.get(20).expect("cached while referred to").into_owned();
    drop(folio);
    assert_eq!(other.uptodate_len(0, 99_999), 65_536);
    assert!(mapping.get(31).is_some());
    drop(other);
    assert!(mapping.get(16).is_none());
    let stats = cache.stats();
    assert_eq!((stats.bytes_resident, stats.folios), (0, [0; 10]));
    assert_eq!((stats.folios_dropped, stats.bytes_dropped), (1, 65_536));
    assert_eq!(stats.folios_reclaimed, 0);
}

#[test]
fn a_kept_folio_stays_although_it_is_done() {
    let cache = cache(4 << 20);
    let mapping = mapping(&cache);
    let folio = insert_dropbehind(&mapping, 0, 0);
    folio.set_done();
    folio.keep();
    folio.set_done();
    drop(folio);
    assert!(mapping.get(0).is_some_and(|folio| !folio.is_dropbehind()));
    // An ordinary folio does not become done.
    let mut locked = insert(&mapping, 1, 0);
    locked.take_piece(locked.remaining(), true).zero();
    locked.folio().set_done();
    drop(locked);
    assert!(mapping.get(1).is_some());
    assert_eq!(cache.stats().folios_dropped, 0);
}

#[test]
fn dirty_folios_leave_when_their_writeback_has_ended() {
    let cache = cache(4 << 20);
    let mapping = mapping(&cache);
    let write = |folio: &mut LockedFolio| {
        folio.wait_writeback();
        // SAFETY: no thread reads.
        unsafe { folio.copy_in(0, &[7; 4096], false) };
        folio.set_uptodate(0..4096);
        mapping.set_dirty(folio, 0..4096);
    };
    let mut folio = insert(&mapping, 0, 0);
    folio.set_dropbehind();
    folio.folio().set_done();
    write(&mut folio);
    drop(folio);
    let found = || mapping.get(0).is_some();
    assert!(found(), "dirty");
    let folio = mapping.lock(&mapping.get(0).expect("dirty"));
    let (writeback, _) = mapping.start_writeback(&folio).expect("dirty");
    drop(folio);
    assert!(found(), "under writeback");
    // A thread that waits for it holds a reference, which may be the last one.
    let waiting = mapping.get(0).expect("under writeback");
    drop(writeback);
    assert!(!waiting.is_under_writeback());
    drop(waiting);
    assert!(!found());
    assert_eq!((resident(&mapping), cache.stats().folios_dropped), (0, 1));
    // Written to again before it leaves: it leaves after the next writeback, since it is still
    // marked.
    let mut folio = insert(&mapping, 0, 0);
    folio.set_dropbehind();
    folio.folio().set_done();
    write(&mut folio);
    let (writeback, _) = mapping.start_writeback(&folio).expect("dirty");
    drop(writeback);
    write(&mut folio);
    drop(folio);
    assert!(mapping.get(0).is_some_and(|folio| folio.is_dropbehind()));
    let folio = mapping.lock(&mapping.get(0).expect("dirty"));
    drop((mapping.start_writeback(&folio), folio));
    assert!(!found());
}

#[test]
fn a_copy_of_a_lent_folio_leaves_with_its_last_reference_too() {
    let cache = cache(4 << 20);
    let mapping = mapping(&cache);
    let folio = insert_dropbehind(&mapping, 0, 1);
    folio.set_done();
    let lent = mapping.lend(mapping.borrow(&folio));
    let locked = mapping.lock(&mapping.borrow(&folio));
    let copy = mapping.replace_by_copy(locked).expect("memory");
    assert!(copy.folio().is_dropbehind());
    drop(copy);
    assert!(mapping.get(0).is_none());
    drop(folio);
    assert_eq!(lent.bytes(0, 9999).len(), 8192, "the borrower keeps the old one");
    drop(lent);
    assert_eq!(resident(&mapping), 0);
}

#[test]
fn dropping_a_mapping_frees_dropbehind_folios_that_are_not_done() {
    let cache = cache(4 << 20);
    let mapping = mapping(&cache);
    let read = insert_dropbehind(&mapping, 0, 0);
    drop(insert_dropbehind(&mapping, 8, 3));
    read.set_done();
    drop(mapping);
    assert_eq!(cache.stats().bytes_resident, 4096, "one folio has a reference");
    drop(read);
    assert_eq!(cache.stats().bytes_resident, 0);
}

#[test]
fn cached_and_uncached_readers_reclaim_and_removal_neither_lose_nor_leak_folios() {
    let cache = cache(1 << 20);
    let mappings = [mapping(&cache), mapping(&cache)];
    let made = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (mappings, made) = (&mappings, &made);
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                for _ in 0..20_000 {
                    let mapping = &mappings[random.below(2) as usize];
                    let (page, kept) = (random.below(128), random.below(4) == 0);
                    if let Some(folio) = mapping.get(page) {
                        let within = ((page - folio.index()) << 12) as usize;
                        let bytes = bytes_of(&folio, within, 4096);
                        assert!(bytes.iter().all(|byte| *byte == page as u8), "page {page}");
                        if kept && !bytes.is_empty() {
                            folio.keep();
                        } else if !bytes.is_empty() {
                            folio.set_done();
                        }
                        if random.below(64) == 0 {
                            let folio = mapping.lock(&folio);
                            mapping.remove(folio);
                        }
                        continue;
                    }
                    let Insertion::New(mut locked) = mapping.insert(page, 3) else { continue };
                    if !kept {
                        locked.set_dropbehind();
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                    let first = locked.folio().index();
                    for page in first..first + locked.folio().pages() {
                        let mut piece = locked.take_piece(4096, true);
                        piece.bytes_mut().fill(page as u8);
                        piece.finish();
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.folios_dropped > 0 && stats.folios_dropped <= made.into_inner(), "{stats:?}");
    // The remaining folios were kept, or not read.
    for mapping in &mappings {
        for page in 0..256 {
            if let Some(folio) = mapping.get(page) {
                folio.set_done();
            }
        }
        assert!((0..256).all(|page| mapping.get(page).is_none_or(|folio| !folio.is_dropbehind())));
    }
    drop(mappings);
    assert_eq!(cache.stats().bytes_resident, 0);
}
