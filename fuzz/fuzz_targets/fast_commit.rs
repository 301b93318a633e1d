//! A fast commit of any changes, whose head and checksum are right, and what its replay makes of
//! the volume.
#![no_main]

use std::sync::LazyLock;

use base::InodeNumber;
use base::checksum::crc32c;
use ext4::fast_commit::ondisk::{
    TAG_ADD_RANGE, TAG_CREATE, TAG_DEL_RANGE, TAG_HEAD, TAG_INODE, TAG_LINK, TAG_TAIL, TAG_UNLINK,
};
use libfuzzer_sys::fuzz_target;

/// Where the journal's superblock lies, and the first block of its area for fast commits.
static PLACES: LazyLock<(usize, usize)> = LazyLock::new(|| {
    let kind = support::FAST_COMMIT;
    let superblock = support::journal_offset(kind, 0);
    let blocks = &support::image(kind)[superblock + 4 * 4..][..4];
    let blocks = u32::from_be_bytes(blocks.try_into().expect("four"));
    // The block before the area is unused.
    (superblock, support::journal_offset(kind, u64::from(blocks - AREA_BLOCKS + 1)))
});

/// The transaction that the fast commit follows.
const SEQUENCE: u32 = 7;
/// Blocks of the area, and what the first holds beside the tail.
const AREA_BLOCKS: u32 = 256;
const TAGS_BYTES_MAX: usize = 1024 - 12;
/// The bytes of an inode that a fast commit has: with the extra fields.
const INODE_BYTES: usize = 160;
/// Inodes that changes are about: some that are there, and some beyond.
const INODES: u8 = 40;

/// Takes `length` bytes off the front of `data`, zeroes where it ends.
fn take(data: &mut &[u8], length: usize) -> Vec<u8> {
    let (front, behind) = data.split_at(length.min(data.len()));
    *data = behind;
    let mut taken = front.to_vec();
    taken.resize(length, 0);
    taken
}

fn inode(data: &mut &[u8]) -> [u8; 4] {
    u32::from(take(data, 1)[0] % INODES).to_le_bytes()
}

/// One change, its value as long as its kind wants.
fn change(data: &mut &[u8]) -> (u16, Vec<u8>) {
    let kinds = [TAG_ADD_RANGE, TAG_DEL_RANGE, TAG_CREATE, TAG_LINK, TAG_UNLINK, TAG_INODE];
    let kind = kinds[usize::from(take(data, 1)[0]) % kinds.len()];
    let mut value = inode(data).to_vec();
    match kind {
        TAG_ADD_RANGE => value.extend(take(data, 12)),
        TAG_DEL_RANGE => value.extend(take(data, 8)),
        TAG_INODE => {
            // What the inode has, with changes.
            let number = u32::from_le_bytes(value[..].try_into().expect("four")).max(1);
            let number = InodeNumber(number.into());
            let at = support::inode_offset(support::FAST_COMMIT, number);
            let valid = &support::image(support::FAST_COMMIT)[at..at + INODE_BYTES];
            let noise = usize::from(take(data, 1)[0]) % INODE_BYTES;
            let noise = take(data, noise);
            value.extend(
                valid
                    .iter()
                    .zip(noise.iter().chain(std::iter::repeat(&0)))
                    .map(|(valid, noise)| valid ^ noise),
            );
        }
        _ => {
            value.extend(inode(data));
            let length = take(data, 1)[0] % 24;
            value.extend(take(data, length.into()));
        }
    }
    (kind, value)
}

fn tag(area: &mut Vec<u8>, tag: u16, value: &[u8]) {
    area.extend(tag.to_le_bytes());
    area.extend((value.len() as u16).to_le_bytes());
    area.extend(value);
}

/// The area's first block.
fn area(mut data: &[u8]) -> Vec<u8> {
    let mut area = Vec::new();
    tag(&mut area, TAG_HEAD, &[[0; 4], SEQUENCE.to_le_bytes()].concat());
    while !data.is_empty() {
        let (kind, value) = change(&mut data);
        if area.len() + 4 + value.len() > TAGS_BYTES_MAX {
            break;
        }
        tag(&mut area, kind, &value);
    }
    area.extend(TAG_TAIL.to_le_bytes());
    area.extend(8_u16.to_le_bytes());
    area.extend(SEQUENCE.to_le_bytes());
    let checksum = crc32c(0, &area);
    area.extend(checksum.to_le_bytes());
    area
}

fuzz_target!(|data: &[u8]| {
    let valid = support::image(support::FAST_COMMIT);
    let mut image = valid.to_vec();
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let (superblock, first) = *PLACES;
    // A log that is in use but has nothing in it (s_sequence, s_start), and the area's feature and
    // length.
    for (word, value) in [(6, SEQUENCE), (7, 1), (10, 1 << 5), (21, AREA_BLOCKS)] {
        put(superblock + 4 * word, &u32::to_be_bytes(value));
    }
    put(first, &area(data));
    // needs_recovery, among the incompatible features.
    put(1024 + 96, &[valid[1024 + 96] | 4]);
    if let Ok(volume) = support::open(image) {
        testkit::walk::walk(&volume);
    }
});
