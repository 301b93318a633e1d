//! The data of compressed clusters. Not here: the writing of clusters (`encode.rs`), the formats of
//! compressed data (`lzo.rs`, `zstd.rs`, and the crate `lz4_flex`), and ciphers (`fscrypt`).

use std::sync::Arc;

use base::checksum::crc32_le;
use base::{BlockSize, Error, FileOffset, InodeNumber, Location, Problem, Result};
use fscrypt::Contents;
use iomap::Decode;
use zerocopy::FromBytes;

use super::{lzo, zstd};
use crate::ondisk::cluster::{COMPRESS_CHECKSUM, RawClusterHeader};
use crate::superblock::MAGIC;

/// The format of a file's compressed data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// LZO1X.
    Lzo,
    /// One LZ4 block without a frame.
    Lz4,
    /// One Zstandard frame.
    Zstd,
    /// LZO1X with runs of zeroes.
    LzoRle,
}

impl Algorithm {
    /// Returns the number in an inode.
    pub fn number(self) -> u8 {
        match self {
            Self::Lzo => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::LzoRle => 3,
        }
    }

    /// Returns the algorithm with this number in an inode. Errors: `Corrupt` if there is none.
    pub fn from_number(number: u8, location: Location) -> Result<Self> {
        match number {
            0 => Ok(Self::Lzo),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            3 => Ok(Self::LzoRle),
            other => {
                let field = "compression algorithm";
                let problem = Problem::Invalid { field, found: other.into() };
                Err(Error::corrupt("inode", location, problem))
            }
        }
    }

    /// Decompresses `source` to the beginning of `target`. Returns the number of bytes.
    fn decompress(self, source: &[u8], target: &mut [u8]) -> Result<usize, Problem> {
        match self {
            // The data says which of the two it is.
            Self::Lzo | Self::LzoRle => lzo::decompress(source, target),
            Self::Lz4 => lz4_flex::block::decompress_into(source, target).map_err(|_| {
                Problem::Invalid { field: "LZ4 data of length", found: source.len() as u64 }
            }),
            Self::Zstd => zstd::decompress(source, target),
        }
    }
}

/// The encoder and decoder of one file's compressed clusters.
#[derive(Clone, Debug)]
pub struct ClusterCodec {
    inode: InodeNumber,
    pub(super) block_size: BlockSize,
    pub(super) algorithm: Algorithm,
    pub(super) has_checksums: bool,
    /// The cipher of the compressed data, if it is encrypted.
    pub(super) cipher: Option<Arc<Contents>>,
}

impl ClusterCodec {
    /// Creates those for a file with these `flags` (`compress_flag`).
    pub fn new(
        inode: InodeNumber,
        block_size: BlockSize,
        algorithm: Algorithm,
        flags: u16,
    ) -> Self {
        let has_checksums = flags & COMPRESS_CHECKSUM != 0;
        Self { inode, block_size, algorithm, has_checksums, cipher: None }
    }

    /// Returns those for a file whose compressed data is encrypted with `cipher`, if there is one.
    pub fn with_cipher(self, cipher: Option<Arc<Contents>>) -> Self {
        Self { cipher, ..self }
    }

    /// Returns the byte of the file at which the stored form of the cluster at `at` is encrypted:
    /// compressed blocks are encrypted as those of the slots that have them, and the first slot has
    /// the mark of a compressed cluster.
    pub(super) fn first_stored(&self, at: FileOffset) -> Result<FileOffset> {
        at.checked_add(self.block_size.bytes().into()).ok_or(Error::FileTooLarge)
    }

    /// Decodes the blocks in `stored` to `data`, all bytes of the cluster. Needs at most twice as
    /// much memory as `data` has, and a fixed amount, whatever `stored` says.
    fn decode_cluster(&self, stored: &[u8], data: &mut [u8]) -> Result<(), Problem> {
        let (header, rest) = split_header(stored)?;
        let length = payload_length(header, rest.len() as u64)?;
        let payload = rest.get(..length).unwrap_or(rest);
        if self.has_checksums {
            verify(header, payload)?;
        }
        let decoded = self.algorithm.decompress(payload, data)?;
        if decoded != data.len() {
            let (found, expected) = (decoded as u64, data.len() as u64);
            return Err(Problem::Mismatch { field: "decompressed length", found, expected });
        }
        Ok(())
    }
}

/// Returns the header of a cluster, and what follows it in `stored`, the beginning of the stored
/// form.
fn split_header(stored: &[u8]) -> Result<(&RawClusterHeader, &[u8]), Problem> {
    RawClusterHeader::ref_from_prefix(stored).map_err(|_| {
        let needed = size_of::<RawClusterHeader>() as u64;
        Problem::Truncated { needed, available: stored.len() as u64 }
    })
}

/// Returns the number of bytes of compressed data, of which there are at most `available`. No
/// algorithm makes none of a cluster.
fn payload_length(header: &RawClusterHeader, available: u64) -> Result<usize, Problem> {
    let length = header.length.get();
    if length == 0 {
        return Err(Problem::Invalid { field: "length of compressed data", found: 0 });
    }
    match usize::try_from(length) {
        Ok(bytes) if u64::from(length) <= available => Ok(bytes),
        _ => Err(Problem::Truncated { needed: length.into(), available }),
    }
}

/// Compares the checksum of a cluster with that of its compressed data.
fn verify(header: &RawClusterHeader, payload: &[u8]) -> Result<(), Problem> {
    let (stored, computed) = (header.checksum.get(), crc32_le(MAGIC, payload));
    if stored != computed {
        return Err(Problem::Checksum { stored, computed });
    }
    Ok(())
}

/// Checks the header in `first`, the first of the blocks of a cluster that is not encrypted, which
/// have `stored_bytes` in all: the compressed data is not empty, and does not end past the blocks.
/// If it ends in the first block, verifies its checksum, if the clusters of the file have some.
/// Decompresses nothing.
pub(crate) fn check_header(
    first: &[u8],
    stored_bytes: u64,
    has_checksums: bool,
) -> Result<(), Problem> {
    let (header, rest) = split_header(first)?;
    let available = stored_bytes.saturating_sub(size_of::<RawClusterHeader>() as u64);
    let length = payload_length(header, available)?;
    match rest.get(..length) {
        Some(payload) if has_checksums => verify(header, payload),
        _ => Ok(()),
    }
}

impl Decode for ClusterCodec {
    fn decode(&self, at: FileOffset, stored: &mut [u8], data: &mut [u8]) -> Result<()> {
        if let Some(cipher) = &self.cipher {
            cipher.decrypt(self.first_stored(at)?, stored)?;
        }
        let block = self.block_size.file_block(at);
        let location = Location::inode(self.inode).at_file_block(block);
        self.decode_cluster(stored, data)
            .map_err(|problem| Error::corrupt("compressed cluster", location, problem))
    }
}
