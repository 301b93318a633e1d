//! Files of f2fs whose data the format changes in whole clusters, or not at all: what fails changes
//! nothing, and what lies past the end of a file is never shown.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{CACHE_BYTES, bytes, device, file, make, open, open_on, store};
use base::{Error, FileOffset, Result};
use device::{FaultDevice, FaultPlan};
use iomap::{DirectOptions, FiemapExtent};
use testkit::f2fs::{self, Kind};
use vfs::{Credentials, Fallocate, File, MapAccess, Privileges, Volume, WriteAt, WriteSync};

/// FS_COMPR_FL.
const COMPRESSED: u32 = 4;
/// The bit of an inode's advice for fs-verity.
const VERITY: u8 = 0x40;
const BLOCK: usize = 4096;
/// The parts of a node's footer, from the end of the block.
const NID_AT: usize = BLOCK - 24;
const INODE_AT: usize = BLOCK - 20;
/// The parts of an inode.
const ADVICE_AT: usize = 2;
const SIZE_AT: usize = 16;

/// A change that is refused.
type Change = fn(&File) -> Result<()>;
/// A change that makes a file grow, and what is expected of it.
type Growth = fn(&File, &mut Vec<u8>);

fn image(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    Kind::named("lz4").make(&image, 64);
    image
}

fn close(volume: Volume) {
    volume.close().unwrap();
}

/// Creates a compressed file whose clusters have 2^`log` blocks.
fn compressed(volume: &Volume, name: &str, log: u8) -> File {
    let file = make(volume, name);
    file.node().set_flags(COMPRESSED, &Credentials::ROOT).unwrap();
    file.node().set_compression(1, log).unwrap();
    file
}

/// Returns data that compresses.
fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| 1 + (at / 100 % 200) as u8).collect()
}

fn check(file: &File, expected: &[u8], place: &str) {
    let mut found = vec![0; expected.len() + 10];
    let length = file.read_at(&mut found, 0).unwrap();
    found.truncate(length);
    let other = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!((length, other), (expected.len(), None), "{place}");
}

/// Changes an inode of a closed volume by `edit`, in all of its blocks.
fn edit_inode(image: &Path, number: u64, edit: impl Fn(&mut [u8])) {
    let mut volume = std::fs::read(image).unwrap();
    let word = |block: &[u8], at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    let mut found = 0;
    for block in volume.chunks_exact_mut(BLOCK) {
        if [NID_AT, INODE_AT].iter().all(|at| u64::from(word(block, *at)) == number) {
            edit(block);
            found += 1;
        }
    }
    assert!(found > 0, "inode {number} is not in the image");
    std::fs::write(image, volume).unwrap();
}

fn set_size(file: &File, size: usize) -> Result<()> {
    file.node().set_size(size as u64, Privileges::Keep)
}

fn write_direct(file: &File, at: u64) -> Result<()> {
    let at = WriteAt::Offset(FileOffset(at));
    file.write_direct(at, &[7; BLOCK], Privileges::Keep, WriteSync::None).map(drop)
}

fn fallocate(file: &File, mode: Fallocate) -> Result<()> {
    file.fallocate(mode, bytes(100..9000), Privileges::Keep)
}

fn fallocate_to(file: &File, end: u64) -> Result<()> {
    let mode = Fallocate::Allocate { keep_size: false };
    file.fallocate(mode, bytes(end - 1..end), Privileges::Keep)
}

#[test]
fn a_file_whose_saved_blocks_were_released_stays_as_it_is() {
    const SIZE: usize = 8 * BLOCK - 1000;
    let changes: [Change; 8] = [
        |file| set_size(file, 5000),
        |file| set_size(file, 0),
        |file| set_size(file, 9 * BLOCK),
        |file| file.write_at(b"new", 5).map(drop),
        |file| file.write_at(b"new", SIZE as u64 + 500).map(drop),
        |file| file.write_at(b"new", SIZE as u64 + 5000).map(drop),
        |file| write_direct(file, 0),
        |file| fallocate(file, Fallocate::Allocate { keep_size: false }),
    ];
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    let released = compressed(&volume, "file", 2);
    let data = text(SIZE);
    released.write_at(&data, 0).unwrap();
    released.sync_all().unwrap();
    assert!(released.node().release_saved_blocks().unwrap() > 0);
    drop(released);
    close(volume);
    for (number, change) in changes.into_iter().enumerate() {
        let place = format!("change {number}");
        let volume = open(&image);
        let released = file(&volume, "file");
        let blocks = released.node().attributes().blocks;
        let refused = change(&released);
        assert!(matches!(refused, Err(Error::NotPermitted(_))), "{place}: {refused:?}");
        check(&released, &data, &place);
        released.sync_all().unwrap();
        assert_eq!(released.node().attributes().blocks, blocks, "{place}");
        drop(released);
        close(volume);
        f2fs::check_by_both(&image);
        let volume = open(&image);
        check(&file(&volume, "file"), &data, &format!("{place}, later"));
        close(volume);
    }
}

