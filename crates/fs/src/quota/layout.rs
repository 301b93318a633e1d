//! The structures of a quota file. Numbers are little endian.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes in a block of the tree.
pub const BLOCK_BYTES: usize = 1024;
/// The block with the root of the tree. The header is in the block before it.
pub(super) const ROOT: u32 = 1;
/// The number of levels of references. Each stands for a byte of an id.
pub(super) const LEVELS: usize = size_of::<u32>();
/// The number of references in a block.
pub(super) const REFERENCES: usize = BLOCK_BYTES / size_of::<u32>();
/// The version of the format whose entries count space in bytes.
pub(super) const VERSION: u32 = 1;
/// The number of entries in a block.
pub(super) const ENTRIES: usize = (BLOCK_BYTES - size_of::<RawLeaf>()) / size_of::<RawEntry>();

/// The header of the file.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub(super) struct RawHeader {
    /// Magic number of the kind of quota.
    pub(super) magic: U32,
    /// Version of the format.
    pub(super) version: U32,
    /// How long space may be above the soft limit, in seconds.
    pub(super) bytes_grace: U32,
    /// How long inodes may be above the soft limit, in seconds.
    pub(super) inodes_grace: U32,
    pub(super) flags: U32,
    /// Blocks of the file.
    pub(super) blocks: U32,
    /// First block of the list of blocks that are not in use, or 0.
    pub(super) free_block: U32,
    /// First block of the list of blocks with some entries that are not in use, or 0.
    pub(super) free_entry: U32,
}

const _: () = assert!(size_of::<RawHeader>() == 32);

/// The start of a block with entries, and of one that is not in use.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub(super) struct RawLeaf {
    /// Next block of the list that this block is in, or 0.
    pub(super) next: U32,
    /// Previous block of the list, or 0.
    pub(super) previous: U32,
    /// Entries in use.
    pub(super) entries: U16,
    pub(super) reserved: [u8; 6],
}

const _: () = assert!(size_of::<RawLeaf>() == 16);

/// The entry of an id. One that is not in use has only zeroes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub(super) struct RawEntry {
    pub(super) id: U32,
    pub(super) reserved: U32,
    /// Hard and soft limit of inodes, or 0.
    pub(super) inodes_hard: U64,
    pub(super) inodes_soft: U64,
    /// Inodes.
    pub(super) inodes: U64,
    /// Hard and soft limit of space in KiB, or 0.
    pub(super) kib_hard: U64,
    pub(super) kib_soft: U64,
    /// Space in bytes.
    pub(super) bytes: U64,
    /// Time from which on the soft limit of space is a hard one, in seconds since 1970, or 0.
    pub(super) bytes_time: U64,
    /// The same for inodes. 1 in an entry that has only zeroes otherwise, so that it counts as
    /// used.
    pub(super) inodes_time: U64,
}

const _: () = assert!(size_of::<RawEntry>() == 72);

impl RawEntry {
    /// Returns whether the entry is that of an id.
    pub(super) fn is_used(&self) -> bool {
        self.as_bytes().iter().any(|byte| *byte != 0)
    }
}
