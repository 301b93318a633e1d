//! A whole inode with the flag for inline data, including its attributes.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static INODE: LazyLock<usize> = LazyLock::new(|| {
    support::inode_offset(support::INLINE, support::inode_at(support::INLINE, "/tiny"))
});

fuzz_target!(|data: &[u8]| {
    let mut image = support::patched(support::INLINE, *INODE, &data[..data.len().min(256)]);
    // The flag for inline data, at byte 32 of the inode (bit 28).
    image[*INODE + 35] |= 0x10;
    support::read_all_of(image, "/tiny");
});