#[test]
fn the_last_block_of_a_file_can_be_written_and_none_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    // A node has 1,018 addresses, of which whole clusters of 4 blocks use 1,016.
    for (file, in_node) in [(make(&volume, "plain"), 1018), (compressed(&volume, "file", 2), 1016)]
    {
        let end = in_node * (2 + 2 * 1018 + 1018 * 1018) * BLOCK as u64;
        assert_eq!(file.write_at(&[5; BLOCK], end - 10), Ok(10));
        assert_eq!(file.write_at(&[5], end), Err(Error::FileTooLarge));
        assert_eq!(fallocate_to(&file, end + 1), Err(Error::FileTooLarge));
        file.sync_all().unwrap();
        let mut found = [0; 20];
        assert_eq!(file.read_at(&mut found, end - 20), Ok(20));
        assert_eq!(found, [[0; 10], [5; 10]].concat()[..]);
    }
    close(volume);
    f2fs::check_by_both(&image);
}

#[test]
fn a_file_with_fs_verity_stays_as_it_is() {
    let changes: [Change; 6] = [
        |file| set_size(file, 5000),
        |file| set_size(file, 9 * BLOCK),
        |file| file.write_at(b"new", 5).map(drop),
        |file| write_direct(file, 0),
        |file| fallocate(file, Fallocate::Allocate { keep_size: false }),
        |file| fallocate(file, Fallocate::PunchHole),
    ];
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    let verified = make(&volume, "file");
    verified.write_at(&text(4 * BLOCK), 0).unwrap();
    verified.sync_all().unwrap();
    let number = verified.node().number().0;
    drop(verified);
    close(volume);
    // Nothing reads the Merkle tree, which does not exist.
    edit_inode(&image, number, |inode| inode[ADVICE_AT] |= VERITY);
    let volume = open(&image);
    let verified = file(&volume, "file");
    for (number, change) in changes.into_iter().enumerate() {
        let refused = change(&verified);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "change {number}: {refused:?}");
    }
    drop(verified);
    close(volume);
}

/// Linux leaves such a cluster if the power fails between a truncation and the writeback of what is
/// left.
#[test]
fn a_cluster_that_the_file_ends_in_has_nothing_behind_the_end() {
    let growths: [(usize, Growth); 4] = [
        (14 * BLOCK + 5, |file, expected| {
            file.write_at(&[9; 100], 14 * BLOCK as u64 + 5).unwrap();
            expected.extend([9; 100]);
        }),
        (15 * BLOCK, |file, expected| {
            file.write_at(&[9; BLOCK], 15 * BLOCK as u64).unwrap();
            expected.extend([9; BLOCK]);
        }),
        (16 * BLOCK, |file, _| set_size(file, 16 * BLOCK).unwrap()),
        (30 * BLOCK, |file, expected| {
            file.write_at(&[9; 10], 30 * BLOCK as u64).unwrap();
            expected.extend([9; 10]);
        }),
    ];
    let data = text(16 * BLOCK);
    for (size, reads_first) in [(8 * BLOCK + 0x321, false), (10 * BLOCK, true), (10 * BLOCK, false)]
    {
        for (until, grow) in growths {
            let place = format!("{size} bytes, then {until}, read before: {reads_first}");
            let folder = tempfile::tempdir().unwrap();
            let image = image(folder.path());
            let volume = open(&image);
            let cut = compressed(&volume, "file", 3);
            cut.write_at(&data, 0).unwrap();
            cut.sync_all().unwrap();
            let number = cut.node().number().0;
            drop(cut);
            close(volume);
            let bytes = (size as u64).to_le_bytes();
            edit_inode(&image, number, |inode| inode[SIZE_AT..SIZE_AT + 8].copy_from_slice(&bytes));
            f2fs::check_by_both(&image);

            let volume = open(&image);
            let cut = file(&volume, "file");
            let mut expected = data[..size].to_vec();
            if reads_first {
                check(&cut, &expected, &place);
            }
            expected.resize(until, 0);
            grow(&cut, &mut expected);
            check(&cut, &expected, &place);
            cut.sync_all().unwrap();
            drop(cut);
            close(volume);
            f2fs::check_by_both(&image);
            let volume = open(&image);
            check(&file(&volume, "file"), &expected, &format!("{place}, later"));
            close(volume);
        }
    }
}

