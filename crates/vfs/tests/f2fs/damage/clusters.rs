//! Headers of compressed clusters: the check finds those with which reading fails, and no others.

use std::sync::Arc;

use base::Error;
use device::MemoryDevice;
use vfs::Credentials;

use super::{
    BLOCK, FIRST_ADDRESS, blocks_of, change, create, damage_inode, damaged, device_with, find,
    findings, number, open, set_word, word,
};

/// The features: extra attributes, compression.
const FEATURES: u32 = 0x2008;
/// The flag of an inode, and the bytes of its flags of compression.
const COMPRESSED: u32 = 4;
const COMPRESS_FLAGS: usize = 360 + 34;
/// The bytes of a cluster of 4 blocks, and of its header.
const CLUSTER: usize = 4 * BLOCK;
const HEADER: usize = 24;

/// Returns `count` bytes that do not compress.
fn noise(count: usize) -> impl Iterator<Item = u8> {
    let next = |last: &u64| {
        Some(last.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f))
    };
    std::iter::successors(Some(7), next).map(|number| (number >> 56) as u8).take(count)
}

/// Returns a volume with a file of three clusters, of which the second one has two blocks, and the
/// first block of each cluster.
fn with_clusters() -> (Arc<MemoryDevice>, [usize; 3]) {
    let whole = change(&device_with(FEATURES), |volume| {
        let file = create(volume, "file");
        file.node().set_flags(COMPRESSED, &Credentials::ROOT).unwrap();
        let mut data = vec![b'c'; 3 * CLUSTER];
        for (to, byte) in data[CLUSTER..].iter_mut().zip(noise(BLOCK + BLOCK / 2)) {
            *to = byte;
        }
        file.write_all_at(&data, 0).unwrap();
    });
    let inode = number(&whole, "file");
    let image = whole.snapshot();
    let last = *blocks_of(&image, inode, inode).last().unwrap();
    let slots: Vec<u32> =
        (0..12).map(|slot| word(&image[last * BLOCK..], FIRST_ADDRESS + slot * 4)).collect();
    let is_stored = |slot: usize| slots[slot] < 0xFFFF_FFFE && slots[slot] != 0;
    let stored: Vec<usize> = (0..12).filter(|slot| is_stored(*slot)).collect();
    assert_eq!(stored, [1, 5, 6, 9], "{slots:x?}");
    (whole, [1, 5, 9].map(|slot| slots[slot] as usize))
}

/// Returns whether each cluster of the file can be read.
fn readable(device: &Arc<MemoryDevice>) -> [bool; 3] {
    let volume = open(device).unwrap();
    let file = find(&volume, "file").open().unwrap();
    [0, 1, 2].map(|cluster| {
        let at = (cluster * CLUSTER) as u64;
        let read = file.read_exact_at(&mut [0; CLUSTER], at);
        assert!(matches!(read, Ok(()) | Err(Error::Corrupt(_))), "{read:?}");
        read.is_ok()
    })
}

/// Checks that the check finds the header of cluster `number`, which cannot be read, and only that.
#[track_caller]
fn finds(device: &Arc<MemoryDevice>, number: usize, block: usize, problem: &str) {
    assert_eq!(readable(device), [0, 1, 2].map(|other| other != number));
    let found = findings(device);
    let inode = super::number(device, "file");
    let file_block = 4 * number;
    let expected = format!(
        "corrupt compressed cluster at inode {inode}, file block {file_block}, block {block}: "
    );
    let [one] = &found[..] else { panic!("{found:?}") };
    assert!(one.starts_with(&expected) && one.contains(problem), "{one}");
}

#[test]
fn the_check_finds_lengths_of_clusters_that_cannot_be_read() {
    let (whole, blocks) = with_clusters();
    assert_eq!(findings(&whole), [""; 0]);
    assert_eq!(readable(&whole), [true; 3]);
    for (cluster, stored) in [(0, 1), (1, 2), (2, 1)] {
        let max = (stored * BLOCK - HEADER) as u32;
        for (length, problem) in [(0, "length"), (max + 1, ""), (u32::MAX, "")] {
            let block = blocks[cluster];
            let damaged = damaged(&whole, |image| set_word(image, block * BLOCK, length));
            finds(&damaged, cluster, block, problem);
        }
    }
    // Blocks of zeroes, as those that a device has lost.
    let lost = damaged(&whole, |image| image[blocks[1] * BLOCK..][..BLOCK].fill(0));
    finds(&lost, 1, blocks[1], "length");
}

#[test]
fn the_check_finds_wrong_checksums_of_clusters_of_one_block() {
    let (whole, blocks) = with_clusters();
    let with_checksums = damage_inode(&whole, "file", |inode| inode[COMPRESS_FLAGS] |= 1);
    // The clusters were written without checksums. That of two blocks is not read as a whole.
    assert_eq!(readable(&with_checksums), [false; 3]);
    let found = findings(&with_checksums);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|found| found.contains("checksum")), "{found:?}");
    let sealed = damaged(&with_checksums, |image| {
        for block in blocks {
            let at = block * BLOCK;
            let length = word(image, at) as usize;
            let payload = &image[at + HEADER..][..length];
            let checksum = base::checksum::crc32_le(super::MAGIC, payload);
            set_word(image, at + 4, checksum);
        }
    });
    assert_eq!(readable(&sealed), [true; 3]);
    assert_eq!(findings(&sealed), [""; 0]);
    let damaged = damaged(&sealed, |image| image[blocks[2] * BLOCK + HEADER + 3] ^= 1);
    finds(&damaged, 2, blocks[2], "checksum");
}

#[test]
fn the_check_reads_the_headers_of_released_files() {
    let (whole, blocks) = with_clusters();
    let released = change(&whole, |volume| {
        assert!(find(volume, "file").release_saved_blocks().unwrap() > 0);
    });
    assert_eq!(findings(&released), [""; 0]);
    let damaged = damaged(&released, |image| set_word(image, blocks[0] * BLOCK, u32::MAX));
    finds(&damaged, 0, blocks[0], "");
}
