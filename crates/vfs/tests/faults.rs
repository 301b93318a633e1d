//! Reports of device errors to users of a volume, and writes that are durable without an fsync.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{DeviceOffset, Error, FileOffset, IoOperation};
use device::{
    Bio, BioOperation, BlockDevice, CountedFault, FaultDevice, FaultPlan, Lasting, MemoryDevice,
    RecordDevice, SharedDevice,
};
use parking_lot::{Condvar, Mutex};
use testkit::{Mke2fs, PanicDevice, PanicOnce, check_by_e2fsck, wait_until};
use vfs::{
    AccessOptions, AccessTimes, Credentials, File, Follow, Node, OpenMode, Privileges, RwFlags,
    SyncRange, Volume, VolumeOptions, WriteAt, WriteSync,
};

const WRITE: OpenMode = OpenMode { write: true, append: false };
const APPEND: OpenMode = OpenMode { write: true, append: true };
const EIO: i32 = 5;
const EROFS: i32 = 30;

fn image() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.make(&path, None);
    std::fs::read(path).unwrap()
}

fn open(device: SharedDevice, writable: bool) -> Volume {
    let access = AccessOptions { times: AccessTimes::Always, ..AccessOptions::default() };
    let mut options = VolumeOptions { writable, access, ..VolumeOptions::default() };
    options.cache.bytes_max = 16 << 20;
    Volume::open_device(device, &options).unwrap()
}

fn create(volume: &Volume, path: &str) -> base::Result<Arc<Node>> {
    volume.create_file(path.as_bytes(), 0o644, &Credentials::ROOT)
}

fn write(file: &File, at: u64, data: &[u8]) -> base::Result<usize> {
    file.write_at(data, at)
}

fn number(result: base::Result<()>) -> i32 {
    result.map_or_else(|error| error.errno(), |()| 0)
}

/// Makes a file with two users durable, writes to it again, and calls `check`. Request `number` of `operation` fails.
/// Returns the number of requests of `operation` before the second write.
fn with_fault(
    operation: IoOperation,
    number: u64,
    check: impl FnOnce(&Volume, &Arc<Node>, [File; 2]),
) -> u64 {
    let fault = CountedFault { operation, number, lasting: Lasting::Once, errno: EIO };
    let plan = FaultPlan { counted: Some(fault), ..FaultPlan::default() };
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(image())), plan));
    let volume = open(device.clone(), true);
    let node = create(&volume, "/file").unwrap();
    let files = [(); 2].map(|()| node.open_for(WRITE).unwrap());
    volume.sync().unwrap();
    let before = device.requests(operation);
    write(&files[0], 0, &[7; 5000]).unwrap();
    check(&volume, &node, files);
    before
}

#[test]
fn each_open_file_reports_lost_data_once() {
    let before = with_fault(IoOperation::Write, u64::MAX, |_, _, _| ());
    with_fault(IoOperation::Write, before, |volume, node, [one, other]| {
        assert_eq!([number(one.sync_data()), number(one.sync_data())], [EIO, 0]);
        assert_eq!([number(other.sync_all()), number(other.sync_all())], [EIO, 0]);
        assert_eq!(number(node.open_for(WRITE).unwrap().sync_all()), 0);
        // A sync of the volume reports it, too, and the volume goes on.
        assert_eq!([number(volume.sync()), number(volume.sync())], [EIO, 0]);
        write(&one, 0, &[8; 5000]).unwrap();
        create(volume, "/more").unwrap();
        assert_eq!([number(one.sync_all()), number(volume.close())], [0, 0]);
    });
}

/// A device that holds writes of data. Data begins with 512 bytes 7 or 512 bytes 8.
#[derive(Debug)]
struct HoldDevice {
    inner: SharedDevice,
    held: Mutex<Vec<Bio>>,
    more: Condvar,
}

/// Returns the first byte of a write of data.
fn data_of(bio: &Bio) -> Option<u8> {
    let first = bio.segments().first()?.bytes().get(..512)?;
    let is_data = matches!(first[0], 7 | 8) && first.iter().all(|byte| *byte == first[0]);
    (is_data && bio.operation() == BioOperation::Write).then_some(first[0])
}

impl HoldDevice {
    fn new(inner: SharedDevice) -> Arc<Self> {
        Arc::new(Self { inner, held: Mutex::default(), more: Condvar::new() })
    }

