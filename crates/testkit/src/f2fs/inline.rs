//! Files whose data is in their inodes, as Linux has small ones. Not here: directories.

use super::layout::{ADDRESSES, Layout, extra_bytes, word};

/// The offset of an inode's inline flags.
const INLINE: usize = 3;
/// The bits of inodes with inline data, and with such that is not zero.
const DATA: u8 = 2 | 8;
/// The offset of a file's size.
const SIZE: usize = 16;
/// The offset of the length of a file's name. The name follows.
const NAME: usize = 88;
/// The size of the unused word before inline data.
const UNUSED_BYTES: usize = 4;

/// Stores `data` in the inode of an empty file with this name, of which the volume has one. The volume is closed.
pub fn store_inline(image: &mut [u8], name: &[u8], data: &[u8]) {
    let layout = Layout::of(image);
    let mut found = false;
    // Older versions of the inode may be among the nodes. They get the data, too.
    for at in layout.nodes(image) {
        let node = &mut image[at..at + layout.block];
        let has_name =
            word(node, NAME) as usize == name.len() && node[NAME + 4..].starts_with(name);
        if !layout.is_inode(node) || !has_name {
            continue;
        }
        found = true;
        node[INLINE] |= DATA;
        node[SIZE..SIZE + 8].copy_from_slice(&(data.len() as u64).to_le_bytes());
        let start = ADDRESSES + extra_bytes(node) + UNUSED_BYTES;
        node[start..start + data.len()].copy_from_slice(data);
        layout.mend_node(image, at);
    }
    assert!(found, "a file with this name");
}
