//! Nodes of the extent tree (kernel documentation, "Extent Tree"): a header, then entries of 12
//! bytes; in blocks, a checksum after the room for entries.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Value of `RawExtentHeader::magic`.
pub const MAGIC: u16 = 0xF30A;
/// Above this, `RawExtent::len` means an unwritten extent of `len - WRITTEN_MAX` blocks.
pub const WRITTEN_MAX: u16 = 32768;

/// The start of every node.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawExtentHeader {
    /// 0xF30A.
    pub magic: U16,
    /// Entries in use.
    pub entries: U16,
    /// Number of entries that fit.
    pub max: U16,
    /// Levels below this node; 0 for leaves.
    pub depth: U16,
    /// Unused by Linux.
    pub generation: U32,
}

/// An entry of an inner node.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawExtentIndex {
    /// First file block that the child covers.
    pub block: U32,
    /// The child's block, low half.
    pub leaf_lo: U32,
    /// The child's block, high half.
    pub leaf_hi: U16,
    /// Padding.
    pub unused: U16,
}

/// An entry of a leaf.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawExtent {
    /// First file block.
    pub block: U32,
    /// Blocks; see [`WRITTEN_MAX`].
    pub len: U16,
    /// First volume block, high half.
    pub start_hi: U16,
    /// First volume block, low half.
    pub start_lo: U32,
}

/// The checksum after the room for entries, in a node that is a block (`metadata_csum`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawExtentTail {
    /// crc32c of the inode's seed and of all bytes before this field.
    pub checksum: U32,
}

const _: () = {
    assert!(size_of::<RawExtentHeader>() == 12);
    assert!(size_of::<RawExtentIndex>() == 12);
    assert!(size_of::<RawExtent>() == 12);
    assert!(size_of::<RawExtentTail>() == 4);
};