    /// Waits until data that begins with `fill` is held.
    fn wait_for(&self, fill: u8) {
        let mut held = self.held.lock();
        while !held.iter().any(|bio| data_of(bio) == Some(fill)) {
            let waited = self.more.wait_for(&mut held, Duration::from_secs(60));
            assert!(!waited.timed_out(), "no data that begins with {fill} is written");
        }
    }

    /// Ends the held writes: with an error if the data begins with `fill`.
    fn end_failing(&self, fill: u8) {
        let held = std::mem::take(&mut *self.held.lock());
        let (failing, others) = held.into_iter().partition(|bio| data_of(bio) == Some(fill));
        let failing: Vec<Bio> = failing;
        failing.into_iter().for_each(|bio| bio.end(Err(EIO)));
        self.inner.submit(others);
    }
}

impl BlockDevice for HoldDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        let (held, others) = batch.into_iter().partition(|bio| data_of(bio).is_some());
        self.held.lock().extend::<Vec<Bio>>(held);
        self.more.notify_all();
        self.inner.submit(others);
    }

    fn flush(&self) -> base::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> base::Result<()> {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> base::Result<()> {
        self.inner.write_zeroes(offset, length)
    }
}

#[test]
fn all_syncs_of_the_volume_that_wait_for_lost_data_report_it() {
    let device = HoldDevice::new(Arc::new(MemoryDevice::new(image())));
    let volume = open(device.clone(), true);
    let open = |path| create(&volume, path).unwrap().open_for(WRITE).unwrap();
    let [lost, other] = ["/lost", "/other"].map(open);
    volume.sync().unwrap();
    write(&lost, 0, &[7; 5000]).unwrap();
    let reported = std::thread::scope(|scope| {
        let first = scope.spawn(|| number(volume.sync()));
        device.wait_for(7);
        write(&other, 0, &[8; 5000]).unwrap();
        // The second sync has begun when it writes back the other file.
        let second = scope.spawn(|| number(volume.sync()));
        device.wait_for(8);
        device.end_failing(7);
        [first, second].map(|sync| sync.join().unwrap())
    });
    assert_eq!(reported, [EIO, EIO]);
    assert_eq!(number(volume.sync()), 0, "the error was reported before this sync began");
    volume.close().unwrap();
}

#[test]
fn each_sync_of_the_volume_reports_the_loss_of_its_own_data() {
    let device = HoldDevice::new(Arc::new(MemoryDevice::new(image())));
    let volume = open(device.clone(), true);
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    volume.sync().unwrap();
    let sync_losing = |fill: u8, during: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| number(volume.sync()));
            device.wait_for(fill);
            during();
            device.end_failing(fill);
            sync.join().unwrap()
        })
    };
    write(&file, 0, &[7; 4096]).unwrap();
    let write_more = || assert_eq!(write(&file, 16 << 10, &[8; 4096]), Ok(4096));
    assert_eq!(sync_losing(7, &write_more), EIO);
    assert_eq!(sync_losing(8, &|| ()), EIO, "the first sync reported other data");
    write(&file, 0, &[9; 4096]).unwrap();
    assert_eq!(number(volume.sync()), 0, "its data is durable");
    volume.close().unwrap();
}

#[test]
fn after_lost_metadata_the_volume_is_read_only() {
    let before = with_fault(IoOperation::Flush, u64::MAX, |_, _, _| ());
    with_fault(IoOperation::Flush, before, |volume, node, [one, other]| {
        assert_eq!([number(one.sync_all()), number(one.sync_all())], [EIO, EIO]);
        assert_eq!(number(other.sync_data()), EIO);
        assert_eq!(number(create(volume, "/more").map(drop)), EROFS);
        assert_eq!(number(write(&one, 0, b"x").map(drop)), EROFS);
        assert_eq!(number(node.open_for(WRITE).map(drop)), EROFS);
        assert_eq!(number(node.set_size(0, Privileges::Keep)), EROFS);
        let mut bytes = [0; 5000];
        assert_eq!(one.read_at(&mut bytes, 0), Ok(5000));
        assert_eq!(bytes, [7; 5000]);
        assert_ne!(number(volume.close()), 0);
        let errors = volume.info().details.into_iter().find(|detail| detail.0 == "errors_found");
        assert_eq!(errors.unwrap().1.to_string(), "1");
    });
}

