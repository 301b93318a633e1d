//! The superblock.
#![no_main]

use ext4::{SUPERBLOCK_BYTES, Superblock};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u64, &[u8])| {
    // Changes a valid structure, so that the fuzzer need not find the magic number.
    let valid = &support::image(support::INLINE)[1024..1024 + SUPERBLOCK_BYTES];
    let mut bytes: [u8; SUPERBLOCK_BYTES] = valid.try_into().expect("its size");
    for pair in data.1.chunks_exact(3) {
        bytes[usize::from(u16::from_le_bytes([pair[0], pair[1]])) % SUPERBLOCK_BYTES] = pair[2];
    }
    let _ = Superblock::parse(&bytes, data.0);
});
