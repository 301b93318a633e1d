//! Tests of the discards that freed blocks cause.

mod common;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{DeviceOffset, IoError, IoOperation, Result};
use common::cached_file::{Cache, CachedFile};
use common::{Image, new_file};
use device::{MemoryDevice, RecordDevice, SharedDevice};
use ext4::{OpenOptions, ROOT_INODE, Volume};
use iomap::{CacheOptions, PageCache};
use testkit::crash::{FileHistory, STALE, with_stale_blocks};
use testkit::{DeviceHooks, HookedDevice, Random, wait_until};

const EOPNOTSUPP: i32 = 95;
const KINDS: &[&str] = &[
    "-t ext4 -b 1024 -J size=1",
    "-t ext4 -b 4096 -O bigalloc -C 16384",
    "-t ext3 -b 1024 -J size=1",
];

fn open(device: SharedDevice, discard: bool) -> Arc<Volume> {
    let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let options = OpenOptions { discard: Some(discard), ..OpenOptions::default() };
    Volume::open_for_writing(device, &PageCache::new(cache).unwrap(), &options).unwrap()
}

#[test]
fn freed_blocks_are_discarded_after_the_transaction_is_durable() {
    const DATA: u8 = 0xD7;
    const SIZE: usize = 50_000;
    let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == DATA).count();
    for (options, discard) in KINDS.iter().flat_map(|one| [(one, false), (one, true)]) {
        let arguments: Vec<&str> = options.split_whitespace().collect();
        let inner = Arc::new(MemoryDevice::new(Image::make(16, &arguments).bytes()));
        let device = Arc::new(RecordDevice::new(inner.clone()).unwrap());
        let volume = open(device.clone(), discard);
        let (cache, inode) = (Cache::new(), new_file(&volume, "a"));
        let file = cache.file(&inode, Arc::clone(&inode));
        file.write(0, &[DATA; SIZE]).unwrap();
        file.sync(false);
        let synced = device.point();
        file.set_size(0);
        volume.sync().unwrap();
        let left = count(&inner.snapshot());
        if !discard {
            assert!(left >= SIZE, "{options}: {left}");
            continue;
        }
        assert!(left < SIZE / 50, "{options}: {left}");
        let recording = device.recording();
        let mut points = synced..recording.crash_points().end;
        let first = points.find(|point| count(&recording.image(*point, |_, _| true)) < SIZE);
        let durable = recording.image(first.unwrap(), |_, _| false);
        let volume = common::open(durable).unwrap();
        let number = volume.inode(ROOT_INODE).unwrap().lookup(b"a").unwrap();
        assert_eq!(volume.inode(number).unwrap().size(), 0, "{options}: the file must be empty");
    }
}

/// A device that records discards, and may refuse them.
type DiscardRecorder = HookedDevice<Hooks>;

#[derive(Debug)]
struct Hooks {
    discards: Mutex<Vec<Range<u64>>>,
    refuses: bool,
}

fn recorder(options: &str, refuses: bool) -> Arc<DiscardRecorder> {
    let arguments: Vec<&str> = options.split_whitespace().collect();
    let inner = Arc::new(MemoryDevice::new(Image::make(16, &arguments).bytes()));
    Arc::new(HookedDevice::new(inner, Hooks { discards: Mutex::default(), refuses }))
}

impl DeviceHooks for Hooks {
    fn discard(&self, device: &SharedDevice, offset: DeviceOffset, length: u64) -> Result<()> {
        self.discards.lock().unwrap().push(offset.0..offset.0 + length);
        if self.refuses {
            let (operation, errno) = (IoOperation::Discard, EOPNOTSUPP);
            return Err(IoError { operation, offset, length, errno }.into());
        }
        device.discard(offset, length)
    }
}

/// Creates files of `bytes` bytes in adjacent blocks, and deletes them.
fn make_and_delete(volume: &Arc<Volume>, count: usize, bytes: usize) {
    let (cache, root) = (Cache::new(), volume.inode(ROOT_INODE).unwrap());
    let make = |number| {
        let inode = new_file(volume, &format!("file {number}"));
        let file = cache.file(&inode, Arc::clone(&inode));
        file.write(0, &vec![7; bytes]).unwrap();
        file.write_back();
        file
    };
    let files: Vec<CachedFile> = (0..count).map(make).collect();
    volume.sync().unwrap();
    for (number, file) in files.into_iter().enumerate() {
        let name = format!("file {number}");
        root.unlink(name.as_bytes(), &file.inode, common::TIME).unwrap();
        file.release().unwrap();
    }
    volume.sync().unwrap();
}

