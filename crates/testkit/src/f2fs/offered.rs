//! The space that an image offers to users. Not here: making images.

use super::layout::{BLOCK, Layout, SEGMENT, mend_checkpoint, word};

/// Offers all segments of the main area but `kept_back` to users. mkfs.f2fs keeps back most of a
/// small volume, so that one of its segments is always free.
pub fn offer_all_segments_but(image: &mut [u8], kept_back: u32) {
    let layout = Layout::of(image);
    let segments = layout.main.len() / BLOCK / SEGMENT;
    let user_blocks = (segments - kept_back as usize) as u64 * SEGMENT as u64;
    let pack = layout.checkpoint(image);
    let last = pack + (word(image, pack + 136) as usize - 1) * BLOCK;
    for head in [pack, last] {
        let head = &mut image[head..head + BLOCK];
        head[8..16].copy_from_slice(&user_blocks.to_le_bytes());
        // Segments that are reserved, and those that are not offered, with these.
        head[24..28].copy_from_slice(&kept_back.to_le_bytes());
        head[28..32].copy_from_slice(&kept_back.to_le_bytes());
        mend_checkpoint(head);
    }
}
