//! Tests of superblocks that a power cut has torn. The volume opens for reading and for writing as
//! if the whole superblock had been written, or nothing of it. Differences that no tear explains
//! are damage.

use crate::common;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Image, contents, new_file};
use base::{DeviceOffset, Error, Unsupported};
use device::{MemoryDevice, RecordDevice, RecordedWrite, Replay, SharedDevice};
use ext4::{OpenOptions, ROOT_INODE, Superblock, Volume};
use fs::ErrorPolicy;
use iomap::{CacheOptions, PageCache};

const DATA: &[u8] = &[5; 100_000];
/// The position of the superblock, in bytes.
const START: u64 = 1024;
/// The sectors of the superblock.
const SECTORS: std::ops::Range<u64> = 2..4;

fn image(options: &str) -> Image {
    Image::filled(9, options, |folder| std::fs::write(folder.join("file"), DATA).unwrap())
}

fn open_with(
    device: SharedDevice,
    options: &OpenOptions,
    writable: bool,
) -> base::Result<Arc<Volume>> {
    let cache = PageCache::new(CacheOptions { bytes_max: 8 << 20, ..Default::default() })?;
    if writable {
        Volume::open_for_writing(device, &cache, options)
    } else {
        Volume::open(device, &cache, options)
    }
}

/// Checks that a volume has at least the first `names` files that the test creates.
fn check(volume: &Arc<Volume>, names: usize, context: &str) {
    assert_eq!(volume.warning(), None, "{context}");
    let root = volume.inode(ROOT_INODE).unwrap();
    for name in 0..names {
        root.lookup(format!("new{name}").as_bytes())
            .unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    let file = volume.inode(root.lookup(b"file").unwrap()).unwrap();
    assert!(contents(volume, &file) == DATA, "{context}");
}

fn write(image: &Image, device: &SharedDevice) {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(DeviceOffset(0), &mut bytes).unwrap();
    std::fs::write(&image.path, &bytes).unwrap();
}

/// Writes the contents of `device` to the image, and repairs it by e2fsck, which finds a copy of
/// the superblock.
fn repair_by_e2fsck(image: &Image, device: &SharedDevice) {
    write(image, device);
    let repaired = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    assert_eq!(repaired.status.code(), Some(1), "{}", String::from_utf8_lossy(&repaired.stdout));
    image.check_by_e2fsck();
}

/// Opens and changes a volume four times, and closes it twice. Then opens it in the state after
/// each possible tear of the superblock.
fn check_tears(options: &str, with_errors: bool) {
    let image = image(options);
    if with_errors {
        image.debugfs_write(
            "ssv state 3\nssv error_count 2\nssv first_error_time now\nssv last_error_time now\n",
        );
    }
    let has_copy = image.open().geometry().group_count > 1;
    let recorder = RecordDevice::new(Arc::new(MemoryDevice::new(image.bytes()))).unwrap();
    let recorder = Arc::new(recorder);
    let mut synced = Vec::new();
    for name in 0..4 {
        let options = OpenOptions { errors: Some(ErrorPolicy::Continue), ..OpenOptions::default() };
        let volume = open_with(recorder.clone(), &options, true).unwrap();
        new_file(&volume, &format!("new{name}"));
        volume.sync().unwrap();
        synced.push(recorder.point());
        volume.set_label(format!("label{name}").as_bytes()).unwrap();
        // Every other time, the volume is not closed, so that the next open replays the log.
        if name % 2 == 0 {
            volume.close().unwrap();
        }
    }
    let recording = recorder.recording();
    let mut replay = Replay::new(&recording);
    let mut torn = 0;
    for point in recording.crash_points().skip(1) {
        for (kept, others) in [(2, true), (3, true), (2, false), (3, false)] {
            let keep = |write: &RecordedWrite, sector: u64| match write.offset.0 / 512 + sector {
                at if SECTORS.contains(&at) => at == kept,
                _ => others,
            };
            let device = replay.device(point, keep).unwrap().device();
            if Superblock::read(&device).is_ok() {
                continue;
            }
            torn += 1;
            let context =
                format!("{options}: cut at {point}, sector {kept} kept, others: {others}");
            let names = synced.iter().filter(|at| **at <= point).count();
            let options = OpenOptions::default();
            let volume = testkit::must(open_with(Arc::clone(&device), &options, false), &context);
            check(&volume, names, &context);
            assert_eq!(volume.errors().count, u32::from(with_errors) * 2, "{context}");
            drop(volume);
            if has_copy {
                repair_by_e2fsck(&image, &device);
                check(&image.open(), names, &format!("{context}, after e2fsck"));
            }
            let volume = testkit::must(open_with(Arc::clone(&device), &options, true), &context);
            new_file(&volume, "after");
            volume.close().unwrap();
            drop(volume);
            assert!(Superblock::read(&device).is_ok());
            check(&open_with(Arc::clone(&device), &options, false).unwrap(), names, &context);
            write(&image, &device);
            if !with_errors {
                image.check_by_e2fsck();
            }
        }
    }
    // Tears by opening, recovery, checkpoints and closing.
    assert!(torn > 8, "{options}: {torn} torn superblocks");
}

#[test]
fn a_volume_opens_for_writing_after_any_tear() {
    check_tears("-t ext4 -b 1024 -J size=1", false);
    check_tears("-t ext4 -b 4096 -O orphan_file,metadata_csum_seed -J size=4", false);
}

#[test]
fn recorded_errors_survive_a_tear() {
    check_tears("-t ext4 -b 1024 -J size=1", true);
}

fn refused_for_writing(bytes: Vec<u8>) {
    match common::open_device_for_writing(Arc::new(MemoryDevice::new(bytes))) {
        Err(Error::Unsupported(Unsupported::DamagedSuperblock { .. })) => {}
        opened => panic!("{opened:?}"),
    }
}

#[test]
fn differences_that_no_tear_explains_are_damage() {
    let image = image("-t ext4 -b 1024 -J size=1");
    let device = Arc::new(MemoryDevice::new(image.bytes()));
    let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
    new_file(&volume, "new");
    volume.sync().unwrap();
    let open = device.snapshot();
    drop(volume);
    let (label, fourth) = (START as usize + 0x78, START as usize + 0x3F0);
    // The log is empty, so no tear explains any change.
    for at in [label, fourth] {
        let mut bytes = image.bytes();
        bytes[at] ^= 1;
        refused_for_writing(bytes);
    }
    // The log contains the superblock, but both sectors differ from the old and from the new one.
    let mut bytes = open;
    bytes[label] ^= 1;
    bytes[fourth] ^= 1;
    let read = common::open(bytes.clone()).unwrap();
    assert!(read.warning().is_some());
    refused_for_writing(bytes);
}

#[test]
fn the_log_of_another_volume_does_not_explain_a_tear() {
    let image = image("-t ext4 -b 1024 -J size=1");
    let device = Arc::new(MemoryDevice::new(image.bytes()));
    let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
    new_file(&volume, "new");
    volume.sync().unwrap();
    let mut bytes = device.snapshot();
    drop(volume);
    // The UUID, in the first sector, which also locates the log.
    bytes[START as usize + 0x68] ^= 1;
    refused_for_writing(bytes);
}
