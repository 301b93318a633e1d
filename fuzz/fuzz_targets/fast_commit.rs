//! A fast commit with a valid head and checksum, and with arbitrary changes. Reads the whole volume
//! after its replay.
#![no_main]

use std::sync::LazyLock;

use base::InodeNumber;
use base::checksum::crc32c;
use ext4::fast_commit::ondisk::{
    TAG_ADD_RANGE, TAG_CREATE, TAG_DEL_RANGE, TAG_HEAD, TAG_INODE, TAG_LINK, TAG_TAIL, TAG_UNLINK,
};
use libfuzzer_sys::fuzz_target;

/// The byte offsets of the journal superblock and of the area for fast commits.
static OFFSETS: LazyLock<(usize, usize)> = LazyLock::new(|| {
    let kind = support::FAST_COMMIT;
    let superblock = support::journal_offset(kind, 0);
    let blocks = &support::image(kind)[superblock + 4 * 4..][..4];
    let blocks = u32::from_be_bytes(blocks.try_into().expect("four"));
    // The block before the area is unused.
    (superblock, support::journal_offset(kind, u64::from(blocks - AREA_BLOCKS + 1)))
});

/// The transaction that the fast commit follows.
const SEQUENCE: u32 = 7;
/// The number of blocks in the area.
const AREA_BLOCKS: u32 = 256;
/// The maximum size of all tags in the first block, without the tail.
const TAGS_BYTES_MAX: usize = 1024 - 12;
/// The size of an inode in a fast commit, which includes the extra fields.
const INODE_BYTES: usize = 160;
/// The bound of inode numbers in changes. Some of these inodes are in use, others are not.
const INODES: u8 = 40;

/// Removes `length` bytes from the front of `data` and returns them. Pads with zeroes at the end of
/// `data`.
fn take(data: &mut &[u8], length: usize) -> Vec<u8> {
    let (front, behind) = data.split_at(length.min(data.len()));
    *data = behind;
    let mut taken = front.to_vec();
    taken.resize(length, 0);
    taken
}

/// Takes an inode number, little-endian.
fn take_inode(data: &mut &[u8]) -> [u8; 4] {
    u32::from(take(data, 1)[0] % INODES).to_le_bytes()
}

/// Takes one change: a tag, and a value of a valid length for it.
fn take_change(data: &mut &[u8]) -> (u16, Vec<u8>) {
    let kinds = [TAG_ADD_RANGE, TAG_DEL_RANGE, TAG_CREATE, TAG_LINK, TAG_UNLINK, TAG_INODE];
    let kind = kinds[usize::from(take(data, 1)[0]) % kinds.len()];
    let mut value = take_inode(data).to_vec();
    match kind {
        TAG_ADD_RANGE => value.extend(take(data, 12)),
        TAG_DEL_RANGE => value.extend(take(data, 8)),
        TAG_INODE => {
            // The inode's bytes in the image, with changes.
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
            value.extend(take_inode(data));
            let length = take(data, 1)[0] % 24;
            value.extend(take(data, length.into()));
        }
    }
    (kind, value)
}

/// Appends a tag and its value to the area.
fn push_tag(area: &mut Vec<u8>, tag: u16, value: &[u8]) {
    area.extend(tag.to_le_bytes());
    area.extend((value.len() as u16).to_le_bytes());
    area.extend(value);
}

/// Returns the first block of the area: a head, changes from `data`, and a tail.
fn first_block(mut data: &[u8]) -> Vec<u8> {
    let mut area = Vec::new();
    push_tag(&mut area, TAG_HEAD, &[[0; 4], SEQUENCE.to_le_bytes()].concat());
    while !data.is_empty() {
        let (kind, value) = take_change(&mut data);
        if area.len() + 4 + value.len() > TAGS_BYTES_MAX {
            break;
        }
        push_tag(&mut area, kind, &value);
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
    let mut overwrite =
        |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let (superblock, first) = *OFFSETS;
    // An empty log that is in use (s_sequence, s_start), and the area's feature and length.
    for (word, value) in [(6, SEQUENCE), (7, 1), (10, 1 << 5), (21, AREA_BLOCKS)] {
        overwrite(superblock + 4 * word, &u32::to_be_bytes(value));
    }
    overwrite(first, &first_block(data));
    // The flag needs_recovery, among the incompatible features.
    overwrite(1024 + 96, &[valid[1024 + 96] | 4]);
    if let Ok(volume) = support::open(image) {
        testkit::walk::walk(&volume);
    }
});
