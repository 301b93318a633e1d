//! The blocks of a directory's hash index.
#![no_main]

use base::{BlockSize, InodeNumber};
use ext4::dir::block::DirFormat;
use ext4::dir::index::IndexFormat;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (bool, u32, &[u8])| {
    let (is_large, hash, bytes) = data;
    let dir = DirFormat {
        is_encrypted: false,
        inode: InodeNumber(2),
        block_size: BlockSize::from_bytes(1024).expect("a block size"),
        has_file_types: true,
        inode_max: InodeNumber(1000),
        checksum_seed: None,
    };
    let format = IndexFormat { dir, is_large, hash_seed: [1, 2, 3, 4], is_hash_unsigned: true };
    let nodes = [
        format.parse_root(bytes, support::location()).map(|root| {
            let _ = root.hasher.hash(bytes);
            root.node
        }),
        format.parse_node(bytes, support::location()),
    ];
    for node in nodes.into_iter().flatten() {
        let slot = node.search(hash);
        assert!(slot < node.len() && node.block(slot).is_some());
        let _ = node.hash(slot);
    }
});
