//! Uncached reads and writes of ext4 files: the state of the cache, the data that other readers
//! see, and the files that e2fsck and the kernel find afterwards.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;

use base::FileOffset;
use device::{MemoryDevice, SharedDevice};
use iomap::Caching;
use testkit::{LoopMount, Mke2fs, Random, check_by_e2fsck, private_mounts, wait_until};
use vfs::{
    Credentials, File, Node, OpenMode, Privileges, RwFlags, Volume, VolumeOptions, WriteAt,
    WriteSync,
};

const WRITE: OpenMode = OpenMode { write: true, append: false };
const UNCACHED: RwFlags = RwFlags { dontcache: true, append: false, sync: WriteSync::None };
const CACHE_BYTES: u64 = 8 << 20;

fn options(caching: Caching) -> VolumeOptions {
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.cache.bytes_max = CACHE_BYTES;
    options.read.caching = caching;
    options
}

fn make(image: &Path, block_size: u32) {
    Mke2fs { size: 256 << 20, ..Mke2fs::new("ext4", block_size) }.make(image, None);
}

fn open(image: &Path) -> Volume {
    let device = device::OpenDevice { read_only: false, ..device::OpenDevice::default() };
    Volume::open_device(device::open(image, device).unwrap(), &options(Caching::Kept)).unwrap()
}

fn create(volume: &Volume, path: &str) -> Arc<Node> {
    volume.create_file(path.as_bytes(), 0o644, &Credentials::ROOT).unwrap()
}

fn write(file: &File, at: u64, data: &[u8], flags: RwFlags) {
    let at = WriteAt::Offset(FileOffset(at));
    assert_eq!(file.write_with(at, data, Privileges::Keep, flags), Ok(data.len()));
}

fn read(file: &File, at: u64, length: usize, flags: RwFlags) -> Vec<u8> {
    let mut buffer = vec![0; length];
    let got = file.read_with(FileOffset(at), &mut buffer, flags).unwrap();
    buffer.truncate(got);
    buffer
}

/// Returns bytes that depend on their offset.
fn data(from: u64, length: u64, salt: u64) -> Vec<u8> {
    (from..from + length).map(|at| (at / 4096 * 7 + at + salt) as u8).collect()
}

fn resident(volume: &Volume) -> u64 {
    volume.cache_stats().bytes_resident
}

/// Waits until no more than `bytes` are in the cache.
fn wait_for_resident(volume: &Volume, bytes: u64) {
    wait_until("data leaves the cache", || resident(volume) <= bytes);
}

#[test]
fn uncached_streams_larger_than_the_cache_evict_no_other_data() {
    private_mounts();
    for block_size in [1024, 4096, 65_536] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        make(&image, block_size);
        let volume = open(&image);
        let hot = create(&volume, "/hot").open_for(WRITE).unwrap();
        write(&hot, 0, &data(0, 2 << 20, 1), RwFlags::default());
        hot.sync_all().unwrap();
        // Also caches the metadata of the stream.
        let stream = create(&volume, "/stream").open_for(WRITE).unwrap();
        volume.sync().unwrap();
        let hot_pages = 2 << 20;
        let (total, mut most) = (8 * CACHE_BYTES, 0);
        for at in (0..total).step_by(256 << 10) {
            write(&stream, at, &data(at, 256 << 10, 2), UNCACHED);
            most = most.max(resident(&volume));
        }
        stream.sync_all().unwrap();
        for at in (0..total).step_by(256 << 10) {
            assert!(read(&stream, at, 256 << 10, UNCACHED) == data(at, 256 << 10, 2), "at {at}");
            most = most.max(resident(&volume));
        }
        drop(stream);
        let stats = volume.cache_stats();
        assert_eq!(stats.folios_reclaimed, 0, "blocks of {block_size}: {stats:?}");
        assert!(stats.bytes_dropped >= 2 * total, "{stats:?}");
        assert!(most <= hot_pages + CACHE_BYTES / 2, "{most} bytes at once");
        // All of the other file is cached, and little else.
        wait_for_resident(&volume, hot_pages + (1 << 20));
        let before = volume.cache_stats();
        assert!(read(&hot, 0, 2 << 20, RwFlags::default()) == data(0, 2 << 20, 1));
        assert_eq!(volume.cache_stats(), before, "the other file was read again");
        drop(hot);
        volume.close().unwrap();
        drop(volume);
        check_by_e2fsck(&image);
        if block_size <= 4096 {
            let mount = LoopMount::new(&image, "ext4", "ro");
            let found = std::fs::read(mount.path().join("stream")).unwrap();
            assert!(found == data(0, total, 2), "the kernel reads other data");
        }
    }
}

