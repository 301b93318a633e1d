//! Layout of a compressed cluster (kernel documentation, `filesystems/f2fs.rst`, "Compression
//! implementation").

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// log2 of the blocks in the smallest cluster.
pub const LOG_CLUSTER_SIZE_MIN: u8 = 2;
/// log2 of the blocks in the largest cluster.
pub const LOG_CLUSTER_SIZE_MAX: u8 = 8;

/// The bit of an inode's `compress_flag` that says that clusters have checksums.
pub const COMPRESS_CHECKSUM: u16 = 1;

/// The beginning of the first compressed block. The compressed data follows.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Default, Debug)]
#[repr(C)]
pub struct RawClusterHeader {
    /// The number of bytes of compressed data.
    pub length: U32,
    /// The checksum of the compressed data, if the inode's flag [`COMPRESS_CHECKSUM`] is set.
    pub checksum: U32,
    /// Unused.
    pub reserved: [U32; 4],
}
const _: () = assert!(size_of::<RawClusterHeader>() == 24);
