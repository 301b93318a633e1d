//! The data of a compressed cluster of f2fs, without its checksum, and the stored form of what it
//! decodes to.
#![no_main]

use base::{BlockSize, FileOffset, InodeNumber};
use f2fs::compress::{Algorithm, ClusterCodec};
use iomap::Decode;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (u8, u8, &[u8])| {
    let (algorithm, blocks, stored) = data;
    let Ok(algorithm) = Algorithm::from_number(algorithm % 4, support::location()) else { return };
    let Some(block_size) = BlockSize::from_bytes(4096) else { return };
    let codec = ClusterCodec::new(InodeNumber(7), block_size, algorithm, 0);
    let mut cluster = vec![0; (usize::from(blocks) + 1) * 4096];
    if codec.decode(FileOffset(0), &mut stored.to_vec(), &mut cluster).is_err() {
        return;
    }
    let Ok(Some(mut stored)) = codec.encode(FileOffset(0), &cluster) else { return };
    let mut again = vec![0; cluster.len()];
    assert!(codec.decode(FileOffset(0), &mut stored, &mut again).is_ok(), "{algorithm:?}");
    assert!(again == cluster, "{algorithm:?}: the cluster differs");
});