#[test]
fn data_leaves_the_cache_with_every_way_to_request_that_and_other_flags_still_apply() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    make(&image, 4096);
    let device: SharedDevice = Arc::new(MemoryDevice::new(std::fs::read(&image).unwrap()));
    for whole_volume in [false, true] {
        let caching = if whole_volume { Caching::Dropbehind } else { Caching::Kept };
        let volume = Volume::open_device(Arc::clone(&device), &options(caching)).unwrap();
        let node = create(&volume, if whole_volume { "/a" } else { "/b" });
        let [by_call, by_file] = [(); 2].map(|()| node.open_for(WRITE).unwrap());
        let by_file = by_file.uncached();
        let by_call_flags = if whole_volume { RwFlags::default() } else { UNCACHED };
        write(&by_call, 0, &data(0, 200_000, 3), by_call_flags);
        write(&by_file, 200_000, &data(200_000, 100_000, 3), RwFlags::default());
        // Goes to the end, whatever the offset.
        let appended = RwFlags { append: true, sync: WriteSync::Data, ..by_call_flags };
        write(&by_call, 7, &data(300_000, 50_000, 3), appended);
        assert_eq!(node.attributes().size, 350_000);
        let stats = volume.dirty_stats();
        assert_eq!((stats.bytes_dirty, stats.bytes_writeback), (0, 0), "not durable");
        volume.sync().unwrap();
        let metadata = volume.cache_stats().bytes_resident;
        assert!(read(&by_call, 0, 350_000, by_call_flags) == data(0, 350_000, 3));
        wait_for_resident(&volume, metadata);
        assert!(read(&by_file, 0, 350_000, RwFlags::default()) == data(0, 350_000, 3));
        wait_for_resident(&volume, metadata);
        let lent = by_file.lend(FileOffset(4096), 4096).unwrap();
        assert_eq!(lent[..], data(4096, lent.len() as u64, 3)[..]);
        drop(lent);
        drop(by_file);
        wait_for_resident(&volume, metadata);
        if !whole_volume {
            assert!(read(&by_call, 0, 350_000, RwFlags::default()) == data(0, 350_000, 3));
            assert!(resident(&volume) >= metadata + 350_000, "a read without the flag caches data");
        }
        drop(by_call);
        volume.close().unwrap();
    }
}

/// Returns a block that contains its number and a version.
fn stamped(block: u64, version: u64) -> Vec<u8> {
    [block, version].map(u64::to_le_bytes).concat().repeat(256)
}

#[test]
fn mixed_cached_and_uncached_readers_and_writers_see_no_stale_data() {
    const BLOCKS: u64 = 1024;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    make(&image, 4096);
    let volume = open(&image);
    let node = create(&volume, "/file");
    let versions: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
    let first: Vec<u8> = (0..BLOCKS).flat_map(|block| stamped(block, 0)).collect();
    write(&node.open_for(WRITE).unwrap(), 0, &first, UNCACHED);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (node, versions, done, volume) = (&node, &versions, &done, &volume);
        // Each writer has every other block to itself.
        let writers: Vec<_> = (0..2_u64)
            .map(|thread| {
                scope.spawn(move || {
                    let (file, mut random) = (node.open_for(WRITE).unwrap(), Random(thread + 1));
                    for _ in 0..6000 {
                        let block = random.below(BLOCKS / 2) * 2 + thread;
                        let version = versions[block as usize].load(Ordering::Relaxed) + 1;
                        let flags =
                            if random.below(4) == 0 { RwFlags::default() } else { UNCACHED };
                        write(&file, block * 4096, &stamped(block, version), flags);
                        versions[block as usize].store(version, Ordering::Release);
                    }
                })
            })
            .collect();
        for thread in 0..2 {
            scope.spawn(move || {
                let (file, mut random) = (node.open_for(WRITE).unwrap(), Random(thread + 11));
                while !done.load(Ordering::Relaxed) {
                    let count = 1 + random.below(64);
                    let block = random.below(BLOCKS - count);
                    let least: Vec<u64> = (block..block + count)
                        .map(|block| versions[block as usize].load(Ordering::Acquire))
                        .collect();
                    let flags = if random.below(2) == 0 { RwFlags::default() } else { UNCACHED };
                    let bytes = read(&file, block * 4096, (count * 4096) as usize, flags);
                    for (at, (bytes, least)) in bytes.chunks(4096).zip(least).enumerate() {
                        let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
                        assert!(version >= least, "block {block} + {at}: {version} < {least}");
                        assert!(
                            *bytes == stamped(block + at as u64, version),
                            "a torn block, or another block's data"
                        );
                    }
                }
            });
        }
        // Fills the cache, so that all other data is reclaimed at times.
        scope.spawn(move || {
            let crowd = create(volume, "/crowd").open_for(WRITE).unwrap();
            write(&crowd, 0, &vec![1; 12 << 20], RwFlags::default());
            while !done.load(Ordering::Relaxed) {
                for at in (0..12 << 20).step_by(1 << 20) {
                    read(&crowd, at, 1 << 20, RwFlags::default());
                }
            }
        });
        let results: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    volume.sync().unwrap();
    let expected: Vec<u8> = versions
        .iter()
        .enumerate()
        .flat_map(|(block, version)| stamped(block as u64, version.load(Ordering::Relaxed)))
        .collect();
    drop(node);
    volume.close().unwrap();
    drop(volume);
    check_by_e2fsck(&image);
    private_mounts();
    let mount = LoopMount::new(&image, "ext4", "ro");
    assert!(std::fs::read(mount.path().join("file")).unwrap() == expected);
}

