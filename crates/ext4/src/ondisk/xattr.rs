//! Layouts of extended attributes. The ACLs stored in them are in `fs::acl`.
//! Source: kernel documentation, `filesystems/ext4/attributes.rst`.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first four bytes of a block of attributes, and of the attributes in an inode.
pub const XATTR_MAGIC: u32 = 0xEA02_0000;

/// The header of a block of attributes.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawXattrBlockHeader {
    /// [`XATTR_MAGIC`].
    pub magic: U32,
    /// Number of inodes that use the block.
    pub reference_count: U32,
    /// Blocks of attributes; 1.
    pub blocks: U32,
    /// A hash of all entries, or 0 if an entry has no hash.
    pub hash: U32,
    /// crc32c with the volume's seed over the block's number (64 bits) and the block, this field
    /// being zero.
    pub checksum: U32,
    /// 0.
    pub reserved: [U32; 3],
}
const _: () = assert!(size_of::<RawXattrBlockHeader>() == 32);
/// Offset of the checksum in the block.
pub const XATTR_CHECKSUM_AT: usize = 16;
const _: () = assert!(std::mem::offset_of!(RawXattrBlockHeader, checksum) == XATTR_CHECKSUM_AT);

/// The start of an attribute's entry; the name follows, padded to a multiple of 4.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawXattrEntry {
    /// Bytes of the name.
    pub name_length: u8,
    /// Number of the prefix that belongs before the name.
    pub name_index: u8,
    /// Offset of the value, in bytes from the block's start, or from the inode's first entry.
    pub value_offset: U16,
    /// The inode that holds the value, or 0.
    pub value_inode: U32,
    /// Bytes of the value.
    pub value_size: U32,
    /// A hash of name and value; within an inode often 0.
    pub hash: U32,
}
const _: () = assert!(size_of::<RawXattrEntry>() == 16);