#[test]
fn a_whole_cluster_is_written_beside_one_that_cannot_be_read() {
    const CLUSTER: usize = 4 * BLOCK;
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    let two = compressed(&volume, "file", 2);
    let data = text(2 * CLUSTER);
    two.write_at(&data, 0).unwrap();
    drop(two);
    close(volume);
    let device = Arc::new(FaultDevice::new(device(&image), FaultPlan::default()));
    let volume = open_on(device.clone(), DirectOptions::default());
    let two = file(&volume, "file");
    let second = CLUSTER as u64;
    let fail = &mut |extent: FiemapExtent| {
        device.fail_reads_in(extent.physical.0..extent.physical.0 + BLOCK as u64);
        ControlFlow::Break(())
    };
    two.node().extents(bytes(second..second + 1), fail).unwrap();
    // One folio has both clusters, and not the data of the second.
    let mut found = vec![0; 2 * CLUSTER];
    assert!(two.read_at(&mut found, 0).is_err());
    assert_eq!(two.write_at(&[9; CLUSTER], 0), Ok(CLUSTER));
    assert!(two.write_at(b"part", second).is_err());
    device.heal();
    let expected = [&[9; CLUSTER], &data[CLUSTER..]].concat();
    check(&two, &expected, "after the device is whole again");
    two.sync_all().unwrap();
    drop(two);
    close(volume);
    drop(device);
    f2fs::check_by_both(&image);
    check(&file(&open(&image), "file"), &expected, "later");
}

/// The nodes of a compressed file have fewer addresses, and a recovery replays them before the
/// flags of the inode. Dirty folios of another file, far below the limits of dirty data, lie in all
/// of the memory that the folio of a cluster could have.
#[test]
fn a_cluster_finds_room_among_small_dirty_folios() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    let file = compressed(&volume, "compressed", 8);
    let mut expected = text(3 << 20);
    file.write_all_at(&expected, 0).unwrap();
    file.sync_all().unwrap();
    let other = make(&volume, "other");
    let scatter = || {
        for at in (0..CACHE_BYTES).step_by(BLOCK) {
            other.write_all_at(&[2; BLOCK], at).unwrap();
        }
        other.sync_all().unwrap();
        for at in (0..CACHE_BYTES).step_by(256 << 10) {
            other.write_all_at(&[3; BLOCK], at).unwrap();
        }
    };
    scatter();
    file.write_all_at(b"written", 5000).unwrap();
    expected[5000..5007].copy_from_slice(b"written");
    scatter();
    set_size(&file, (2 << 20) + 100).unwrap();
    expected.truncate((2 << 20) + 100);
    scatter();
    let map = file.map(bytes(0..2 << 20), MapAccess::ReadWrite).unwrap();
    map.write(9000, b"copied").unwrap();
    scatter();
    store(&map, (1 << 20) + 9000, b"stored");
    expected[9000..9006].copy_from_slice(b"copied");
    expected[(1 << 20) + 9000..][..6].copy_from_slice(b"stored");
    check(&file, &expected, "with small dirty folios");
    drop((map, file, other));
    close(volume);
    f2fs::check_by_both(&image);
}

#[test]
fn a_file_that_is_no_longer_compressed_is_recovered_with_all_of_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let volume = open(&image);
    let plain = compressed(&volume, "file", 8);
    volume.sync().unwrap();
    plain.node().set_flags(0, &Credentials::ROOT).unwrap();
    // More blocks than an inode has addresses.
    let data = text(2000 * BLOCK);
    assert_eq!(plain.write_at(&data, 0), Ok(data.len()));
    plain.sync_all().unwrap();
    // As a power cut would leave it.
    let cut = folder.path().join("cut");
    std::fs::copy(&image, &cut).unwrap();
    let recovered = open(&cut);
    check(&file(&recovered, "file"), &data, "recovered");
    close(recovered);
    f2fs::check_by_both(&cut);
    drop(plain);
    close(volume);
}
