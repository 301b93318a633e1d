//! Structures with arbitrary and with changed bytes: parsing gives typed errors, without panics and
//! large allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::offset_of;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use base::attributes::DirCursor;
use base::checksum::crc32_le;
use base::{DeviceOffset, Error, FileOffset, InodeNumber, Result};
use device::{BlockDevice, FileDevice, MemoryDevice, SharedDevice};
use f2fs::ondisk::checkpoint::{ORPHANS, RawCheckpoint};
use f2fs::ondisk::superblock::RawSuperblock;
use f2fs::{Checkpoint, Format, Nid, SUPERBLOCK_BYTES, Superblock, Volume};
use fs::FormatOptions;
use iomap::{CacheOptions, MapRead, PageCache};
use proptest::prelude::*;

const BLOCK: usize = 4096;
/// The first byte of the superblock.
const SUPERBLOCK: usize = 1024;
const MAGIC: u32 = 0xF2F5_2010;
/// The size of the image.
const IMAGE_BYTES: u64 = 64 << 20;
/// The largest allocation that any of these structures justifies: a payload of a checkpoint, or
/// orphans.
const ALLOCATION_MAX: usize = 8 << 20;

/// The size of the largest allocation.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watched;

// SAFETY: all calls go to the allocator of the system.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// A volume as mkfs.f2fs makes it, with its checkpoint and the block of its root directory's inode.
struct Image {
    device: Arc<MemoryDevice>,
    superblock: [u8; SUPERBLOCK_BYTES],
    /// The current checkpoint pack, in bytes.
    pack: (u64, u64),
    /// The root directory's inode, in bytes.
    root: u64,
    /// The block of the node address table with the root directory, in bytes.
    table: u64,
    /// The first block of the segment information table that is current, in bytes.
    segment_table: u64,
    /// The first block of the segment summary area, in bytes.
    summaries: u64,
}

static IMAGE: LazyLock<Mutex<Image>> = LazyLock::new(|| Mutex::new(Image::new()));

fn image() -> MutexGuard<'static, Image> {
    IMAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn volume(device: &Arc<MemoryDevice>) -> Result<Arc<Volume>> {
    let options = CacheOptions { bytes_max: 2 << 20, ..CacheOptions::default() };
    let device: SharedDevice = Arc::clone(device) as SharedDevice;
    let cache = PageCache::new(options).expect("memory");
    Volume::open(device, &cache, &FormatOptions { no_recovery: true, ..FormatOptions::default() })
}

impl Image {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(IMAGE_BYTES).expect("room");
        let features =
            "extra_attr,flexible_inline_xattr,compression,inode_crtime,quota,project_quota";
        let mut mkfs = Command::new("mkfs.f2fs");
        testkit::command::run(mkfs.args(["-q", "-O", features]).arg(&path));
        let bytes = std::fs::read(&path).expect("the image");
        let superblock = *bytes[SUPERBLOCK..].first_chunk().expect("a superblock");
        let device = Arc::new(MemoryDevice::new(bytes));
        let volume = volume(&device).expect("valid");
        let pack_blocks = volume.checkpoint().raw.pack_blocks.get();
        let pack = (volume.checkpoint().start.0 * 4096, u64::from(pack_blocks) * 4096);
        let root = volume.node_address(Nid(3)).expect("the root directory").block.0 * 4096;
        let geometry = volume.geometry();
        let second = volume.checkpoint().nat_versions.is_second(0);
        let table = (geometry.nat.start.0 + if second { 512 } else { 0 }) * 4096;
        let is_second = volume.checkpoint().sit_versions.is_second(0);
        let half = if is_second { geometry.sit_blocks() } else { 0 };
        let segment_table = (geometry.sit.start.0 + half) * 4096;
        let summaries = geometry.ssa.start.0 * 4096;
        Self { device, superblock, pack, root, table, segment_table, summaries }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) {
        let device: &dyn BlockDevice = &*self.device;
        device.read_at(DeviceOffset(at), bytes).expect("in the image");
    }

    /// Calls `use_it` while the image has `bytes` from `at` on.
    fn with(&self, parts: &[(u64, &[u8])], use_it: impl FnOnce()) {
        let device: &dyn BlockDevice = &*self.device;
        let write = |at: u64, bytes: &[u8]| {
            device.write_at(DeviceOffset(at), bytes).expect("in the image");
        };
        let mut old = Vec::new();
        for (at, bytes) in parts {
            let mut before = vec![0; bytes.len()];
            self.read(*at, &mut before);
            write(*at, bytes);
            old.push((*at, before));
        }
        LARGEST.store(0, Ordering::Relaxed);
        use_it();
        let largest = LARGEST.load(Ordering::Relaxed);
        old.into_iter().rev().for_each(|(at, before)| write(at, &before));
        assert!(largest <= ALLOCATION_MAX, "an allocation of {largest} bytes");
    }
}

