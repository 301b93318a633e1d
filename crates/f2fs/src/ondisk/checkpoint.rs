//! Layout of the first and last block of a checkpoint pack, and of its orphan blocks.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The pack ends with node summaries: the volume was unmounted.
pub const UNMOUNTED: u32 = 1;
/// The pack has orphan blocks.
pub const ORPHANS: u32 = 2;
/// The data summaries are compact.
pub const COMPACT_SUMMARIES: u32 = 4;
/// An error was found.
pub const ERROR: u32 = 8;
/// fsck.f2fs is requested.
pub const NEEDS_FSCK: u32 = 0x10;
/// The pack ends with node summaries, for a fast mount.
pub const FAST_BOOT: u32 = 0x20;
/// The upper half of `checkpoint_version` in node footers is the pack's CRC.
pub const CRC_RECOVERY: u32 = 0x40;
/// The pack ends with bits about blocks of the node address table.
pub const NAT_BITS: u32 = 0x80;
/// Everything free was discarded before the volume was unmounted.
pub const TRIMMED: u32 = 0x100;
/// fsck.f2fs wrote the pack: only the lower half of `checkpoint_version` in node footers counts.
pub const NO_CRC_RECOVERY: u32 = 0x200;
/// The version bitmaps begin after a CRC at byte 192.
pub const LARGE_NAT_BITMAP: u32 = 0x400;
/// The quota files need repair.
pub const QUOTA_NEEDS_FSCK: u32 = 0x800;
/// Checkpoints are disabled.
pub const DISABLED: u32 = 0x1000;

/// The fixed part of a checkpoint block. Version bitmaps follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawCheckpoint {
    /// Version; the pack with the later one counts.
    pub version: U64,
    /// Blocks that users can have.
    pub user_block_count: U64,
    /// Blocks in use in the main area.
    pub valid_block_count: U64,
    /// Segments reserved for cleaning.
    pub reserved_segments: U32,
    /// Segments that are not offered to users.
    pub overprovision_segments: U32,
    /// Free segments of the main area.
    pub free_segments: U32,
    /// Current segments of the node logs: hot, warm, cold, and unused ones.
    pub node_segments: [U32; 8],
    /// Next block in the current segments of the node logs.
    pub node_offsets: [U16; 8],
    /// Current segments of the data logs: hot, warm, cold, and unused ones.
    pub data_segments: [U32; 8],
    /// Next block in the current segments of the data logs.
    pub data_offsets: [U16; 8],
    /// Flags.
    pub flags: U32,
    /// Blocks of the pack.
    pub pack_blocks: U32,
    /// Block of the pack with the first data summary.
    pub summary_start: U32,
    /// Nodes in use.
    pub valid_nodes: U32,
    /// Inodes in use.
    pub valid_inodes: U32,
    /// A number from which to search for a free node number.
    pub next_free_nid: U32,
    /// Bytes of the SIT version bitmap.
    pub sit_bitmap_bytes: U32,
    /// Bytes of the NAT version bitmap.
    pub nat_bitmap_bytes: U32,
    /// Byte of the CRC in the block.
    pub checksum_offset: U32,
    /// Time in seconds for which the volume was mounted.
    pub elapsed_time: U64,
    /// Whether the logs append (0) or fill holes (1).
    pub allocation_types: [u8; 16],
}

const _: () = assert!(size_of::<RawCheckpoint>() == 192);
const _: () = assert!(std::mem::offset_of!(RawCheckpoint, flags) == 132);

/// The end of an orphan block. Before it are inode numbers of four bytes each.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawOrphanFooter {
    /// Unused.
    pub reserved: U32,
    /// Number of this block among the orphan blocks, from 1.
    pub index: U16,
    /// The number of orphan blocks.
    pub count: U16,
    /// Inode numbers in this block.
    pub entries: U32,
    /// CRC, which no implementation checks.
    pub checksum: U32,
}

const _: () = assert!(size_of::<RawOrphanFooter>() == 16);
