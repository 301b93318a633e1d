//! Volumes whose free blocks contain a pattern that no file may ever show.

use std::path::Path;
use std::process::Command;

use super::kinds::number_after;
use crate::command::run;

/// The byte that fills free blocks at first, and that no file contains.
pub const STALE: u8 = 0xEE;

/// Returns the contents of an image, with [`STALE`] in all of its free blocks.
pub fn with_stale_blocks(image: &Path) -> Vec<u8> {
    let text = run(Command::new("dumpe2fs").arg(image));
    let text = String::from_utf8_lossy(&text);
    let size = number_after(&text, "Block size:").unwrap() as usize;
    let mut bytes = std::fs::read(image).unwrap();
    for line in text.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for range in line.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|number| number.parse::<usize>().unwrap());
            bytes[first * size..(last + 1) * size].fill(STALE);
        }
    }
    bytes
}
