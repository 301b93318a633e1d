//! Layout of the orphan file (kernel documentation, `filesystems/ext4/orphan.rst`): blocks of
//! 32-bit inode numbers, 0 for an empty slot. Each block ends with a tail.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Value of `RawOrphanTail::magic`.
pub const ORPHAN_MAGIC: u32 = 0x0B10_CA04;

/// The end of a block of the orphan file.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawOrphanTail {
    /// [`ORPHAN_MAGIC`].
    pub magic: U32,
    /// crc32c of the inode's seed, the block's number (64 bits) and the inode numbers.
    pub checksum: U32,
}
const _: () = assert!(size_of::<RawOrphanTail>() == 8);
