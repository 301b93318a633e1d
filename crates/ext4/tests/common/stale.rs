//! Volumes whose free blocks have something in them that no file may ever show.

use super::{Image, number_after};

/// What free blocks hold before anything is written; no file ever does.
pub const STALE: u8 = 0xEE;

/// The image, with something in each of its free blocks.
pub fn with_stale_blocks(image: &Image) -> Vec<u8> {
    let text = image.dumpe2fs(&[]);
    let size = number_after(&text, "Block size:").unwrap() as usize;
    let mut bytes = image.bytes();
    for line in text.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for range in line.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|number| number.parse::<usize>().unwrap());
            bytes[first * size..(last + 1) * size].fill(STALE);
        }
    }
    bytes
}
