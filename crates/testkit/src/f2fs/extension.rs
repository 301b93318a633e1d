//! Files that Linux was extending by a direct write when it was cut off: it allocates blocks,
//! writes to them, and then sets the size.

use super::layout::{Layout, SIZE};

/// The offset of an inode's advice, and the bit of files whose blocks past the end have what they
/// held before.
const ADVICE: usize = 2;
const TRUNCATE: u8 = 0x80;

/// Lets a file end at byte `size`, and keeps the blocks behind that, as if they were allocated for
/// such a write. The volume has one file with this name.
pub fn cut_off_extension(image: &mut [u8], name: &[u8], size: u64) {
    Layout::of(image).change_inodes(image, name, |node| {
        node[ADVICE] |= TRUNCATE;
        node[SIZE..SIZE + 8].copy_from_slice(&size.to_le_bytes());
    });
}
