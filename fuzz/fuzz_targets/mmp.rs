//! The block of multiple-mount protection.
#![no_main]

use std::sync::LazyLock;

use ext4::mmp::{parse, user};
use ext4::ondisk::mmp::RawMmp;
use libfuzzer_sys::fuzz_target;

const BYTES: usize = size_of::<RawMmp>();

/// A valid block.
static VALID: LazyLock<[u8; BYTES]> = LazyLock::new(|| {
    let block = support::ext4_volume(support::MMP).superblock().raw().mmp_block.get();
    let bytes = &support::image(support::MMP)[block as usize * 1024..][..BYTES];
    bytes.try_into().expect("its size")
});

fuzz_target!(|data: (Option<u32>, &[u8])| {
    // Changes a valid structure, so that the fuzzer need not find the magic number.
    let (seed, changes) = data;
    let mut bytes = *VALID;
    for change in changes.chunks_exact(3) {
        bytes[usize::from(u16::from_le_bytes([change[0], change[1]])) % BYTES] = change[2];
    }
    if let Ok(raw) = parse(&bytes, seed, support::location()) {
        user(&raw);
    }
});
