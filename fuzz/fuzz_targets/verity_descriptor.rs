//! Descriptors of fs-verity, and Merkle trees of any bytes.
#![no_main]

use base::{BlockSize, FileOffset, InodeNumber};
use libfuzzer_sys::fuzz_target;
use verity::{Descriptor, Verifier};

/// The offset of the size of the file in a descriptor.
const SIZE: usize = 8;

fuzz_target!(|data: (&[u8], u64, [u8; 16])| {
    let (bytes, at, pattern) = data;
    let size = bytes.get(SIZE..SIZE + 8).and_then(|size| size.try_into().ok());
    let size = size.map_or(0, u64::from_le_bytes);
    let Ok(descriptor) = Descriptor::parse(bytes, size, support::location()) else { return };
    assert!(!descriptor.file_digest().is_empty());
    let block_size = BlockSize::from_bytes(4096).expect("in range");
    let Ok(verifier) = Verifier::new(descriptor, InodeNumber(12), block_size) else { return };
    let read_tree = |_: FileOffset, into: &mut [u8]| {
        into.iter_mut().zip(pattern.iter().cycle()).for_each(|(byte, new)| *byte = *new);
        Ok(())
    };
    for at in [0, at % size.max(1) / 4096 * 4096, size / 4096 * 4096] {
        let _ = verifier.verify(FileOffset(at), &[0; 8192], &read_tree);
    }
});