#[test]
fn no_access_time_is_recorded_on_a_volume_that_is_shut_down() {
    let check = |number_of_flush, lasts: bool| {
        with_fault(IoOperation::Flush, number_of_flush, |volume, node, [one, _]| {
            wait_until("a tick of the clock", || node.note_access());
            assert_eq!(number(one.sync_all()), if lasts { EIO } else { 0 });
            let accessed = node.attributes().accessed;
            // Several ticks of the clock.
            let noted = (0..20).any(|_| {
                std::thread::sleep(Duration::from_millis(2));
                node.note_access()
            });
            assert_eq!(noted, !lasts, "it could never be written");
            assert_eq!(node.attributes().accessed == accessed, lasts);
            drop(volume.close());
        })
    };
    let before = check(u64::MAX, false);
    check(before, true);
}

#[test]
fn data_behind_a_failed_truncation_does_not_come_back() {
    for features in ["^orphan_file", "orphan_file"] {
        for evicts in [false, true] {
            fail_a_truncation(features, evicts);
        }
    }
}

/// Lets a truncation fail, evicts the node if `evicts`, and extends the file again.
fn fail_a_truncation(features: &str, evicts: bool) {
    const CUT: u64 = 3000;
    const FAR: u64 = 500_000;
    let image = tempfile::NamedTempFile::new().unwrap();
    let kind = Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) };
    kind.with(&format!("-O {features}")).make(image.path(), None);
    let memory = Arc::new(MemoryDevice::new(std::fs::read(image.path()).unwrap()));
    let volume = open(memory.clone(), true);
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    // More extents than one leaf has.
    for number in 0..200 {
        write(&file, 2048 * number, &[7; 1024]).unwrap();
    }
    create(&volume, "/other").unwrap();
    drop(file);
    volume.close().unwrap();

    let device = Arc::new(FaultDevice::new(memory.clone(), FaultPlan::default()));
    let mut options = VolumeOptions { writable: true, nodes_max: 1, ..VolumeOptions::default() };
    options.cache.bytes_max = 16 << 20;
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    let look_up = |path: &str| volume.resolve(path.as_bytes(), Follow::No).unwrap();
    let mut node = look_up("/file");
    let mut file = node.open_for(WRITE).unwrap();
    // From here on, the first leaf is cached, and the others cannot be read.
    assert_eq!(file.read_at(&mut [0; CUT as usize], 0), Ok(CUT as usize));
    device.fail_reads_in(0..device.size());
    assert_eq!(number(node.set_size(CUT, Privileges::Keep)), EIO);
    assert_eq!(node.attributes().size, CUT);
    assert_eq!(number(write(&file, FAR, b"far").map(drop)), EIO);
    assert_eq!(number(node.set_size(FAR, Privileges::Keep)), EIO);
    device.heal();
    if evicts {
        file.sync_all().unwrap();
        let inode = Arc::downgrade(&node);
        drop((file, node));
        for _ in 0..3 {
            look_up("/other").open_for(WRITE).unwrap();
            create(&volume, "/more").unwrap();
            volume.remove(b"/more", &Credentials::ROOT).unwrap();
        }
        assert_eq!(inode.strong_count(), 0, "the node is still in memory");
        node = look_up("/file");
        file = node.open_for(WRITE).unwrap();
    }
    write(&file, FAR, b"far").unwrap();
    let mut bytes = vec![1; FAR as usize + 3];
    assert_eq!(file.read_at(&mut bytes, 0), Ok(bytes.len()));
    let mut expected = vec![0; FAR as usize];
    expected[..1024].fill(7);
    expected[2048..CUT as usize].fill(7);
    expected.extend(b"far");
    assert!(bytes == expected, "truncated data has come back ({features}, {evicts})");
    drop((file, node));
    volume.close().unwrap();
    std::fs::write(image.path(), memory.snapshot()).unwrap();
    check_by_e2fsck(image.path());
}

#[test]
fn a_panic_in_background_writeback_shuts_the_volume_down() {
    let memory = Arc::new(MemoryDevice::new(image()));
    let device = Arc::new(PanicDevice::new(memory, PanicOnce::new("bifolio-flush")));
    let volume = open(device.clone(), true);
    let node = create(&volume, "/file").unwrap();
    let file = node.open_for(WRITE).unwrap();
    volume.sync().unwrap();
    device.arm();
    // Above the background limit, so that the flusher writes back.
    let deadline = Instant::now() + Duration::from_secs(60);
    for at in (0..6).cycle() {
        assert!(Instant::now() < deadline, "no write reports the panic");
        let written = write(&file, at << 20, &vec![7; 1 << 20]);
        std::thread::sleep(Duration::from_millis(20));
        if let Err(error) = written {
            assert!(
                matches!(&error, Error::ShutDown(cause) if matches!(**cause, Error::Panicked(_)))
            );
            break;
        }
    }
    assert!(device.has_panicked());
    assert_eq!(number(create(&volume, "/more").map(drop)), EROFS);
    assert_eq!([number(file.sync_data()), number(volume.sync())], [EIO, EIO]);
    assert_ne!(number(volume.close()), 0);
}

