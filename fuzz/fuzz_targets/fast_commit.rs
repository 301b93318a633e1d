//! A fast commit of any tags, whose head and checksum are right, and what its replay makes of the
//! volume.
#![no_main]

use std::sync::LazyLock;

use base::checksum::crc32c;
use ext4::fast_commit::ondisk::{TAG_HEAD, TAG_PAD, TAG_TAIL};
use libfuzzer_sys::fuzz_target;

/// Where the journal's first block lies.
static JOURNAL: LazyLock<usize> = LazyLock::new(|| support::journal_offset(support::FAST_COMMIT));

/// The transaction that the fast commit follows.
const SEQUENCE: u32 = 7;
/// Blocks of the area, and what one holds beside the tags that come from the fuzzer.
const AREA_BLOCKS: usize = 256;
const TAGS_BYTES_MAX: usize = 1024 - 64;

fn tag(area: &mut Vec<u8>, tag: u16, value: &[u8]) {
    area.extend(tag.to_le_bytes());
    area.extend((value.len() as u16).to_le_bytes());
    area.extend(value);
}

/// The area's first block: each tag is a byte for its kind, one for its length, and its value.
fn area(mut data: &[u8]) -> Vec<u8> {
    let mut area = Vec::new();
    tag(&mut area, TAG_HEAD, &[[0; 4], SEQUENCE.to_le_bytes()].concat());
    while let [kind, length, rest @ ..] = data {
        let (value, behind) = rest.split_at(rest.len().min((*length).into()));
        if area.len() + value.len() + 4 > TAGS_BYTES_MAX {
            break;
        }
        tag(&mut area, 1 + u16::from(*kind) % TAG_PAD, value);
        data = behind;
    }
    area.extend(TAG_TAIL.to_le_bytes());
    area.extend(8_u16.to_le_bytes());
    area.extend(SEQUENCE.to_le_bytes());
    let checksum = crc32c(0, &area);
    area.extend(checksum.to_le_bytes());
    area
}

fuzz_target!(|data: &[u8]| {
    let mut image = support::image(support::FAST_COMMIT).to_vec();
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let field = |index: usize| *JOURNAL + 4 * index;
    // A log that is not empty but has nothing in it: s_sequence, s_start, s_feature_incompat.
    put(field(6), &SEQUENCE.to_be_bytes());
    put(field(7), &1_u32.to_be_bytes());
    put(field(10), &(1_u32 << 5).to_be_bytes());
    put(field(21), &(AREA_BLOCKS as u32).to_be_bytes());
    // needs_recovery, at byte 96 of the superblock.
    let blocks_at = field(4);
    put(1024 + 96, &[support::image(support::FAST_COMMIT)[1024 + 96] | 4]);
    let blocks = u32::from_be_bytes(
        support::image(support::FAST_COMMIT)[blocks_at..blocks_at + 4].try_into().expect("four"),
    );
    put(*JOURNAL + (blocks as usize - AREA_BLOCKS + 1) * 1024, &area(data));
    if let Ok(volume) = support::open(image) {
        testkit::walk::walk(&volume);
    }
});
