//! A valid f2fs image with random bytes written over some of its blocks: superblocks, checkpoints,
//! tables, summaries, nodes and data. The checksums of the checkpoints may be mended. Reads the
//! whole tree, and checks the volume.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;

/// The size of blocks.
const BLOCK: usize = 4096;

fuzz_target!(|data: (bool, bool, Vec<(u16, u16, Vec<u8>)>)| {
    let (no_recovery, mends, overlays) = data;
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
    if mends {
        changed.extend(support::mend_f2fs_checkpoints(bytes));
    }
    if let Ok(volume) = support::open_f2fs(Arc::clone(&image), no_recovery) {
        testkit::walk::walk(&volume);
        volume.check(&mut |_| std::ops::ControlFlow::Continue(()));
    }
    support::give_back(image, changed);
});
