//! The data of a compressed cluster of f2fs, without its checksum.
#![no_main]

use base::{BlockSize, FileOffset, InodeNumber};
use f2fs::compress::{Algorithm, ClusterDecoder};
use iomap::Decode;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u8, u8, &[u8])| {
    let (algorithm, blocks, stored) = data;
    let Ok(algorithm) = Algorithm::from_number(algorithm % 4, support::location()) else { return };
    let Some(block_size) = BlockSize::from_bytes(4096) else { return };
    let decoder = ClusterDecoder::new(InodeNumber(7), block_size, algorithm, 0);
    let mut cluster = vec![0; (usize::from(blocks) + 1) * 4096];
    let _ = decoder.decode(FileOffset(0), &mut stored.to_vec(), &mut cluster);
});
