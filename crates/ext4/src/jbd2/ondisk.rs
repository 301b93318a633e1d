//! The big-endian layouts of a jbd2 journal. Not here: the structure of a log.
//!
//! Source: Linux kernel documentation, filesystems/ext4/journal.rst.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first field of every control block, that is, of every block that is not a copy of a block of
/// the volume.
pub const MAGIC: u32 = 0xC03B_3998;

/// `h_blocktype` of a block with the tags of the copies that follow it.
pub const BLOCK_DESCRIPTOR: u32 = 1;
/// `h_blocktype` of a block that completes a transaction.
pub const BLOCK_COMMIT: u32 = 2;
/// `h_blocktype` of a superblock without feature sets.
pub const BLOCK_SUPERBLOCK_V1: u32 = 3;
/// `h_blocktype` of a superblock.
pub const BLOCK_SUPERBLOCK_V2: u32 = 4;
/// `h_blocktype` of a block that lists revoked blocks, which are not replayed.
pub const BLOCK_REVOKE: u32 = 5;

/// `h_chksum_type` of CRC-32 (most significant bit first).
pub const CHECKSUM_CRC32: u8 = 1;
/// `s_checksum_type` of crc32c.
pub const CHECKSUM_CRC32C: u8 = 4;

/// `t_flags`: the data block began with [`MAGIC`], which the log replaces by zero.
pub const TAG_ESCAPED: u16 = 1;
/// `t_flags`: no UUID of 16 bytes follows this tag.
pub const TAG_SAME_UUID: u16 = 2;
/// `t_flags`: the last tag of its block.
pub const TAG_LAST: u16 = 8;

/// The number of fast-commit blocks if `s_num_fc_blks` is 0.
pub const FAST_COMMIT_BLOCKS_DEFAULT: u32 = 256;
/// The number of blocks of the smallest journal.
pub const BLOCKS_MIN: u32 = 1024;
/// The number of blocks of the largest journal that mke2fs and tune2fs make.
pub const BLOCKS_MAX: u32 = 10_240_000;

/// `journal_header_t`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawHeader {
    /// [`MAGIC`].
    pub h_magic: U32,
    /// One of the `BLOCK_` constants.
    pub h_blocktype: U32,
    /// The id of the transaction that the block belongs to.
    pub h_sequence: U32,
}
const _: () = assert!(size_of::<RawHeader>() == 12);

/// `journal_superblock_t`, at the start of the journal's first block.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawSuperblock {
    /// Type [`BLOCK_SUPERBLOCK_V1`] or [`BLOCK_SUPERBLOCK_V2`].
    pub s_header: RawHeader,
    /// The bytes in a journal block; equal to the block size of the file system.
    pub s_blocksize: U32,
    /// The number of blocks in the journal, including the superblock and the fast-commit area.
    pub s_maxlen: U32,
    /// The first block of the log.
    pub s_first: U32,
    /// The id of the transaction at `s_start`.
    pub s_sequence: U32,
    /// The journal block where the log starts; 0 if there is nothing to replay.
    pub s_start: U32,
    /// The negated error number with which the journal was aborted, or 0.
    pub s_errno: U32,
    /// Compatible features: unknown ones may be ignored (bit numbers in `superblock.rs`). This
    /// field and all later fields exist only in version 2.
    pub s_feature_compat: U32,
    /// Incompatible features: a log with unknown ones cannot be read.
    pub s_feature_incompat: U32,
    /// Read-only compatible features: a log with unknown ones cannot be written. None is defined.
    pub s_feature_ro_compat: U32,
    /// The journal's UUID; its crc32c is the seed of the block checksums.
    pub s_uuid: [u8; 16],
    /// The number of file systems that share the journal.
    pub s_nr_users: U32,
    /// Unused.
    pub s_dynsuper: U32,
    /// Unused.
    pub s_max_transaction: U32,
    /// Unused.
    pub s_max_trans_data: U32,
    /// [`CHECKSUM_CRC32C`] with checksum versions 2 and 3.
    pub s_checksum_type: u8,
    /// Unused.
    pub s_padding2: [u8; 3],
    /// The number of blocks at the journal's end for fast commits; 0 means
    /// [`FAST_COMMIT_BLOCKS_DEFAULT`].
    pub s_num_fc_blks: U32,
    /// The journal block for the next transaction; set only if the journal is clean.
    pub s_head: U32,
    /// Unused.
    pub s_padding: [U32; 40],
    /// crc32c of the superblock with this field zero, from `!0`.
    pub s_checksum: U32,
    /// UUIDs of the file systems that share the journal.
    pub s_users: [[u8; 16]; 48],
}
const _: () = assert!(size_of::<RawSuperblock>() == 1024);

/// `commit_header`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawCommit {
    /// Type [`BLOCK_COMMIT`].
    pub h_header: RawHeader,
    /// Checksum version 1: [`CHECKSUM_CRC32`], or 0 for none.
    pub h_chksum_type: u8,
    /// Checksum version 1: 4, or 0 for none.
    pub h_chksum_size: u8,
    /// Unused.
    pub h_padding: [u8; 2],
    /// A checksum in the first word. Checksum version 1: the CRC-32 of the transaction's descriptor
    /// and data blocks. Versions 2 and 3: the crc32c of this block with the word zero.
    pub h_chksum: [U32; 8],
    /// The time of the commit, in seconds since 1970.
    pub h_commit_sec: U64,
    /// The nanoseconds after that second.
    pub h_commit_nsec: U32,
}
const _: () = assert!(size_of::<RawCommit>() == 60);

/// `journal_block_tag_t`. With the feature 64bit, `t_blocknr_high` follows it. With checksum
/// version 2, two unused bytes follow that.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawTag {
    /// The low half of the home location of the data, as a block number.
    pub t_blocknr: U32,
    /// Checksum version 2: the low half of the crc32c of the sequence number and the data.
    pub t_checksum: U16,
    /// The `TAG_` flags.
    pub t_flags: U16,
}
const _: () = assert!(size_of::<RawTag>() == 8);

/// `journal_block_tag3_t`, which checksum version 3 uses whether or not 64bit is set.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawTag3 {
    /// The low half of the home location of the data, as a block number.
    pub t_blocknr: U32,
    /// The `TAG_` flags.
    pub t_flags: U32,
    /// The high half of the block number; ignored without 64bit.
    pub t_blocknr_high: U32,
    /// crc32c of the sequence number (big-endian) and the data.
    pub t_checksum: U32,
}
const _: () = assert!(size_of::<RawTag3>() == 16);

/// `jbd2_journal_revoke_header_t`. Block numbers of 4 bytes, or of 8 bytes with 64bit, follow it.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawRevokeHeader {
    /// Type [`BLOCK_REVOKE`].
    pub r_header: RawHeader,
    /// The number of bytes in use in the block, including this header.
    pub r_count: U32,
}
const _: () = assert!(size_of::<RawRevokeHeader>() == 16);

/// The length of the checksum at the end of descriptor and revoke blocks, in checksum versions 2
/// and 3: the crc32c of the block with these bytes zero.
pub const BLOCK_TAIL_BYTES: usize = 4;
