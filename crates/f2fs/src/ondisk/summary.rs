//! Layout of summaries: for each block of a segment, the node that refers to it.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The owner of a block.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawSummary {
    /// The node that refers to the block. For node blocks, the node itself.
    pub nid: U32,
    /// Version of the node number.
    pub version: u8,
    /// Index of the address in the node.
    pub index: U16,
}

const _: () = assert!(size_of::<RawSummary>() == 7);

/// The end of a summary block.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawSummaryFooter {
    /// 0 data, 1 node.
    pub kind: u8,
    /// CRC, which no implementation checks.
    pub checksum: U32,
}

const _: () = assert!(size_of::<RawSummaryFooter>() == 5);
