//! Tests of inserting, filling, finding, evicting and dropping folios, with one thread and with
//! several.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use base::BlockSize;
use pagecache::{
    CacheOptions, Folio, FolioHandle, Insertion, LockedFolio, Mapping, ORDER_MAX, PAGE_SIZE,
    PageCache,
};

const MIB: u64 = 1 << 20;

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

fn mapping(cache: &Arc<PageCache>, block_bytes: u64) -> Arc<Mapping> {
    cache.new_mapping(BlockSize::from_bytes(block_bytes).expect("a block size"))
}

fn insert(mapping: &Mapping, index: u64, order: u8) -> LockedFolio {
    match mapping.insert(index, order) {
        Insertion::New(locked) => locked,
        other => panic!("page {index} at order {order}: {other:?}"),
    }
}

/// Inserts a folio full of `byte`.
fn insert_full(mapping: &Mapping, index: u64, order: u8, byte: u8) -> Folio {
    let mut locked = insert(mapping, index, order);
    let folio = locked.folio().clone();
    let mut piece = locked.take_piece(locked.remaining(), true);
    piece.bytes_mut().fill(byte);
    piece.finish();
    folio
}

fn pages(folio: &Folio) -> (u64, u64) {
    (folio.index(), folio.pages())
}

#[test]
fn a_folio_is_as_large_as_alignment_and_neighbours_allow() {
    let cache = cache(16 * MIB);
    let mapping = mapping(&cache, 4096);
    for (index, order, expected) in
        [(512, 9, 512), (4, 9, 4), (1, 3, 1), (2, 9, 2), (0, 9, 1), (256, 7, 128), (384, 9, 128)]
    {
        let folio = insert(&mapping, index, order).folio().clone();
        assert_eq!(pages(&folio), (index, expected), "page {index}, order {order}");
    }
    for (index, end) in [(0, 1), (5, 8), (600, 1024), (300, 384)] {
        assert!(
            matches!(mapping.insert(index, 0), Insertion::Exists { end: found } if found == end)
        );
        assert_eq!(mapping.get(index).map(|folio| folio.index() + folio.pages()), Some(end));
    }
    assert!(mapping.get(8).is_none() && mapping.get(1024).is_none());
}

#[test]
fn the_block_size_and_the_greatest_order_bound_every_folio() {
    let options = CacheOptions { bytes_max: 16 * MIB, folio_order_max: 0 };
    let cache = PageCache::new(options).expect("memory");
    let small = mapping(&cache, 1024);
    let large = mapping(&cache, 65_536);
    assert_eq!((small.order_min(), small.order_max()), (0, 0));
    assert_eq!((large.order_min(), large.order_max()), (4, 4));
    assert_eq!(pages(insert(&small, 0, 9).folio()), (0, 1));
    assert_eq!(pages(insert(&large, 16, 0).folio()), (16, 16));
    assert!(PageCache::new(CacheOptions { bytes_max: MIB, folio_order_max: 10 }).is_err());
}

#[test]
fn readers_get_only_the_blocks_that_were_filled() {
    let cache = cache(4 * MIB);
    let mapping = mapping(&cache, 1024);
    let mut locked = insert(&mapping, 0, 2);
    let folio = locked.folio().clone();
    let (mut first, second) = (locked.take_piece(3072, true), locked.take_piece(1024, true));
    locked.skip(1024);
    let third = locked.take_piece(2048, true);
    assert_eq!(bytes_of(&folio, 0, 1), b"");
    first.bytes_mut().fill(1);
    first.finish();
    third.zero();
    assert_eq!(folio.uptodate_len(0, 16_384), 3072);
    assert_eq!(bytes_of(&folio, 3000, 16_384), [1; 72]);
    assert_eq!(bytes_of(&folio, 3072, 1), b"");
    assert_eq!(bytes_of(&folio, 5120 + 100, 5000), [0; 1948]);
    // The second piece fails. The end of the last piece unlocks the folio, but does not make it
    // uptodate.
    drop(second);
    drop(locked);
    folio.wait_unlocked();
    assert_eq!(bytes_of(&folio, 3072, 1), b"");

    let mut again = mapping.lock(&mapping.get(2).expect("cached"));
    assert_eq!(again.absent_len(16_384), 0);
    again.skip(3072);
    assert_eq!(again.absent_len(13_312), 2048);
    again.take_piece(2048, true).zero();
    assert_eq!(again.absent_len(11_264), 0);
    again.skip(2048);
    again.take_piece(again.remaining(), true).zero();
    drop(again);
    assert_eq!(folio.uptodate_len(0, 99_999), 16_384);
    assert_eq!(mapping.lock(&mapping.get(0).expect("cached")).absent_len(1024), 0);
}

