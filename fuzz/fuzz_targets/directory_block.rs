//! Directory entries at every block size.
#![no_main]

use base::{BlockSize, InodeNumber};
use ext4::dir::block::DirFormat;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u8, bool, bool, &[u8])| {
    let (shift, has_file_types, has_checksums, bytes) = data;
    let format = DirFormat {
        is_encrypted: false,
        inode: InodeNumber(2),
        block_size: BlockSize::from_shift(10 + u32::from(shift) % 7).expect("in range"),
        has_file_types,
        inode_max: InodeNumber(1000),
        checksum_seed: has_checksums.then_some(7),
    };
    let _ = format.verify_leaf(bytes, support::location());
    for slot in format.slots(bytes, support::location()).flatten() {
        let _ = slot.checked_name(support::location());
        let _ = format.file_type(&slot);
    }
});
