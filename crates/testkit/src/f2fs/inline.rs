//! Files whose data is in their inodes, as Linux has small ones. Not here: directories.

use super::layout::{ADDRESSES, Layout, SIZE, extra_bytes, set_word, word};

/// The offset of an inode's inline flags.
const INLINE: usize = 3;
/// The bits of inodes with inline data, and with such that is not zero.
const DATA: u8 = 2 | EXISTS;
const EXISTS: u8 = 8;
/// The offset of an inode's flags.
const FLAGS: usize = 80;
/// The flag of directories that pass on their project.
const INHERIT_PROJECT: u32 = 0x2000_0000;
/// The size of the unused word before inline data.
const UNUSED_BYTES: usize = 4;

/// Stores `data` in the inode of an empty file with this name, of which the volume has one. The
/// volume is closed.
pub fn store_inline(image: &mut [u8], name: &[u8], data: &[u8]) {
    Layout::of(image).change_inodes(image, name, |node| {
        node[INLINE] |= DATA;
        node[SIZE..SIZE + 8].copy_from_slice(&(data.len() as u64).to_le_bytes());
        let start = ADDRESSES + extra_bytes(node) + UNUSED_BYTES;
        node[start..start + data.len()].copy_from_slice(data);
    });
}

/// Damages the inode of the file with this name and inline data: it has not the bit of data that is
/// not zero, and the flag of directories that pass on their project.
pub fn damage_inline(image: &mut [u8], name: &[u8]) {
    Layout::of(image).change_inodes(image, name, |node| {
        node[INLINE] &= !EXISTS;
        set_word(node, FLAGS, word(node, FLAGS) | INHERIT_PROJECT);
    });
}