#[test]
#[should_panic(expected = "uptodate already")]
fn filling_uptodate_blocks_panics() {
    let cache = cache(4 * MIB);
    let mapping = mapping(&cache, 4096);
    drop(insert_full(&mapping, 0, 0, 1));
    mapping.lock(&mapping.get(0).expect("cached")).take_piece(4096, true);
}

#[test]
fn streaming_data_does_not_evict_data_that_is_used_again() {
    let cache = cache(4 * MIB);
    let hot = mapping(&cache, 4096);
    for page in 0..100 {
        drop(insert_full(&hot, page, 0, 7));
        for _ in 0..2 {
            hot.get(page).expect("cached").visit();
        }
    }
    let stream = mapping(&cache, 4096);
    for page in 0..2000 {
        drop(insert_full(&stream, page, 0, 8));
        stream.get(page).expect("just inserted").visit();
        if page % 100 == 0 {
            (0..100).filter_map(|page| hot.get(page)).for_each(|folio| folio.visit());
        }
    }
    assert!((0..100).all(|page| hot.get(page).is_some()));
    assert!(cache.stats().folios_reclaimed >= 1000);
}

#[test]
fn reclaim_evicts_unused_folios_only() {
    let cache = cache(MIB);
    let mapping = mapping(&cache, 4096);
    let mut held = Vec::new();
    for page in 0.. {
        match mapping.insert(page, 0) {
            Insertion::New(mut locked) => {
                held.push(locked.folio().clone());
                locked.take_piece(PAGE_SIZE, true).zero();
            }
            Insertion::NoMemory => break,
            Insertion::Exists { .. } => panic!("page {page} is new"),
        }
    }
    // The rest of the memory has the descriptors and the index.
    assert!(held.len() > 240, "{}", held.len());
    assert!(cache.stats().folios_reclaimed == 0);
    let other = self::mapping(&cache, 4096);
    assert!(matches!(other.insert(0, 0), Insertion::NoMemory));
    held.truncate(200);
    for page in (0..1000).step_by(8) {
        drop(insert_full(&other, page, 3, 1));
    }
    assert!(held.iter().all(|folio| bytes_of(folio, 0, 1) == [0]));
}

#[test]
fn reclaim_makes_room_for_large_folios_out_of_small_ones() {
    let cache = cache(8 * MIB);
    let small = mapping(&cache, 4096);
    for page in 0..3000 {
        drop(insert_full(&small, page, 0, 1));
    }
    let large = mapping(&cache, 4096);
    assert_eq!(insert_full(&large, 0, 9, 2).pages(), 512);
    assert_eq!(insert_full(&large, 512, 9, 2).pages(), 512);
}

#[test]
fn fragmented_memory_yields_smaller_folios_but_none_below_a_block() {
    let cache = cache(2 * MIB);
    let mapping = mapping(&cache, 4096);
    // Every other page is in use.
    let mut held: Vec<Folio> = Vec::new();
    for page in 0..480 {
        let folio = insert_full(&mapping, page + 100_000, 0, 1);
        if page % 2 == 0 {
            held.push(folio);
        }
    }
    while mapping.get(100_001).is_some() || mapping.get(100_479).is_some() {
        // Uses free memory first, then memory that reclaim frees.
        assert_eq!(insert_full(&mapping, 2 * held.len() as u64 + 1, 0, 2).pages(), 1);
        held.push(insert_full(&mapping, 2 * held.len() as u64 + 200_001, 0, 2));
    }
    assert!(insert_full(&mapping, 0, 9, 2).pages() < 8);
    let blocks = self::mapping(&cache, 65_536);
    assert!(matches!(blocks.insert(0, 9), Insertion::NoMemory));
    drop(held);
    assert_eq!(insert_full(&blocks, 0, 4, 2).pages(), 16);
}