/// Changes of a structure: positions, sizes in bytes, and new values.
type Changes = Vec<(usize, usize, u64)>;

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32).prop_map(|bit| (1 << bit) - 1),
        0..5000_u64,
        any::<u64>(),
    ]
}

/// Returns changes of one to four fields that begin in `fields`.
fn changes(fields: std::ops::Range<usize>) -> impl Strategy<Value = Changes> {
    let size = prop_oneof![Just(1_usize), Just(2), Just(4), Just(8)];
    prop::collection::vec((fields, size, value()), 1..5)
}

fn apply(bytes: &mut [u8], changes: &Changes) {
    for (at, size, value) in changes {
        // Fields are aligned.
        let at = at / size * size;
        if let Some(field) = bytes.get_mut(at..at + size) {
            field.copy_from_slice(&value.to_le_bytes()[..*size]);
        }
    }
}

#[track_caller]
fn check_typed<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(
            Error::Corrupt(_)
            | Error::Unsupported(_)
            | Error::NotFound
            | Error::NotDirectory
            | Error::NoAttribute
            | Error::InvalidArgument(_),
        ) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Checks the areas of a superblock that is valid for the image.
fn check_superblock(bytes: &[u8; SUPERBLOCK_BYTES]) {
    let Some(superblock) = check_typed(Superblock::parse(bytes, IMAGE_BYTES)) else { return };
    let geometry = superblock.geometry;
    let end = IMAGE_BYTES >> geometry.block_size.shift();
    assert!(geometry.main.end.0 <= end && geometry.main.start < geometry.main.end);
    assert!(geometry.nat.start <= geometry.nat.end && geometry.nat.end <= geometry.main.start);
    // Sizes in bytes and in sectors are 64-bit numbers.
    assert!(geometry.block_count.checked_mul(geometry.block_size.bytes().into()).is_some());
    assert!(geometry.nid_count() > 0);
}

/// Reads the inode `number` of the volume in all ways.
fn use_inode(volume: &Arc<Volume>, number: InodeNumber) {
    let Some(inode) = check_typed(volume.inode(number)) else { return };
    let attributes = inode.attributes();
    assert!(attributes.modified.nanoseconds < 1_000_000_000 && attributes.size < 1 << 63);
    for name in check_typed(inode.list_xattrs()).unwrap_or_default() {
        check_typed(inode.get_xattr(&name));
    }
    check_typed(inode.get_xattr(b"user.name"));
    check_typed(inode.read_link());
    for name in [&b"."[..], b"name", &[0xff; 255]] {
        check_typed(inode.lookup(name));
    }
    let mut entries = 0;
    check_typed(inode.read_dir(DirCursor(0), &mut |_| {
        entries += 1;
        if entries < 2000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }));
    let size = attributes.size;
    for at in [0, 1, 4096 * 900, size / 2, size.saturating_sub(1), (1 << 63) - 2] {
        for length in [1, 1 << 20, u64::MAX] {
            let Some(map) = check_typed(inode.map_read(FileOffset(at), length)) else { continue };
            assert!(map.offset.0 <= at && at < map.end(), "{map:?} at {at}");
            if map.kind == iomap::IomapKind::Encoded {
                check_typed(inode.cluster(FileOffset(at)));
            }
        }
    }
    if let Some(data) = check_typed(inode.inline_data()) {
        assert!(data.len() as u64 <= size && data.len() < BLOCK);
    }
}