#[test]
fn files_that_are_concurrently_truncated_punched_and_deleted_agree_with_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    make(&image, 1024);
    let volume = open(&image);
    let free = volume.statfs().blocks_free;
    let models: Vec<RwLock<Vec<u8>>> = (0..3).map(|_| RwLock::default()).collect();
    let nodes: Vec<Arc<Node>> = (0..3).map(|name| create(&volume, &format!("/{name}"))).collect();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (volume, models, nodes) = (&volume, &models, &nodes);
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                let files: Vec<File> = nodes
                    .iter()
                    .map(|node| node.open_for(WRITE).unwrap())
                    .map(|file| if thread % 2 == 0 { file.uncached() } else { file })
                    .collect();
                for round in 0..400_u64 {
                    let which = random.below(3) as usize;
                    let (file, at) = (&files[which], random.below(1 << 20));
                    let length = 1 << random.below(18);
                    let flags = RwFlags { dontcache: random.below(2) == 0, ..RwFlags::default() };
                    match random.below(8) {
                        0 => {
                            let mut model = models[which].write().unwrap();
                            file.node().set_size(at, Privileges::Keep).unwrap();
                            model.resize(at as usize, 0);
                        }
                        1 => {
                            let mut model = models[which].write().unwrap();
                            let range = FileOffset(at)..FileOffset(at + length);
                            let punch = vfs::Fallocate::from_flags(0x03).unwrap();
                            file.fallocate(punch, range, Privileges::Keep).unwrap();
                            let end = model.len().min((at + length) as usize);
                            let start = end.min(at as usize);
                            model[start..end].fill(0);
                        }
                        2 => {
                            // A file that is deleted while its data is in flight.
                            let path = format!("/passing {thread} {round}");
                            let passing = create(volume, &path).open_for(WRITE).unwrap();
                            write(&passing, 0, &data(0, length, round), UNCACHED);
                            volume.remove(path.as_bytes(), &Credentials::ROOT).unwrap();
                        }
                        3 | 4 => {
                            let mut model = models[which].write().unwrap();
                            let bytes = data(at, length, round);
                            write(file, at, &bytes, flags);
                            let end = (at + length) as usize;
                            if model.len() < end {
                                model.resize(end, 0);
                            }
                            model[at as usize..end].copy_from_slice(&bytes);
                        }
                        5 if round % 2 == 0 => file.sync_data().unwrap(),
                        5 => file.sync_all().unwrap(),
                        _ => {
                            let model = models[which].read().unwrap();
                            let bytes = read(file, at, length as usize, flags);
                            let start = model.len().min(at as usize);
                            let end = model.len().min((at + length) as usize);
                            assert!(bytes == model[start..end], "file {which}, {length} at {at}");
                        }
                    }
                }
            });
        }
    });
    for (name, model) in models.iter().enumerate() {
        let file = nodes[name].open().unwrap();
        assert!(read(&file, 0, 4 << 20, UNCACHED) == *model.read().unwrap(), "file {name}");
        volume.remove(format!("/{name}").as_bytes(), &Credentials::ROOT).unwrap();
    }
    drop(nodes);
    volume.sync().unwrap();
    let metadata = resident(&volume);
    assert!(metadata < 2 << 20, "{:?}", volume.cache_stats());
    assert_eq!(volume.statfs().blocks_free, free);
    volume.close().unwrap();
    drop(volume);
    check_by_e2fsck(&image);
}