#[test]
fn dropping_a_mapping_frees_its_unused_folios() {
    let cache = cache(16 * MIB);
    let mapping = mapping(&cache, 4096);
    for (index, order) in [(0, 9), (512, 0), (513, 0), (514, 1), (1 << 40, 6)] {
        drop(insert_full(&mapping, index, order, 3));
    }
    let held = mapping.get(515).expect("cached").into_owned();
    let also = held.clone();
    let mut locked = insert(&mapping, 4096, 4);
    let piece = locked.take_piece(4096, false);
    drop(locked);
    drop(mapping);
    let stats = cache.stats();
    assert_eq!(stats.bytes_resident, (2 + 16) * 4096);
    assert_eq!((stats.folios[1], stats.folios[4]), (1, 1));
    assert_eq!(bytes_of(&held, 0, 10_000), [3; 8192]);
    drop(held);
    piece.finish();
    assert_eq!(cache.stats().bytes_resident, 8192);
    drop(also);
    assert_eq!(cache.stats().bytes_resident, 0);
}

/// Returns the byte that fills a page of a file.
fn content(file: usize, page: u64) -> u8 {
    (page as usize * 7 + file * 101) as u8
}

/// Checks the contents of a cached page, or inserts and fills its folio. Returns whether there was
/// memory for it.
fn use_page(mapping: &Mapping, file: usize, page: u64, order: u8) -> bool {
    if let Some(folio) = mapping.get(page) {
        folio.visit();
        folio.wait_unlocked();
        let start = (page - folio.index()) as usize * PAGE_SIZE;
        let bytes = bytes_of(&folio, start, PAGE_SIZE);
        assert!(bytes.iter().all(|&byte| byte == content(file, page)), "page {page} of {file}");
        assert_eq!(bytes.len(), PAGE_SIZE);
        return true;
    }
    match mapping.insert(page >> order << order, order) {
        Insertion::New(mut locked) => {
            let first = locked.folio().index();
            let pieces = locked.folio().pages().min(2) as usize;
            while locked.remaining() > 0 {
                let at = first + (locked.cursor() / PAGE_SIZE) as u64;
                let mut piece = locked.take_piece(locked.folio().len() / pieces, true);
                for (page, bytes) in (at..).zip(piece.bytes_mut().chunks_mut(PAGE_SIZE)) {
                    bytes.fill(content(file, page));
                }
                piece.finish();
            }
            true
        }
        Insertion::Exists { .. } => true,
        Insertion::NoMemory => false,
    }
}

#[test]
fn threads_that_share_a_cache_that_is_too_small_read_the_right_data() {
    let (rounds, span) = if cfg!(miri) { (60, 64) } else { (30_000, 1024) };
    let cache = cache(if cfg!(miri) { MIB / 2 } else { MIB });
    let files: Vec<_> = (0..3).map(|_| mapping(&cache, 4096)).collect();
    let served = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (files, served) = (&files, &served);
            scope.spawn(move || {
                let mut random = thread + 1;
                for _ in 0..rounds {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let file = (random >> 60) as usize % files.len();
                    let (page, order) = ((random >> 33) & (span - 1), (random >> 50) as u8 % 5);
                    let got = use_page(&files[file], file, page, order);
                    served.fetch_add(u64::from(got), Ordering::Relaxed);
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(served.into_inner() > rounds * 3);
    assert!(stats.bytes_resident_max + stats.bytes_index <= stats.bytes_max);
    drop(files);
    assert_eq!(cache.stats().bytes_resident, 0);
}

#[test]
fn mappings_are_created_and_dropped_during_reclaim() {
    let (rounds, pages) = if cfg!(miri) { (3, 40) } else { (300, 200) };
    let cache = cache(MIB / 2);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let lasting = mapping(&cache, 4096);
        let stop = &stop;
        scope.spawn(move || {
            let mut page = 0;
            while !stop.load(Ordering::Relaxed) {
                use_page(&lasting, 0, page, 2);
                page = (page + 4) % 512;
            }
        });
        let threads = [1, 2].map(|file| {
            let cache = &cache;
            scope.spawn(move || {
                for _ in 0..rounds {
                    let mapping = mapping(cache, 4096);
                    (0..pages).for_each(|page| {
                        use_page(&mapping, file, page, 1);
                    });
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(cache.stats().bytes_resident, 0);
}
