//! Encryption contexts, the ciphers of their inodes, and encrypted names of any bytes.
#![no_main]

use base::{BlockSize, FileOffset, InodeNumber};
use fscrypt::{Context, KeyId, Keys, NoKeyName, Owner};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: ([u8; 40], &[u8], u32, u64)| {
    let (mut bytes, name, inode, at) = data;
    let mut keys = Keys::default();
    let Ok(KeyId::Identifier(identifier)) = keys.add(&[7; 64]) else { unreachable!("a key") };
    keys.add_with_descriptor([5; 8], &[7; 64]).expect("a key");
    let length = match bytes[0] {
        1 => {
            bytes[4..12].fill(5);
            28
        }
        _ => {
            bytes[8..24].copy_from_slice(&identifier);
            40
        }
    };
    if let Some(name) = NoKeyName::decode(name) {
        assert!(!name.encode().is_empty());
    }
    let inode = InodeNumber(inode.into());
    let Ok(context) = Context::parse(&bytes[..length], inode) else { return };
    assert_eq!(context.to_bytes(), &bytes[..length]);
    let block_size = BlockSize::from_bytes(4096).expect("in range");
    let owner = Owner { inode, uuid: [1; 16], block_size };
    if let Ok(Some(names)) = keys.names(&context, &owner) {
        let _ = names.decrypt(name);
        let _ = names.decrypt_target(name);
        let _ = names.encrypt(name);
    }
    if let Ok(Some(contents)) = keys.contents(&context, &owner) {
        let _ = contents.decrypt(FileOffset(at / 4096 * 4096), &mut [3; 4096]);
    }
});
