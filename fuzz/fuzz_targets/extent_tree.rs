//! An extent tree: the root in the inode, and a node in the block at 1 MiB.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static INODE: LazyLock<usize> = LazyLock::new(|| {
    support::inode_offset(support::INLINE, support::inode_at(support::INLINE, "/holes"))
});

fuzz_target!(|data: &[u8]| {
    let (root, node) = data.split_at(data.len().min(60));
    let mut image = support::patched(support::INLINE, *INODE + 40, root);
    let at = 1 << 20;
    let length = node.len().min(1024);
    image[at..at + length].copy_from_slice(&node[..length]);
    support::read_all_of(image, "/holes");
});
