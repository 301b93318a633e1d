//! Reports of device errors to users of a volume, and writes that are durable without an fsync. Of
//! f2fs, each volume is also judged after a power cut.

mod cleaning;
mod clusters;
mod durable;
mod during_sync;
mod hold;
mod kind;
mod opening;
mod operations;
mod panics;
mod requests;
mod shifted;
mod stage;
mod summaries;
mod truncation;

use std::sync::Arc;
use std::time::Duration;

use base::{FileOffset, IoOperation};
use device::{BlockDevice, FaultDevice, FaultPlan, MemoryDevice};
use testkit::{Mke2fs, wait_until};
use vfs::{Credentials, File, Node, OpenMode, Privileges, SyncRange, Volume, WriteAt, WriteSync};

use kind::{KINDS, Kind};
use stage::Stage;

const WRITE: OpenMode = OpenMode { write: true, append: false };
const APPEND: OpenMode = OpenMode { write: true, append: true };
const EIO: i32 = 5;
const EROFS: i32 = 30;
/// Writes data back, and waits for it, without making it durable.
const ALL: SyncRange = SyncRange { wait_before: true, write: true, wait_after: true };

fn create(volume: &Volume, path: &str) -> base::Result<Arc<Node>> {
    volume.create_file(path.as_bytes(), 0o644, &Credentials::ROOT)
}

fn write(file: &File, at: u64, data: &[u8]) -> base::Result<usize> {
    file.write_at(data, at)
}

fn number(result: base::Result<()>) -> i32 {
    result.map_or_else(|error| error.errno(), |()| 0)
}

/// Makes a file with two users durable, writes `length` bytes to it, and calls `check`. Request
/// `number` of `operation` fails. Returns the stage, and the number of requests of `operation`
/// before the second write.
fn with_fault(
    kind: &'static Kind,
    operation: IoOperation,
    number: u64,
    check: impl FnOnce(&Stage),
) -> (Stage, u64) {
    let stage = Stage::new(kind, Some((operation, number)));
    let before = stage.faults.requests(operation);
    let length = kind.length();
    assert_eq!(write(&stage.files[0], 0, &vec![7; length]), Ok(length));
    check(&stage);
    (stage, before)
}

/// Lets the first request of `operation` fail for which the second write is the reason, as
/// [`with_fault`].
fn with_first_fault(
    kind: &'static Kind,
    operation: IoOperation,
    check: impl FnOnce(&Stage),
) -> Stage {
    let (_, before) = with_fault(kind, operation, u64::MAX, |_| ());
    with_fault(kind, operation, before, check).0
}

#[test]
fn each_open_file_reports_lost_data_once() {
    for kind in &KINDS {
        let length = kind.length();
        let stage = with_first_fault(kind, IoOperation::Write, |stage| {
            let Stage { volume, node, files: [one, other], .. } = stage;
            assert_eq!([number(one.sync_data()), number(one.sync_data())], [EIO, 0], "{kind:?}");
            let reported = [number(other.sync_all()), number(other.sync_all())];
            assert_eq!(reported, [EIO, 0], "{kind:?}");
            assert_eq!(number(node.open_for(WRITE).unwrap().sync_all()), 0, "{kind:?}");
            // A sync of the volume reports it, too, and the volume goes on.
            assert_eq!([number(volume.sync()), number(volume.sync())], [EIO, 0], "{kind:?}");
            write(one, 0, &vec![8; length]).unwrap();
            create(volume, "/more").unwrap();
            assert_eq!(number(one.sync_all()), 0, "{kind:?}");
        });
        for keeps_volatile in [false, true] {
            let found = stage.contents_after_cut(keeps_volatile);
            assert!(found == vec![8; length], "{kind:?}: {} bytes", found.len());
        }
        assert_eq!(number(stage.volume.close()), 0, "{kind:?}");
    }
}

#[test]
fn a_direct_write_through_the_cache_reports_only_its_own_error() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let kind = Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) };
    kind.with("-O ^extent,^64bit").make(image.path(), None);
    let memory = Arc::new(MemoryDevice::new(std::fs::read(image.path()).unwrap()));
    let device = Arc::new(FaultDevice::new(memory, FaultPlan::default()));
    let volume = Kind::Ext4.open(device.clone());
    let node = create(&volume, "/file").unwrap();
    let file = node.open_for(WRITE).unwrap();
    volume.sync().unwrap();
    write(&file, 0, &[7; 1024]).unwrap();
    device.fail_writes_in(0..device.size());
    let start = SyncRange { wait_before: false, write: true, wait_after: false };
    file.sync_range(0..u64::MAX, start).unwrap();
    let is_over = || {
        let stats = volume.dirty_stats();
        stats.bytes_dirty == 0 && stats.bytes_writeback == 0
    };
    wait_until("the end of writeback", is_over);
    device.heal();
    // A hole of a block map, which gets its block through the cache.
    let at = WriteAt::Offset(FileOffset(8192));
    let written = file.write_direct(at, &[8; 1024], Privileges::Keep, WriteSync::None);
    assert_eq!(written, Ok(1024));
    let late = node.open_for(WRITE).unwrap();
    assert_eq!([number(late.sync_all()), number(late.sync_all())], [EIO, 0]);
    assert_eq!([number(file.sync_all()), number(file.sync_all())], [EIO, 0]);
    drop((late, file, node));
    assert_eq!(number(volume.close()), EIO, "a sync of the volume reports it, too");
}

