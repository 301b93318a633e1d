//! Layout of an entry of the node address table, and of an entry of its journal.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The address of a node.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawNatEntry {
    /// Grows each time the node number is freed.
    pub version: u8,
    /// Inode of the node.
    pub inode: U32,
    /// Block of the node, or 0 if the number is free.
    pub block: U32,
}

const _: () = assert!(size_of::<RawNatEntry>() == 9);

/// An entry of the journal, which overrides that of the table.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawNatJournalEntry {
    /// The node number.
    pub nid: U32,
    /// The entry.
    pub entry: RawNatEntry,
}

const _: () = assert!(size_of::<RawNatJournalEntry>() == 13);
