//! Extended attributes in an inode and in a block.
#![no_main]

use ext4::xattr::entries::Entries;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (bool, &[u8])| {
    let (has_value_inodes, bytes) = data;
    let found = [
        Entries::in_inode(bytes, has_value_inodes, support::location()),
        Entries::in_block(bytes, has_value_inodes, support::location()),
    ];
    for entries in found.into_iter().flatten() {
        for entry in entries.iter() {
            let _ = format!("{entry:?}");
        }
    }
});
