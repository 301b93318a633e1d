//! f2fs volumes on which one writer after another is cut off: a recovery finds what the last one
//! has synced, and nothing of those before that they could not recover themselves. Blocks to which
//! a writer has not written are not shown.

use std::sync::Arc;

use crate::common::{bytes, file, make, open_on};
use device::MemoryDevice;
use iomap::DirectOptions;
use tempfile::TempDir;
use testkit::f2fs::{Kind, check_by_both, cut_off_extension};
use vfs::{Fallocate, File, Privileges, Volume, WriteAt, WriteSync};

const BLOCK: usize = 4096;
/// Words of a node's footer, from the end of the block, and the mark of synced nodes in the flags.
const INODE_AT: usize = BLOCK - 20;
const FLAGS_AT: usize = BLOCK - 16;
const SYNCED: u32 = 2;
/// A block of a file whose address is in a node of its own, and the number of those that are
/// written.
const FAR: u64 = 950;
const COUNT: usize = 20;

fn open(image: Vec<u8>) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open_on(Arc::clone(&device) as _, DirectOptions::default());
    (device, volume)
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
}

#[test]
fn nodes_of_an_earlier_writer_do_not_join_the_chain_of_a_later_one() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    Kind::named("plain").make(&image, 64);
    let (device, volume) = open(std::fs::read(&image).unwrap());
    let at = FAR * BLOCK as u64;
    for (name, value) in [("first", 1), ("second", 2)] {
        make(&volume, name).write_at(&vec![value; COUNT * BLOCK], at).unwrap();
    }
    volume.close().unwrap();
    let closed = device.snapshot();

    // A writer is cut off in its first sync: the last of its nodes has got to the device, and the
    // one before has not.
    let (device, volume) = open(closed.clone());
    let first = file(&volume, "first");
    let number = first.node().number().0 as u32;
    first.write_at(&[9; 5], 0).unwrap();
    volume.sync().unwrap();
    let before = device.snapshot();
    first.write_at(&vec![3; COUNT * BLOCK], at + (COUNT * BLOCK) as u64).unwrap();
    first.sync_all().unwrap();
    let mut cut = device.snapshot();
    let changed: Vec<usize> = (0..cut.len() / BLOCK)
        .map(|block| block * BLOCK)
        .filter(|&at| cut[at..at + BLOCK] != before[at..at + BLOCK])
        .filter(|&at| word(&cut[at..], INODE_AT) == number)
        .collect();
    let is_synced = |at: &usize| word(&cut[*at..], FLAGS_AT) & SYNCED != 0;
    let (last, others): (Vec<usize>, Vec<usize>) = changed.iter().partition(|at| is_synced(at));
    assert_eq!((last.len(), others.len()), (1, 1), "{changed:?}");
    cut[others[0]..others[0] + BLOCK].copy_from_slice(&before[others[0]..others[0] + BLOCK]);
    drop((first, volume));

    // The next one finds nothing of that. It is cut off, too.
    let (device, volume) = open(cut);
    let first = file(&volume, "first");
    let size = first.node().attributes().size;
    assert_eq!(size, at + (COUNT * BLOCK) as u64);
    let second = file(&volume, "second");
    second.write_at(&[7; 6], 0).unwrap();
    second.sync_all().unwrap();
    let cut = device.snapshot();
    drop((first, second, volume));

    let (_, volume) = open(cut);
    let first = file(&volume, "first");
    assert_eq!(first.node().attributes().size, size, "what the first writer has not synced");
    let mut found = vec![0; COUNT * BLOCK];
    assert_eq!(first.read_at(&mut found, at), Ok(found.len()));
    assert!(found.iter().all(|byte| *byte == 1));
    let mut found = [0; 6];
    assert_eq!(file(&volume, "second").read_at(&mut found, 0), Ok(6));
    assert_eq!(found, [7; 6]);
    volume.close().unwrap();
}

/// The blocks of a file that was being extended from one block.
const EXTENDED: u64 = 5;
const UNIT: u64 = BLOCK as u64;
const KEEP: Privileges = Privileges::Keep;
/// Bytes in the unit of `st_blocks`.
const SECTOR: u64 = 512;

/// A change that lets a file grow, the ranges of blocks that then have data, and the number of its
/// blocks.
type Growth = (&'static str, fn(&File), &'static [u64], u64);

