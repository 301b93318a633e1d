//! A dirty journal, and what its replay makes of the volume.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

/// Where the journal's first block lies.
static JOURNAL: LazyLock<usize> = LazyLock::new(|| {
    let volume = support::ext4_volume(support::INLINE);
    let journal = volume.special_inode(base::InodeNumber(8)).expect("a journal");
    let first = journal.piece_at(base::FileBlock(0), base::FileBlock(1)).expect("its map");
    match first {
        ext4::Piece::Run(run) => run.block.0 as usize * 1024,
        ext4::Piece::Hole { .. } => panic!("a journal without blocks"),
    }
});

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
