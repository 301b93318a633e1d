//! Layouts of directory blocks: entries, the checksum tail, the hash index. Source: kernel
//! documentation, `filesystems/ext4/directory.rst`.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The start of a directory entry; the name follows.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawDirEntryHeader {
    /// Inode number; 0 for an unused entry.
    pub inode: U32,
    /// Distance in bytes to the next entry, as `record_length` in `dir::block` decodes it.
    pub record_length: U16,
    /// Bytes of the name.
    pub name_length: u8,
    /// File type code if the volume has the `filetype` feature.
    pub file_type: u8,
}
const _: () = assert!(size_of::<RawDirEntryHeader>() == 8);

/// The last 12 bytes of a directory leaf on volumes with checksums. They read as an unused entry.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawDirTail {
    /// Looks like an entry's inode number; 0.
    pub inode: U32,
    /// Looks like an entry's record length; 12.
    pub record_length: U16,
    /// Looks like an entry's name length; 0.
    pub name_length: u8,
    /// Looks like an entry's file type; 0xDE.
    pub file_type: u8,
    /// crc32c with the inode's seed over the block up to this tail.
    pub checksum: U32,
}
const _: () = assert!(size_of::<RawDirTail>() == 12);

/// Description of a hash index in its root; lies after the entries "." and "..".
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawIndexInfo {
    /// 0.
    pub reserved: U32,
    /// How names are hashed: 0 legacy, 1 half MD4, 2 TEA, 6 SipHash.
    pub hash_version: u8,
    /// The length of this structure in bytes; 8.
    pub info_length: u8,
    /// Levels of index blocks between the root and the leaves.
    pub indirect_levels: u8,
    /// 0.
    pub unused_flags: u8,
}
const _: () = assert!(size_of::<RawIndexInfo>() == 8);

/// The first slot of an index block, in the place of the first entry's hash (which is 0).
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawIndexCount {
    /// Number of slots that fit in the block, this one included.
    pub limit: U16,
    /// Number of slots in use, this one included.
    pub count: U16,
    /// The directory block that the first entry refers to.
    pub block: U32,
}
const _: () = assert!(size_of::<RawIndexCount>() == 8);

/// A slot of an index block.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawIndexEntry {
    /// The least hash in the block below. If its lowest bit is set, entries with that hash begin in
    /// the block before.
    pub hash: U32,
    /// Number of a block of the directory, in the low 28 bits.
    pub block: U32,
}
const _: () = assert!(size_of::<RawIndexEntry>() == 8);

/// The checksum after the last possible slot of an index block, on volumes with checksums.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawIndexTail {
    /// 0; enters the checksum.
    pub reserved: U32,
    /// crc32c with the inode's seed over the block up to the last slot in use, then `reserved`,
    /// then four zero bytes.
    pub checksum: U32,
}
const _: () = assert!(size_of::<RawIndexTail>() == 8);