fn use_volume(device: &Arc<MemoryDevice>) {
    let Some(volume) = check_typed(volume(device)) else { return };
    let _ = (volume.info(), volume.statfs(), volume.warning());
    for number in [3, 4, 5, 6, 7, 1_000_000] {
        use_inode(&volume, InodeNumber(number));
    }
}

/// Sets the CRC of the head of a checkpoint pack, if it has a place for it.
fn mend_checkpoint(head: &mut [u8]) {
    let at = u32::from_le_bytes(*head[164..].first_chunk().expect("four bytes")) as usize;
    if (192..=BLOCK - 4).contains(&at) {
        let sum = crc32_le(crc32_le(MAGIC, &head[..at]), &head[at + 4..]);
        head[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Calls `use_it` while the image has a block of four orphans, which says that it has `entries`.
fn with_orphans(image: &Image, entries: u32, use_it: impl FnOnce()) {
    let mut pack = vec![0; image.pack.1 as usize];
    image.read(image.pack.0, &mut pack);
    let mut orphans = vec![0; BLOCK];
    for (word, number) in orphans.chunks_exact_mut(4).zip([1_u32, 2, 3, 4]) {
        word.copy_from_slice(&number.to_le_bytes());
    }
    // The first of one block. The last number is that of a quota file, which has a link.
    for (from_end, value) in [(12, 0x1_0001_u32), (8, entries)] {
        orphans[BLOCK - from_end..][..4].copy_from_slice(&value.to_le_bytes());
    }
    let mut change = |at: usize, value: u32| {
        let word = pack[at..].first_chunk_mut().expect("four bytes");
        *word = (u32::from_le_bytes(*word) + value).to_le_bytes();
    };
    // The flag is not set.
    change(offset_of!(RawCheckpoint, flags), ORPHANS);
    change(offset_of!(RawCheckpoint, pack_blocks), 1);
    change(offset_of!(RawCheckpoint, summary_start), 1);
    mend_checkpoint(&mut pack[..BLOCK]);
    let last = pack.len() - BLOCK;
    pack.copy_within(..BLOCK, last);
    pack.splice(BLOCK..BLOCK, orphans);
    image.with(&[(image.pack.0, &pack)], use_it);
}

/// Opens the volume, and writes to it, as users do.
fn open_as_usual(image: &Image) -> [Result<Arc<Volume>>; 2] {
    let options = FormatOptions::default();
    let cache = PageCache::new(CacheOptions { bytes_max: 2 << 20, ..CacheOptions::default() });
    let cache = cache.expect("memory");
    let device = || Arc::clone(&image.device) as SharedDevice;
    let reading = Volume::open(device(), &cache, &options);
    [reading, open_for_writing(device(), &cache, &options)]
}

/// Returns the findings of the check.
fn findings(volume: &Volume) -> Vec<String> {
    let mut found = Vec::new();
    volume.check(&mut |error| {
        found.push(error.to_string());
        ControlFlow::Continue(())
    });
    found
}

#[test]
fn inodes_of_the_format_and_those_with_names_are_not_deleted_as_orphans() {
    let image = image();
    with_orphans(&image, 4, || {
        let options = CacheOptions { bytes_max: 2 << 20, ..CacheOptions::default() };
        let cache = PageCache::new(options).expect("memory");
        let device: SharedDevice = Arc::clone(&image.device) as SharedDevice;
        let volume = Volume::open(device, &cache, &FormatOptions::default()).expect("it opens");
        let report = volume.recovery().expect("a report");
        let failure = report.orphan_failure.as_ref().expect("a failure").to_string();
        assert_eq!(failure, "corrupt orphan block at inode 1: inode number is invalid: 0x1");
        assert_eq!(report.orphans_deleted, 0);
        use_inode(&volume, InodeNumber(3));
    });
}

#[test]
fn a_volume_with_a_damaged_list_of_orphans_is_read_but_not_written() {
    let image = image();
    with_orphans(&image, 1021, || {
        let expected = "orphan block at block ";
        let [reading, writing] = open_as_usual(&image);
        let volume = reading.expect("it can be read");
        use_inode(&volume, InodeNumber(3));
        let found = findings(&volume);
        assert!(found.iter().any(|finding| finding.contains(expected)), "{found:?}");
        let error = writing.expect_err("orphans would stay").to_string();
        assert!(error.contains(expected), "{error}");
    });
}

#[test]
fn a_volume_without_its_root_directory_is_read_but_not_written() {
    let image = image();
    image.with(&[(image.root, &[0; BLOCK])], || {
        let [reading, writing] = open_as_usual(&image);
        let volume = reading.expect("it can be read");
        use_inode(&volume, InodeNumber(4));
        assert!(!findings(&volume).is_empty());
        let error = writing.expect_err("there is no root").to_string();
        assert!(error.contains("inode 3"), "{error}");
    });
}

#[test]
fn a_size_of_the_volume_that_no_address_reaches_is_refused() {
    let mut bytes = image().superblock;
    bytes[36..44].copy_from_slice(&(1_u64 << 32).to_le_bytes());
    Superblock::parse(&bytes, IMAGE_BYTES).expect("valid");
    bytes[36..44].copy_from_slice(&((1_u64 << 32) + 1).to_le_bytes());
    let error = Superblock::parse(&bytes, IMAGE_BYTES).expect_err("not valid").to_string();
    assert!(error.contains("block count is 4294967297"), "{error}");
}

#[test]
fn a_journal_with_a_node_outside_the_table_is_read_but_not_written() {
    // Other tests measure allocations, and this one makes large ones.
    let _alone = image();
    const COMPACT: u32 = 4;
    const ENTRY_BYTES: usize = 13;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(IMAGE_BYTES)).expect("room");
    testkit::command::run(Command::new("mkfs.f2fs").arg("-q").arg(&path));
    let mut bytes = std::fs::read(&path).expect("the image");
    let device: SharedDevice = Arc::new(MemoryDevice::new(bytes.clone()));
    let geometry = Superblock::read(&device).expect("valid").geometry;
    let checkpoint = Checkpoint::read(&device, &geometry).expect("valid");
    assert!(checkpoint.raw.flags.get() & COMPACT != 0, "the journal is the block's beginning");
    let journal =
        (checkpoint.start.0 as usize + checkpoint.raw.summary_start.get() as usize) * BLOCK;
    let count = usize::from(bytes[journal]);
    let added = journal + 2 + count * ENTRY_BYTES;
    let open = |bytes: &[u8]| {
        let device: SharedDevice = Arc::new(MemoryDevice::new(bytes.to_vec()));
        let cache = PageCache::new(CacheOptions { bytes_max: 2 << 20, ..CacheOptions::default() });
        open_for_writing(device, &cache.expect("memory"), &FormatOptions::default())
    };
    bytes[journal] += 1;
    let max = geometry.nid_count() as u32 - 1;
    for (nid, is_written) in [(max, true), (max + 1, false), (u32::MAX, false)] {
        bytes[added..added + 4].copy_from_slice(&nid.to_le_bytes());
        bytes[added + 4..added + ENTRY_BYTES].fill(0);
        volume(&Arc::new(MemoryDevice::new(bytes.clone()))).expect("it can be read");
        match open(&bytes) {
            Ok(_) => assert!(is_written, "{nid}"),
            Err(error) => {
                assert!(!is_written, "{nid}: {error}");
                let expected = format!("node number is {nid}, outside 1 to {max}");
                assert!(error.to_string().contains(&expected), "{error}");
            }
        }
    }
}

#[test]
fn a_main_area_with_more_segments_than_its_tables_is_read_but_not_written() {
    // Other tests measure allocations, and this one makes large ones.
    let _alone = image();
    const BLOCKS: u64 = SUPERBLOCK as u64 + offset_of!(RawSuperblock, block_count) as u64;
    const MAIN_SEGMENTS: u64 =
        SUPERBLOCK as u64 + offset_of!(RawSuperblock, segment_count_main) as u64;
    const BYTES: u64 = 2 << 30;
    // One segment of summaries.
    const SUMMARIES: u32 = 512;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let file = std::fs::File::create_new(&path).expect("a file");
    file.set_len(IMAGE_BYTES).expect("room");
    testkit::command::run(Command::new("mkfs.f2fs").arg("-q").arg(&path));
    // The rest is a hole.
    file.set_len(BYTES).expect("room");
    file.write_all_at(&(BYTES / BLOCK as u64).to_le_bytes(), BLOCKS).expect("room");
    let open = |segments: u32, is_written: bool| {
        file.write_all_at(&segments.to_le_bytes(), MAIN_SEGMENTS).expect("room");
        let device: SharedDevice = Arc::new(FileDevice::open(&path, false).expect("the image"));
        let cache = PageCache::new(CacheOptions { bytes_max: 2 << 20, ..CacheOptions::default() });
        let (cache, options) = (cache.expect("memory"), FormatOptions::default());
        match is_written {
            true => open_for_writing(device, &cache, &options),
            false => Volume::open(device, &cache, &options),
        }
    };
    open(SUMMARIES, true).expect("the area has all summaries");
    open(SUMMARIES + 1, false).expect("it can be read");
    let error = open(SUMMARIES + 1, true).expect_err("the area is too short").to_string();
    assert!(error.contains("number of segments for the SSA is 513, outside 1 to 512"), "{error}");
}

#[test]
fn a_log_outside_the_main_area_is_read_but_not_written() {
    // Other tests measure allocations, and this one makes large ones.
    let _alone = image();
    const SEGMENT: usize = offset_of!(RawCheckpoint, node_segments);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(IMAGE_BYTES)).expect("room");
    testkit::command::run(Command::new("mkfs.f2fs").arg("-q").arg(&path));
    let mut bytes = std::fs::read(&path).expect("the image");
    let device: SharedDevice = Arc::new(MemoryDevice::new(bytes.clone()));
    let geometry = Superblock::read(&device).expect("valid").geometry;
    let checkpoint = Checkpoint::read(&device, &geometry).expect("valid");
    let head = checkpoint.start.0 as usize * BLOCK;
    let last = head + (checkpoint.raw.pack_blocks.get() as usize - 1) * BLOCK;
    let segments = geometry.main_segments();
    for segment in [segments, u32::MAX] {
        for at in [head, last] {
            let block = &mut bytes[at..at + BLOCK];
            block[SEGMENT..SEGMENT + 4].copy_from_slice(&segment.to_le_bytes());
            mend_checkpoint(block);
        }
        volume(&Arc::new(MemoryDevice::new(bytes.clone()))).expect("it can be read");
        let device: SharedDevice = Arc::new(MemoryDevice::new(bytes.clone()));
        let cache = PageCache::new(CacheOptions { bytes_max: 2 << 20, ..CacheOptions::default() });
        let (cache, options) = (cache.expect("memory"), FormatOptions::default());
        let error = open_for_writing(device, &cache, &options).expect_err("refused");
        let expected = format!("segment of a log is {segment}, outside 0 to {}", segments - 1);
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

/// Returns a node of the root directory with these words, for a place in the file that `position`
/// counts.
fn node(nid: u32, position: u32, words: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut block: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    block.resize(BLOCK - 24, 0);
    block.extend([nid, 3, position << 3, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes));
    block
}

#[test]
fn a_directory_that_maps_a_block_again_and_again_is_read_as_often_as_the_volume_has_blocks() {
    // The nodes' numbers. The first one has those of the others.
    const FIRST: u32 = 100;
    const CHILDREN: u32 = 15;
    let image = image();
    let geometry = Superblock::parse(&image.superblock, IMAGE_BYTES).expect("valid").geometry;
    let block_of = |nid: u32| geometry.main.end.0 as u32 - 1 - (nid - FIRST);
    let mut root = vec![0; BLOCK];
    image.read(image.root, &mut root);
    let address = root_address(&root);
    root[16..24].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    // After two direct nodes, which it does not have.
    root[BLOCK - 24 - 12..BLOCK - 24 - 8].copy_from_slice(&FIRST.to_le_bytes());
    let mut blocks = vec![(image.root, root)];
    let children = FIRST + 1..=FIRST + CHILDREN;
    let first = node(FIRST, 3, children.clone());
    let others = children.map(|nid| (nid, node(nid, nid - FIRST + 3, [address; 1018].into_iter())));
    for (nid, block) in std::iter::once((FIRST, first)).chain(others) {
        let entry = [&[0][..], &3_u32.to_le_bytes(), &block_of(nid).to_le_bytes()].concat();
        blocks.push((image.table + 9 * u64::from(nid), entry));
        blocks.push((u64::from(block_of(nid)) * BLOCK as u64, block));
    }
    let parts: Vec<_> = blocks.iter().map(|(at, block)| (*at, &block[..])).collect();
    image.with(&parts, || {
        let root = volume(&image.device).expect("valid").inode(InodeNumber(3)).expect("valid");
        let mut entries = 0;
        let listed = root.read_dir(DirCursor(0), &mut |_| {
            entries += 1;
            ControlFlow::Continue(())
        });
        let error = listed.expect_err("too many blocks").to_string();
        let blocks = geometry.main.end.0 - geometry.main.start.0;
        assert!(error.contains(&format!("outside 0 to {blocks}")), "{error}");
        assert_eq!(entries, 2 * blocks, "the block has two entries");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_superblock_is_parsed_or_an_error(bytes in prop::collection::vec(any::<u8>(), SUPERBLOCK_BYTES)) {
        let mut bytes: [u8; SUPERBLOCK_BYTES] = bytes.try_into().expect("the size");
        check_superblock(&bytes);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2180..2184].fill(0);
        check_superblock(&bytes);
    }

    #[test]
    fn a_changed_superblock_is_parsed_or_an_error(
        fields in changes(4..112),
        flags in changes(2180..2204),
    ) {
        let image = image();
        let mut bytes = image.superblock;
        apply(&mut bytes, &fields);
        check_superblock(&bytes);
        apply(&mut bytes, &flags);
        check_superblock(&bytes);
        image.with(&[(SUPERBLOCK as u64, &bytes)], || use_volume(&image.device));
    }

    #[test]
    fn a_changed_checkpoint_is_read_or_an_error(
        fields in changes(0..260),
        summaries in changes(0..BLOCK),
    ) {
        let image = image();
        let mut pack = vec![0; image.pack.1 as usize];
        image.read(image.pack.0, &mut pack);
        let last = pack.len() - BLOCK;
        apply(&mut pack[..BLOCK], &fields);
        mend_checkpoint(&mut pack[..BLOCK]);
        pack.copy_within(..BLOCK, last);
        apply(&mut pack[BLOCK..2 * BLOCK], &summaries);
        image.with(&[(image.pack.0, &pack)], || {
            let device: SharedDevice = Arc::clone(&image.device) as SharedDevice;
            let superblock = Superblock::read(&device).expect("valid");
            if let Some(checkpoint) = check_typed(Checkpoint::read(&device, &superblock.geometry)) {
                assert!(checkpoint.nat_journal.len() <= 38);
                assert!(checkpoint.orphans.len() <= 512 * 1020);
            }
            use_volume(&image.device);
        });
    }

    #[test]
    fn a_changed_node_address_table_is_read_or_an_error(fields in changes(0..100)) {
        let image = image();
        let mut block = vec![0; BLOCK];
        image.read(image.table, &mut block);
        apply(&mut block, &fields);
        image.with(&[(image.table, &block)], || use_volume(&image.device));
    }

    #[test]
    fn changed_segment_entries_and_summaries_are_checked_or_an_error(
        entries in changes(0..BLOCK),
        summaries in changes(0..BLOCK),
    ) {
        let image = image();
        let [mut table, mut area] = [vec![0; BLOCK], vec![0; BLOCK]];
        image.read(image.segment_table, &mut table);
        image.read(image.summaries, &mut area);
        apply(&mut table, &entries);
        apply(&mut area, &summaries);
        image.with(&[(image.segment_table, &table), (image.summaries, &area)], || {
            let Some(volume) = check_typed(volume(&image.device)) else { return };
            let mut count = 0;
            volume.check(&mut |_| {
                count += 1;
                if count < 5000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        });
    }

    #[test]
    fn any_inode_is_parsed_or_an_error(
        bytes in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], BLOCK - 24),
        mode in prop_oneof![Just(0x41c0_u16), Just(0x8180), Just(0xa1ff), any::<u16>()],
    ) {
        let image = image();
        let mut bytes = bytes;
        bytes[..2].copy_from_slice(&mode.to_le_bytes());
        image.with(&[(image.root, &bytes)], || use_volume(&image.device));
    }

    #[test]
    fn a_changed_inode_is_parsed_or_an_error(
        fields in changes(0..92),
        more in changes(344..420),
        others in changes(360..BLOCK),
        mode in prop_oneof![Just(None), Just(Some(0x8180_u16)), Just(Some(0xa1ff)), Just(Some(0x2180))],
        // The root directory must be one, but the quota files need not be.
        in_quota_file in any::<bool>(),
    ) {
        let image = image();
        let mut block = vec![0; BLOCK];
        let at = if in_quota_file { quota_inode(&image) } else { image.root };
        image.read(at, &mut block);
        for fields in [fields, more, others] {
            apply(&mut block[..BLOCK - 24], &fields);
        }
        if let Some(mode) = mode {
            block[..2].copy_from_slice(&mode.to_le_bytes());
        }
        image.with(&[(at, &block)], || use_volume(&image.device));
    }

    #[test]
    fn any_directory_block_is_listed_or_an_error(
        tail in prop::collection::vec(prop_oneof![Just(0_u8), 0..20_u8, any::<u8>()], BLOCK),
        fields in changes(0..600),
    ) {
        let image = image();
        let mut inode = vec![0; BLOCK];
        image.read(image.root, &mut inode);
        let at = u64::from(root_address(&inode)) * BLOCK as u64;
        image.with(&[(at, &tail)], || use_volume(&image.device));
        let mut block = vec![0; BLOCK];
        image.read(at, &mut block);
        apply(&mut block, &fields);
        image.with(&[(at, &block)], || use_volume(&image.device));
    }
}

/// Returns the address of the first block of the root directory, which follows the extra attributes
/// of its inode.
fn root_address(inode: &[u8]) -> u32 {
    let extra = usize::from(u16::from_le_bytes([inode[360], inode[361]]));
    u32::from_le_bytes(*inode[360 + extra..].first_chunk().expect("four bytes"))
}

/// Returns the position of the inode of the first quota file.
fn quota_inode(image: &Image) -> u64 {
    let volume = volume(&image.device).expect("valid");
    let number = volume.superblock().quota_inodes[0].expect("a quota file");
    volume.node_address(Nid(number.0 as u32)).expect("in use").block.0 * 4096
}

fn open_for_writing(
    device: SharedDevice,
    cache: &Arc<PageCache>,
    options: &FormatOptions,
) -> Result<Arc<Volume>> {
    Volume::open_for_writing(device, cache, options, &Format::default())
}
