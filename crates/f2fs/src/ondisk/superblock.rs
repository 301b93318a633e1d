//! Layout of the superblock, which lies 1,024 bytes into each of the first two blocks.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The number of devices that a volume can have.
pub const DEVICES_MAX: usize = 8;

/// The superblock.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawSuperblock {
    /// 0xF2F52010.
    pub magic: U32,
    /// Version of the format.
    pub major_version: U16,
    /// Version of the format.
    pub minor_version: U16,
    /// Exponent of the sector size in bytes.
    pub log_sector_size: U32,
    /// Exponent of the number of sectors in a block.
    pub log_sectors_per_block: U32,
    /// Exponent of the block size in bytes.
    pub log_block_size: U32,
    /// Exponent of the number of blocks in a segment: 9.
    pub log_blocks_per_segment: U32,
    /// Segments in a section.
    pub segments_per_section: U32,
    /// Sections in a zone.
    pub sections_per_zone: U32,
    /// Byte of `checksum` in this structure, with the feature `sb_checksum`.
    pub checksum_offset: U32,
    /// Blocks of the volume.
    pub block_count: U64,
    /// Sections of the main area.
    pub section_count: U32,
    /// Segments of all areas.
    pub segment_count: U32,
    /// Segments of the checkpoint area.
    pub segment_count_checkpoint: U32,
    /// Segments of the segment information table, both copies.
    pub segment_count_sit: U32,
    /// Segments of the node address table, both copies.
    pub segment_count_nat: U32,
    /// Segments of the segment summary area.
    pub segment_count_ssa: U32,
    /// Segments of the main area.
    pub segment_count_main: U32,
    /// First block of segment 0, which is that of the checkpoint area.
    pub segment0_block: U32,
    /// First block of the checkpoint area.
    pub checkpoint_block: U32,
    /// First block of the segment information table.
    pub sit_block: U32,
    /// First block of the node address table.
    pub nat_block: U32,
    /// First block of the segment summary area.
    pub ssa_block: U32,
    /// First block of the main area.
    pub main_block: U32,
    /// Inode of the root directory: 3.
    pub root_inode: U32,
    /// Inode whose data stands for all nodes: 1.
    pub node_inode: U32,
    /// Inode whose data stands for all other metadata: 2.
    pub meta_inode: U32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The label in UTF-16, padded with zeroes.
    pub label: [U16; 512],
    /// Entries of `extensions` for cold files.
    pub cold_extension_count: U32,
    /// File name extensions of cold files, then of hot files.
    pub extensions: [[u8; 8]; 64],
    /// Blocks of a checkpoint pack after its first one that hold version bitmaps.
    pub checkpoint_payload: U32,
    /// Version of the kernel that last mounted the volume, as text.
    pub version: [u8; 256],
    /// Version of the kernel that made the volume, as text.
    pub initial_version: [u8; 256],
    /// Feature bits.
    pub features: U32,
    /// Unused.
    pub encryption_level: u8,
    /// Salt for deriving keys from passwords.
    pub password_salt: [u8; 16],
    /// The devices of a volume with several ones.
    pub devices: [RawDevice; DEVICES_MAX],
    /// Inodes of the quota files of users, groups and projects.
    pub quota_inodes: [U32; 3],
    /// Entries of `extensions` for hot files.
    pub hot_extension_count: u8,
    /// Encoding of casefolded names.
    pub encoding: U16,
    /// Flags of the encoding: 1 strict, 2 no linear search for names.
    pub encoding_flags: U16,
    /// Counts of the reasons for which checkpoints were stopped.
    pub stop_reasons: [u8; 32],
    /// Bits of the errors that were found.
    pub errors: [u8; 16],
    /// Unused.
    pub reserved: [u8; 258],
    /// CRC of the bytes before it, with the feature `sb_checksum`.
    pub checksum: U32,
}

/// A device of a volume with several ones.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawDevice {
    /// Path of the device, padded with zeroes.
    pub path: [u8; 64],
    /// Segments on the device.
    pub segments: U32,
}

const _: () = assert!(size_of::<RawSuperblock>() == 3072);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, uuid) == 108);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, features) == 2180);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, checksum) == 3068);
