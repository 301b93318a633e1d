//! Files whose data is in their inodes, as Linux has small ones. Not here: directories.

use super::layout::{ADDRESSES, Layout, SIZE, extra_bytes};

/// The offset of an inode's inline flags.
const INLINE: usize = 3;
/// The bits of inodes with inline data, and with such that is not zero.
const DATA: u8 = 2 | 8;
/// The size of the unused word before inline data.
const UNUSED_BYTES: usize = 4;

/// Stores `data` in the inode of an empty file with this name, of which the volume has one. The volume is closed.
pub fn store_inline(image: &mut [u8], name: &[u8], data: &[u8]) {
    Layout::of(image).change_inodes(image, name, |node| {
        node[INLINE] |= DATA;
        node[SIZE..SIZE + 8].copy_from_slice(&(data.len() as u64).to_le_bytes());
        let start = ADDRESSES + extra_bytes(node) + UNUSED_BYTES;
        node[start..start + data.len()].copy_from_slice(data);
    });
}