const GROWTHS: [Growth; 6] = [
    ("set_size", |file| file.node().set_size(EXTENDED * UNIT, KEEP).unwrap(), &[0], 1),
    ("write", |file| file.write_all_at(&[0xAA; BLOCK], 4 * UNIT).unwrap(), &[0, 4], 2),
    (
        "direct write",
        |file| {
            let at = WriteAt::Offset(base::FileOffset(4 * UNIT));
            file.write_direct(at, &[0xAA; BLOCK], KEEP, WriteSync::None).unwrap();
        },
        &[0, 4],
        2,
    ),
    (
        "insert range",
        |file| {
            file.fallocate(Fallocate::InsertRange, bytes(0..UNIT), KEEP).unwrap();
            file.node().set_size(EXTENDED * UNIT, KEEP).unwrap();
        },
        &[1],
        1,
    ),
    (
        "fallocate",
        |file| {
            let mode = Fallocate::Allocate { keep_size: false };
            file.fallocate(mode, bytes(0..EXTENDED * UNIT), KEEP).unwrap();
        },
        &[0],
        EXTENDED,
    ),
    (
        "fallocate with its size kept",
        |file| {
            let mode = Fallocate::Allocate { keep_size: true };
            file.fallocate(mode, bytes(0..EXTENDED * UNIT), KEEP).unwrap();
            file.node().set_size(EXTENDED * UNIT, KEEP).unwrap();
        },
        &[0],
        EXTENDED,
    ),
];

/// Lets the file `cut` on an image grow, and checks its data then and after the volume was opened
/// anew.
fn check_growth(image: Vec<u8>, (name, grow, data, blocks): Growth, path: &std::path::Path) {
    let check = |file: &File| {
        let mut found = vec![7; (EXTENDED * UNIT) as usize];
        assert_eq!(file.read_at(&mut found, 0), Ok(found.len()), "{name}");
        for (at, block) in (0..).zip(found.chunks(BLOCK)) {
            let expected = if data.contains(&at) { 0xAA } else { 0 };
            assert!(
                block.iter().all(|byte| *byte == expected),
                "{name}: block {at}: {:?}",
                block[0]
            );
        }
    };
    let (device, volume) = open(image);
    let cut = file(&volume, "cut");
    assert_eq!(cut.node().attributes().size, UNIT, "{name}");
    grow(&cut);
    check(&cut);
    cut.sync_all().unwrap();
    assert_eq!(cut.node().attributes().blocks, blocks * UNIT / SECTOR, "{name}");
    drop(cut);
    // As in a power cut.
    drop(volume);
    let (device, volume) = open(device.snapshot());
    let cut = file(&volume, "cut");
    check(&cut);
    drop(cut);
    volume.close().unwrap();
    drop(volume);
    std::fs::write(path, device.snapshot()).unwrap();
    check_by_both(path);
}

#[test]
fn blocks_of_a_direct_write_that_was_cut_off_are_not_shown() {
    for kind in ["plain", "attributes"] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("image");
        Kind::named(kind).make(&path, 64);
        let (device, volume) = open(std::fs::read(&path).unwrap());
        make(&volume, "cut").write_all_at(&[0xAA; EXTENDED as usize * BLOCK], 0).unwrap();
        volume.close().unwrap();
        let mut image = device.snapshot();
        cut_off_extension(&mut image, b"cut", UNIT);
        std::fs::write(&path, &image).unwrap();
        check_by_both(&path);
        for growth in GROWTHS {
            check_growth(image.clone(), growth, &path);
        }
    }
}

#[test]
fn blocks_of_a_direct_write_that_was_cut_off_are_not_recovered_as_data() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("image");
    Kind::named("plain").make(&path, 64);
    let (device, volume) = open(std::fs::read(&path).unwrap());
    let cut = make(&volume, "cut");
    volume.sync().unwrap();
    // Another thread syncs the file during the write.
    cut.write_all_at(&[0xAA; EXTENDED as usize * BLOCK], 0).unwrap();
    cut.sync_all().unwrap();
    let mut image = device.snapshot();
    drop((cut, volume));
    cut_off_extension(&mut image, b"cut", UNIT);
    check_growth(image, GROWTHS[0], &path);
}

#[test]
fn preallocated_blocks_behind_the_end_stay_when_the_file_is_changed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("image");
    Kind::named("plain").make(&path, 64);
    let (device, volume) = open(std::fs::read(&path).unwrap());
    let kept = make(&volume, "kept");
    kept.write_all_at(&[1; BLOCK], 0).unwrap();
    let mode = Fallocate::Allocate { keep_size: true };
    kept.fallocate(mode, bytes(0..EXTENDED * UNIT), KEEP).unwrap();
    drop(kept);
    volume.close().unwrap();
    let (_, volume) = open(device.snapshot());
    let kept = file(&volume, "kept");
    kept.write_all_at(&[2; BLOCK], UNIT).unwrap();
    kept.sync_all().unwrap();
    assert_eq!(kept.node().attributes().blocks, EXTENDED * UNIT / SECTOR);
    drop(kept);
    volume.close().unwrap();
}
