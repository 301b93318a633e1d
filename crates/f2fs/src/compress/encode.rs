//! The stored form of clusters whose data compresses.
//! Not here: decoding (`decode.rs`), and the choice of the clusters (`iomap`).

use base::checksum::crc32_le;
use base::{FileOffset, Result};
use zerocopy::IntoBytes;

use super::decode::Algorithm;
use super::{ClusterCodec, zstd};
use crate::ondisk::cluster::RawClusterHeader;
use crate::superblock::MAGIC;

impl Algorithm {
    /// Returns `data` in compressed form, if there is an encoder, and the form is not longer than
    /// `max` bytes. Data of files with LZO is stored as it is, which the format allows.
    fn compress(self, data: &[u8], max: usize) -> Option<Vec<u8>> {
        let compressed = match self {
            Self::Lz4 => lz4_flex::block::compress(data),
            Self::Zstd => zstd::compress(data)?,
            Self::Lzo | Self::LzoRle => return None,
        };
        (compressed.len() <= max).then_some(compressed)
    }
}

impl ClusterCodec {
    /// Returns the stored form of the cluster with `data`, which begins at byte `at` of the file:
    /// whole blocks, at least one less than the cluster has. `None` if the data does not become
    /// that small.
    pub fn encode(&self, at: FileOffset, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let block = self.block_size.len();
        let header_length = size_of::<RawClusterHeader>();
        let max = data.len().saturating_sub(block + header_length);
        let Some(payload) = self.algorithm.compress(data, max) else { return Ok(None) };
        let mut header = RawClusterHeader::default();
        // A cluster has 4 MiB at most.
        header.length.set(payload.len() as u32);
        if self.has_checksums {
            header.checksum.set(crc32_le(MAGIC, &payload));
        }
        let mut stored =
            Vec::with_capacity((header_length + payload.len()).next_multiple_of(block));
        stored.extend_from_slice(header.as_bytes());
        stored.extend_from_slice(&payload);
        stored.resize(stored.len().next_multiple_of(block), 0);
        if let Some(cipher) = &self.cipher {
            cipher.encrypt(self.first_stored(at)?, &mut stored)?;
        }
        Ok(Some(stored))
    }
}