#[test]
fn adjacent_extents_are_discarded_together() {
    let device = recorder("-t ext4 -b 1024 -J size=1", false);
    let volume = open(device.clone(), true);
    make_and_delete(&volume, 40, 3000);
    let discards = device.discards.lock().unwrap();
    assert_eq!(discards.iter().map(|range| range.end - range.start).sum::<u64>(), 40 * 3072);
    assert!(discards.len() < 8, "{discards:?}");
}

#[test]
fn a_device_that_refuses_discards_gets_one_and_causes_one_warning() {
    let _ = tracing::subscriber::set_global_default(Warnings);
    let device = recorder("-t ext4 -b 1024 -J size=1", true);
    let volume = open(device.clone(), true);
    for _ in 0..3 {
        make_and_delete(&volume, 5, 3000);
    }
    volume.close().unwrap();
    assert_eq!(device.discards.lock().unwrap().len(), 1);
    assert_eq!(WARNINGS.load(Ordering::SeqCst), 1);
}

/// Counts warnings about discards.
struct Warnings;

static WARNINGS: AtomicUsize = AtomicUsize::new(0);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        if event.metadata().target().ends_with("discard") {
            WARNINGS.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

const SIZE_MAX: u64 = 60_000;

#[test]
fn blocks_in_use_after_a_power_cut_are_never_discarded() {
    for (index, options) in KINDS.iter().enumerate() {
        let arguments: Vec<&str> = options.split_whitespace().collect();
        let image = with_stale_blocks(&Image::make(12, &arguments).path);
        let device = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(image))).unwrap());
        let volume = open(device.clone(), true);
        let (cache, inode) = (Cache::new(), new_file(&volume, "a"));
        let file = cache.file(&inode, Arc::clone(&inode));
        let mut history = FileHistory::new(0, false);
        volume.sync().unwrap();
        let begun = device.point();
        let mut random = Random(70 + index as u64);
        for _ in 0..120 {
            match random.below(8) {
                0..=3 => file.write_somewhere(&mut history, &mut random, SIZE_MAX, 14).unwrap(),
                4..=5 => {
                    let size = random.below(history.now().len() as u64 + 1) as usize;
                    file.set_size(size);
                    history.set_size(size);
                }
                6 => volume.sync().unwrap(),
                _ => {
                    file.sync(false);
                    history.is_durable(device.point(), history.version());
                }
            }
        }
        let recording = device.recording();
        let end = recording.crash_points().end;
        for _ in 0..100 {
            let point = begun + random.below((end - begun) as u64) as usize;
            let kept_of_8 = random.below(9);
            // The two sectors of the superblock are written together.
            let torn = recording.image(point, |write, sector| {
                matches!(write.offset.0 / 512 + sector, 2 | 3) || random.below(8) < kept_of_8
            });
            let case = format!("{options}, cut at {point}");
            let volume = common::open(torn).unwrap_or_else(|error| panic!("{case}: {error}"));
            let root = volume.inode(ROOT_INODE).unwrap();
            let inode = volume.inode(root.lookup(b"a").unwrap()).unwrap();
            let found = common::contents(&volume, &inode);
            assert!(!found.contains(&STALE), "{case}");
            history.check(point, &found).unwrap_or_else(|what| panic!("{case}: {what}"));
        }
    }
}

/// Hooks that hold all discards until the test releases them.
#[derive(Debug, Default)]
struct Held {
    begun: AtomicUsize,
    is_released: AtomicBool,
}

impl DeviceHooks for Held {
    fn discard(&self, device: &SharedDevice, offset: DeviceOffset, length: u64) -> Result<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        wait_until("the release", || self.is_released.load(Ordering::SeqCst));
        device.discard(offset, length)
    }
}

#[test]
fn no_discard_of_a_trim_continues_after_the_volume_is_closed() {
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let inner = Arc::new(MemoryDevice::new(image.bytes()));
    let device = Arc::new(HookedDevice::new(inner, Held::default()));
    let volume = open(device.clone(), false);
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| volume.trim(0..u64::MAX, 0));
        wait_until("a discard", || device.begun.load(Ordering::SeqCst) > 0);
        let close = scope.spawn(|| volume.close());
        std::thread::sleep(Duration::from_millis(200));
        let is_closed = close.is_finished();
        device.is_released.store(true, Ordering::SeqCst);
        close.join().unwrap().unwrap();
        let begun = device.begun.load(Ordering::SeqCst);
        assert!(!is_closed, "closed during a discard");
        // The volume has a second group.
        assert!(trim.join().unwrap().is_err(), "all groups were trimmed");
        assert_eq!(device.begun.load(Ordering::SeqCst), begun, "discards after the close");
    });
}
