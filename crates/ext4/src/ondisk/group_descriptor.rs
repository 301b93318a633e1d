//! Layout of the group descriptor (kernel documentation, "Block Group Descriptors"): 32 bytes, and
//! 32 more if the volume's descriptor size includes them.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The part that every descriptor has.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawGroupDescriptor {
    /// Block of the block bitmap, low half.
    pub block_bitmap_lo: U32,
    /// Block of the inode bitmap, low half.
    pub inode_bitmap_lo: U32,
    /// First block of the inode table, low half.
    pub inode_table_lo: U32,
    /// Free clusters, low half.
    pub free_blocks_count_lo: U16,
    /// Free inodes, low half.
    pub free_inodes_count_lo: U16,
    /// Directories, low half.
    pub used_dirs_count_lo: U16,
    /// 1 inodes not initialised, 2 block bitmap not initialised, 4 inode table zeroed.
    pub flags: U16,
    /// Block of the snapshot exclude bitmap, low half.
    pub exclude_bitmap_lo: U32,
    /// Checksum of the block bitmap, low half.
    pub block_bitmap_csum_lo: U16,
    /// Checksum of the inode bitmap, low half.
    pub inode_bitmap_csum_lo: U16,
    /// Inodes at the end of the table that were never used, low half.
    pub itable_unused_lo: U16,
    /// Checksum of the descriptor: crc16 (`gdt_csum`) or the low half of crc32c (`metadata_csum`).
    pub checksum: U16,
}

/// The second part, in descriptors of 64 bytes and more.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawGroupDescriptorHigh {
    /// Block of the block bitmap, high half.
    pub block_bitmap_hi: U32,
    /// Block of the inode bitmap, high half.
    pub inode_bitmap_hi: U32,
    /// First block of the inode table, high half.
    pub inode_table_hi: U32,
    /// Free clusters, high half.
    pub free_blocks_count_hi: U16,
    /// Free inodes, high half.
    pub free_inodes_count_hi: U16,
    /// Directories, high half.
    pub used_dirs_count_hi: U16,
    /// Never used inodes, high half.
    pub itable_unused_hi: U16,
    /// Block of the snapshot exclude bitmap, high half.
    pub exclude_bitmap_hi: U32,
    /// Checksum of the block bitmap, high half.
    pub block_bitmap_csum_hi: U16,
    /// Checksum of the inode bitmap, high half.
    pub inode_bitmap_csum_hi: U16,
    /// Padding.
    pub reserved: U32,
}

/// Offset of the checksum in the descriptor.
pub const CHECKSUM_OFFSET: usize = offset_of!(RawGroupDescriptor, checksum);

const _: () = {
    assert!(size_of::<RawGroupDescriptor>() == 32);
    assert!(size_of::<RawGroupDescriptorHigh>() == 32);
    assert!(offset_of!(RawGroupDescriptor, flags) == 0x12);
    assert!(CHECKSUM_OFFSET == 0x1E);
    assert!(32 + offset_of!(RawGroupDescriptorHigh, block_bitmap_csum_hi) == 0x38);
};
