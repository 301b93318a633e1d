//! Labels of f2fs volumes, which are in both copies of the superblock. The judges are blkid and
//! fsck.f2fs; after each cut of power, with each half of a torn superblock, the volume has the old
//! label or the new one.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use base::{DeviceOffset, Error};
use device::{MemoryDevice, RecordDevice, RecordedWrite, Replay, SharedDevice};
use f2fs::{SUPERBLOCK_BYTES, Superblock};
use testkit::f2fs::{Kind, check_by_fsck};
use vfs::{Volume, VolumeOptions};

/// The first sectors of the second halves of superblocks' blocks, whose checksum is in the last
/// sector.
const SECOND_HALF: u64 = 4;
/// A byte of the first copy.
const IN_FIRST: usize = 1024 + 200;

fn image(kind: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    Kind::named(kind).make(&path, 64);
    std::fs::read(path).unwrap()
}

fn open(device: SharedDevice, writable: bool) -> Volume {
    let options = VolumeOptions { writable, ..VolumeOptions::default() };
    Volume::open_device(device, &options).unwrap()
}

/// Returns the label that blkid finds.
fn label_by_blkid(image: &Path) -> String {
    let mut blkid = Command::new("blkid");
    let found = blkid.args(["-p", "-o", "value", "-s", "LABEL"]).arg(image).output().unwrap();
    assert!(found.status.success(), "{found:?}");
    String::from_utf8(found.stdout).unwrap().trim_end_matches('\n').to_owned()
}

#[test]
fn a_label_is_found_by_other_programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    for kind in ["plain", "sb_checksum"] {
        std::fs::write(&path, image(kind)).unwrap();
        for label in ["data", "Größe 𝄞", "", &"x".repeat(512)] {
            let volume = VolumeOptions::new().writable(true).open(&path).unwrap();
            volume.set_label(label.as_bytes()).unwrap();
            assert_eq!(volume.label().unwrap(), label.as_bytes());
            assert_eq!(volume.info().label, label.as_bytes());
            volume.close().unwrap();
            drop(volume);
            check_by_fsck(&path);
            if label.len() < 100 {
                assert_eq!(label_by_blkid(&path), label, "{kind}");
            }
            let volume = VolumeOptions::new().open(&path).unwrap();
            assert_eq!(volume.label().unwrap(), label.as_bytes(), "{kind}");
        }
    }
}

#[test]
fn labels_that_have_no_room_are_refused() {
    let device = Arc::new(MemoryDevice::new(image("plain")));
    let volume = open(device.clone(), true);
    volume.set_label(b"kept").unwrap();
    // A clef takes two units.
    for label in [&[0xFF][..], b"a\0b", "x".repeat(513).as_bytes(), "𝄞".repeat(257).as_bytes()] {
        assert!(matches!(volume.set_label(label), Err(Error::InvalidArgument(_))));
        assert_eq!(volume.label().unwrap(), b"kept");
    }
    volume.close().unwrap();
    let read = open(device, false);
    assert!(matches!(read.set_label(b"new"), Err(Error::ReadOnly)));
}

/// Returns whether the first copy of the superblock is valid.
fn is_first_whole(device: &SharedDevice) -> bool {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(DeviceOffset(1024), &mut bytes).unwrap();
    Superblock::parse(&bytes, device.size()).is_ok()
}

/// Changes the label, and opens the volume after each cut.
fn check_cuts(kind: &str, is_first_damaged: bool) {
    let mut bytes = image(kind);
    if is_first_damaged {
        bytes[IN_FIRST] ^= 1;
    }
    let context = format!("{kind}, first copy damaged: {is_first_damaged}");
    let device = Arc::new(MemoryDevice::new(bytes));
    let recorder = Arc::new(RecordDevice::new(device).unwrap());
    let volume = open(recorder.clone(), true);
    let begun = recorder.point();
    volume.set_label(b"new").unwrap();
    let ended = recorder.point();
    let recording = recorder.recording();
    let mut replay = Replay::new(&recording);
    let (mut torn, mut old, mut new) = (0, 0, 0);
    for point in begun..=ended {
        for halves in 0..4 {
            let keep = |_: &RecordedWrite, sector: u64| {
                let half = u64::from(sector >= SECOND_HALF);
                halves >> half & 1 != 0
            };
            let device = replay.device(point, keep).unwrap().device();
            torn += u32::from(!is_first_whole(&device));
            let found = open(device, false).label().unwrap();
            let is_new = found == b"new";
            assert!(is_new || found.is_empty(), "{context}, cut at {point}: {found:?}");
            assert!(is_new || point < ended, "{context}: the label is lost");
            old += u32::from(!is_new);
            new += u32::from(is_new);
        }
    }
    assert!(old > 0 && new > 0, "{context}: {old} times old, {new} times new");
    if kind == "sb_checksum" {
        assert!(torn > 0, "{context}: no torn first copy");
    }
}

#[test]
fn a_cut_leaves_the_old_label_or_the_new_one() {
    check_cuts("sb_checksum", false);
    check_cuts("sb_checksum", true);
    check_cuts("plain", false);
}

#[test]
fn the_bytes_before_the_superblocks_stay() {
    let mut bytes = image("sb_checksum");
    bytes[..1024].fill(0xB0);
    bytes[4096..4096 + 1024].fill(0xB1);
    let device: SharedDevice = Arc::new(MemoryDevice::new(bytes));
    let volume = open(device.clone(), true);
    volume.set_label(b"new").unwrap();
    volume.close().unwrap();
    for (start, value) in [(0, 0xB0), (4096, 0xB1)] {
        let mut found = [0; 1024];
        device.read_at(DeviceOffset(start), &mut found).unwrap();
        assert_eq!(found, [value; 1024]);
    }
}
