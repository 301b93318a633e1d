//! A valid f2fs image with random bytes written over some of its blocks. Reads the whole tree.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;

/// The size of blocks.
const BLOCK: usize = 4096;

fuzz_target!(|data: (bool, Vec<(u16, u16, Vec<u8>)>)| {
    let (no_recovery, overlays) = data;
    let used = support::f2fs_blocks();
    let mut image = support::f2fs_image();
    let bytes = Arc::make_mut(&mut image);
    let mut changed = Vec::new();
    for (block, byte, new) in overlays {
        let block = used[usize::from(block) % used.len()] * BLOCK;
        let at = block + usize::from(byte) % BLOCK;
        let end = (block + BLOCK).min(at + new.len());
        bytes[at..end].copy_from_slice(&new[..end - at]);
        changed.push(block..block + BLOCK);
    }
    if let Ok(volume) = support::open_f2fs(Arc::clone(&image), no_recovery) {
        testkit::walk::walk(&volume);
    }
    support::give_back(image, changed);
});
