//! Blocks of f2fs that are reserved for data in the cache, while earlier data is on its way to the
//! device: none is counted twice, and none is forgotten.

use crate::common;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::{bytes, file, make, open, open_on};
use base::Error;
use device::{Bio, BioOperation, DeviceHooks, FaultDevice, FaultPlan, HookedDevice, SharedDevice};
use iomap::DirectOptions;
use testkit::f2fs::Kind;
use vfs::{Credentials, File, Privileges, SyncRange, Volume};

/// FS_COMPR_FL.
const COMPRESSED: u32 = 4;
const BLOCK: usize = 4096;
const START: SyncRange = SyncRange { wait_before: false, write: true, wait_after: false };

fn image(folder: &Path) -> std::path::PathBuf {
    let image = folder.join("image");
    Kind::named("lz4").make(&image, 64);
    image
}

/// Checks that `volume` has as many free blocks after its data was written as before.
fn check(volume: &Volume, place: &str) {
    let before = volume.statfs().blocks_free;
    volume.sync().unwrap();
    assert_eq!(volume.statfs().blocks_free, before, "{place}");
}

fn write(file: &File, block: usize, value: u8) {
    assert_eq!(file.write_at(&[value; BLOCK], (block * BLOCK) as u64), Ok(BLOCK));
}

fn start_writeback(file: &File, block: usize) {
    let start = (block * BLOCK) as u64;
    file.sync_range(start..start + BLOCK as u64, START).unwrap();
}

#[test]
fn a_block_that_is_written_again_while_its_first_write_ends_is_reserved_once() {
    const REGION: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    for number in 0..40 {
        let again = make(&volume, &format!("file{number}"));
        for block in (0..10 * REGION).step_by(2) {
            write(&again, block, 1);
        }
        again.sync_all().unwrap();
        for region in 0..10 {
            let first = region * REGION;
            write(&again, first + REGION - 1, 1);
            start_writeback(&again, first + REGION - 1);
            // Each second block has an address, so the reservation looks at many pieces before the
            // last one.
            let data = vec![2; REGION * BLOCK];
            assert_eq!(again.write_at(&data, (first * BLOCK) as u64), Ok(data.len()));
        }
        again.sync_all().unwrap();
        again.node().set_size(0, Privileges::Keep).unwrap();
    }
    volume.sync().unwrap();
    let free = volume.statfs().blocks_free;
    volume.close().unwrap();
    drop(volume);
    assert_eq!(free, open(&image).statfs().blocks_free);
}

#[test]
fn a_file_whose_first_data_is_being_written_does_not_become_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    for _ in 0..1000 {
        let first = make(&volume, "file");
        write(&first, 0, 1);
        start_writeback(&first, 0);
        for _ in 0..20 {
            let refused = first.node().set_flags(COMPRESSED, &Credentials::ROOT);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
        }
        drop(first);
        volume.remove(b"/file", &Credentials::ROOT).unwrap();
    }
    volume.close().unwrap();
}

/// Holds writes of data that begin with the byte 7 for a while.
#[derive(Debug)]
struct Slow;

impl DeviceHooks for Slow {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let is_slow = |bio: &Bio| {
            let first = bio.segments().first().and_then(|segment| segment.bytes().get(..8));
            bio.operation() == BioOperation::Write && first == Some(&[7; 8])
        };
        let (slow, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_slow);
        device.submit(others);
        if !slow.is_empty() {
            let device = Arc::clone(device);
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                device.submit(slow);
            });
        }
    }
}

#[test]
fn a_failed_write_keeps_the_space_of_data_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    let old = make(&volume, "file");
    write(&old, 0, 1);
    write(&old, 3, 1);
    drop(old);
    volume.close().unwrap();
    drop(volume);

    let slow = Arc::new(HookedDevice::new(common::device(&image), Slow));
    let device = Arc::new(FaultDevice::new(slow, FaultPlan::default()));
    let volume = open_on(device.clone(), DirectOptions::default());
    let other = make(&volume, "other");
    for block in 0..10 {
        write(&other, block, 2);
    }
    let old = file(&volume, "file");
    write(&old, 9, 7);
    start_writeback(&old, 9);
    let third = (3 * BLOCK) as u64;
    let find = &mut |extent: iomap::FiemapExtent| {
        device.fail_reads_in(extent.physical.0..extent.physical.0 + BLOCK as u64);
        ControlFlow::Break(())
    };
    old.node().extents(bytes(third..third + 1), find).unwrap();
    // A part of block 3 has to be read before. Block 9 is on its way to the device.
    let failed = old.write_at(&vec![3; 7 * BLOCK - 5], third + 5);
    assert!(failed.is_err(), "{failed:?}");
    device.heal();
    old.sync_range(0..u64::MAX, SyncRange { wait_before: true, ..SyncRange::default() }).unwrap();
    check(&volume, "after a failed write");
    volume.close().unwrap();
}
