//! Layout of an entry of the segment information table, and of an entry of its journal.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the map of a segment's blocks.
pub const SIT_MAP_BYTES: usize = 64;

/// The use of a segment.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawSitEntry {
    /// Bits 0 to 9: the number of blocks in use. From bit 10 on: the type of the segment.
    pub valid_blocks: U16,
    /// A bit for each block, whether it is in use. The most significant bit of a byte comes first.
    pub map: [u8; SIT_MAP_BYTES],
    /// Time of the last change, in seconds since the volume was made.
    pub mtime: U64,
}

const _: () = assert!(size_of::<RawSitEntry>() == 74);

/// An entry of the journal, which overrides that of the table.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawSitJournalEntry {
    /// The segment of the main area.
    pub segment: U32,
    /// The entry.
    pub entry: RawSitEntry,
}

const _: () = assert!(size_of::<RawSitJournalEntry>() == 78);