/// Returns the contents of `/file` after some writes and a power cut that loses all volatile writes.
fn after_cut(writes: impl FnOnce(&Arc<Node>)) -> Vec<u8> {
    let device = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(image()))).unwrap());
    let volume = open(device.clone(), true);
    let node = create(&volume, "/file").unwrap();
    volume.sync().unwrap();
    writes(&node);
    let recording = device.recording();
    let image = recording.image(recording.crash_points().end - 1, |_, _| false);
    let volume = open(Arc::new(MemoryDevice::new(image)), false);
    let file = volume.resolve(b"/file", Follow::No).unwrap().open().unwrap();
    let mut bytes = vec![0xaa; 100_000];
    let length = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn synchronous_writes_are_durable_when_they_return() {
    for sync in [WriteSync::Data, WriteSync::All] {
        let found = after_cut(|node| {
            let file = node.open_for(WRITE).unwrap().synchronous(sync);
            write(&file, 0, &[1; 1500]).unwrap();
            // Past the end: the rest of the last block on the disk must be written first.
            write(&file, 5000, &[2; 100]).unwrap();
        });
        let expected = [vec![1; 1500], vec![0; 3500], vec![2; 100]].concat();
        assert!(found == expected, "{sync:?}: {} bytes", found.len());
        let found = after_cut(|node| {
            let file = node.open_for(APPEND).unwrap().synchronous(sync);
            write(&file, 0, &[3; 1500]).unwrap();
            write(&file, 0, &[3; 50]).unwrap();
        });
        assert!(found == [3; 1550], "{sync:?}: {} bytes", found.len());
        let found = after_cut(|node| {
            let file = node.open_for(WRITE).unwrap();
            let (at, keep) = (WriteAt::Offset(FileOffset(0)), Privileges::Keep);
            file.write_with(at, &[4; 3000], keep, RwFlags { sync, ..RwFlags::default() }).unwrap();
            write(&file, 0, &[5; 3000]).unwrap();
        });
        assert!(found == [4; 3000], "{sync:?}: {} bytes", found.len());
        let found = after_cut(|node| {
            let file = node.open_for(WRITE).unwrap().synchronous(sync);
            write(&file, 0, &[6; 3000]).unwrap();
            // Copies data, and a hole.
            for (from, at, length) in [(0, 8000, 3000), (4096, 12_000, 1024)] {
                let (from, at, keep) = (FileOffset(from), FileOffset(at), Privileges::Keep);
                assert_eq!(file.copy_to(from, &file, at, length, keep), Ok(length));
            }
        });
        let expected = [vec![6; 3000], vec![0; 5000], vec![6; 3000], vec![0; 2024]].concat();
        assert!(found == expected, "{sync:?}: {} bytes", found.len());
    }
}

#[test]
fn sync_range_writes_only_the_range_and_does_not_flush() {
    let memory = Arc::new(MemoryDevice::new(image()));
    let device = Arc::new(FaultDevice::new(memory, FaultPlan::default()));
    let volume = open(device.clone(), true);
    let node = create(&volume, "/file").unwrap();
    let file = node.open_for(WRITE).unwrap();
    for at in [0, 1 << 20] {
        write(&file, at, &[1; 4096]).unwrap();
    }
    let dirty = || volume.dirty_stats().bytes_dirty;
    let (writes, flushes) =
        (|| device.requests(IoOperation::Write), || device.requests(IoOperation::Flush));
    let (before, flushed) = (writes(), flushes());
    assert_eq!(dirty(), 8192);
    let wait = SyncRange { wait_before: true, write: false, wait_after: true };
    file.sync_range(0..u64::MAX, wait).unwrap();
    assert_eq!((dirty(), writes()), (8192, before));
    file.sync_range(0..1, SyncRange { write: true, ..wait }).unwrap();
    assert_eq!((dirty(), writes()), (4096, before + 1));
    file.sync_range(0..u64::MAX, SyncRange { write: true, ..wait }).unwrap();
    assert_eq!((dirty(), writes()), (0, before + 2));
    assert_eq!(flushes(), flushed);
    volume.close().unwrap();
}
