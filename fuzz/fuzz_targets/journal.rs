//! A dirty journal. Reads the whole volume after its replay.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

/// The byte offset of the journal's first block.
static JOURNAL: LazyLock<usize> = LazyLock::new(|| support::journal_offset(support::INLINE, 0));

fuzz_target!(|data: &[u8]| {
    // The first 64 bytes are for the journal superblock, after its header. The rest is for the log.
    let (superblock, log) = data.split_at(data.len().min(64));
    let mut image = support::patched(support::INLINE, *JOURNAL + 12, superblock);
    let length = log.len().min(64 << 10);
    let start = *JOURNAL + 1024;
    image[start..start + length].copy_from_slice(&log[..length]);
    // The flag needs_recovery, at byte 96 of the superblock.
    image[1024 + 96] |= 4;
    if let Ok(volume) = support::open(image) {
        testkit::walk::walk(&volume);
    }
});