#[test]
fn after_lost_metadata_the_volume_is_read_only() {
    for kind in &KINDS {
        let length = kind.length();
        let stage = with_first_fault(kind, IoOperation::Flush, |stage| {
            let Stage { volume, node, files: [one, other], .. } = stage;
            assert_eq!([number(one.sync_all()), number(one.sync_all())], [EIO, EIO], "{kind:?}");
            assert_eq!(number(other.sync_data()), EIO, "{kind:?}");
            assert_eq!(number(volume.sync()), EIO, "{kind:?}");
            assert_eq!(number(create(volume, "/more").map(drop)), EROFS, "{kind:?}");
            assert_eq!(number(write(one, 0, b"x").map(drop)), EROFS, "{kind:?}");
            assert_eq!(number(node.open_for(WRITE).map(drop)), EROFS, "{kind:?}");
            assert_eq!(number(node.set_size(0, Privileges::Keep)), EROFS, "{kind:?}");
            let mut bytes = vec![0; length];
            assert_eq!(one.read_at(&mut bytes, 0), Ok(length), "{kind:?}");
            assert!(bytes == vec![7; length], "{kind:?}");
            assert_ne!(number(volume.close()), 0, "{kind:?}");
        });
        let details = stage.volume.info().details;
        let errors = details.into_iter().find(|detail| detail.0 == "errors_found");
        let errors = errors.map(|errors| errors.1.to_string());
        let recorded = (*kind == Kind::Ext4).then_some("1");
        assert_eq!(errors.as_deref(), recorded, "{kind:?}");
        for keeps_volatile in [false, true] {
            let found = stage.contents_after_cut(keeps_volatile);
            let is_any = found.is_empty() || found == vec![7; length];
            assert!(is_any || *kind == Kind::Ext4, "{kind:?}: {} bytes", found.len());
        }
    }
}

#[test]
fn no_access_time_is_recorded_on_a_volume_that_is_shut_down() {
    let check = |kind: &'static Kind, number_of_flush, lasts: bool| {
        let check = |stage: &Stage| {
            let Stage { volume, node, files: [one, _], .. } = stage;
            wait_until("a tick of the clock", || node.note_access());
            assert_eq!(number(one.sync_all()), if lasts { EIO } else { 0 }, "{kind:?}");
            let accessed = node.attributes().accessed;
            // Several ticks of the clock.
            let noted = (0..20).any(|_| {
                std::thread::sleep(Duration::from_millis(2));
                node.note_access()
            });
            assert_eq!(noted, !lasts, "{kind:?}: it could never be written");
            assert_eq!(node.attributes().accessed == accessed, lasts, "{kind:?}");
            drop(volume.close());
        };
        with_fault(kind, IoOperation::Flush, number_of_flush, check).1
    };
    for kind in &KINDS {
        let before = check(kind, u64::MAX, false);
        check(kind, before, true);
    }
}

#[test]
fn sync_range_writes_only_the_range_and_does_not_flush() {
    KINDS.iter().for_each(sync_ranges);
}

fn sync_ranges(kind: &Kind) {
    let device = Arc::new(FaultDevice::new(kind.disk(), FaultPlan::default()));
    let volume = kind.open(device.clone());
    let node = create(&volume, "/file").unwrap();
    let file = node.open_for(WRITE).unwrap();
    // The bytes that one write has at most: a block, or a cluster.
    let unit = kind.unit();
    let dirtied = unit as u64;
    for at in [0, 1 << 20] {
        write(&file, at, &vec![1; unit]).unwrap();
    }
    let dirty = || volume.dirty_stats().bytes_dirty;
    let (writes, flushes) =
        (|| device.requests(IoOperation::Write), || device.requests(IoOperation::Flush));
    let (before, flushed) = (writes(), flushes());
    assert_eq!(dirty(), 2 * dirtied, "{kind:?}");
    let wait = SyncRange { wait_before: true, write: false, wait_after: true };
    file.sync_range(0..u64::MAX, wait).unwrap();
    assert_eq!((dirty(), writes()), (2 * dirtied, before), "{kind:?}");
    file.sync_range(0..1, SyncRange { write: true, ..wait }).unwrap();
    assert_eq!((dirty(), writes()), (dirtied, before + 1), "{kind:?}");
    file.sync_range(0..u64::MAX, SyncRange { write: true, ..wait }).unwrap();
    assert_eq!((dirty(), writes()), (0, before + 2), "{kind:?}");
    assert_eq!(flushes(), flushed, "{kind:?}");
    volume.close().unwrap();
}
