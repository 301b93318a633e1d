//! A block map: the part in the inode, and an indirect block at 1 MiB.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static INODE: LazyLock<usize> = LazyLock::new(|| {
    support::inode_offset(support::EXT2, support::inode_at(support::EXT2, "/holes"))
});

fuzz_target!(|data: &[u8]| {
    let (map, pointers) = data.split_at(data.len().min(60));
    let mut image = support::patched(support::EXT2, *INODE + 40, map);
    let at = 1 << 20;
    let length = pointers.len().min(1024);
    image[at..at + length].copy_from_slice(&pointers[..length]);
    support::read_all_of(image, "/holes");
});
