//! A dirty journal, and what its replay makes of the volume.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

/// Where the journal's first block lies.
static JOURNAL: LazyLock<usize> = LazyLock::new(|| support::journal_offset(support::INLINE, 0));

fuzz_target!(|data: &[u8]| {
    // The first 64 bytes are the superblock's after its header, the rest the log.
    let (superblock, log) = data.split_at(data.len().min(64));
    let mut image = support::patched(support::INLINE, *JOURNAL + 12, superblock);
    let length = log.len().min(64 << 10);
    let start = *JOURNAL + 1024;
    image[start..start + length].copy_from_slice(&log[..length]);
    // needs_recovery, at byte 96 of the superblock.
    image[1024 + 96] |= 4;
    if let Ok(volume) = support::open(image) {
        testkit::walk::walk(&volume);
    }
});
