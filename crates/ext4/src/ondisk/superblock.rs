//! Layout of the superblock: 1024 bytes at byte 1024 of the volume (kernel documentation, "Super
//! Block").

use std::mem::offset_of;

use base::DeviceOffset;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Position of the superblock.
pub const SUPERBLOCK_OFFSET: DeviceOffset = DeviceOffset(1024);

/// Bit of `RawSuperblock::state`: cleanly unmounted.
pub const STATE_VALID: u16 = 1;
/// Bit of `RawSuperblock::state`: errors were found, and the volume must be checked.
pub const STATE_ERRORS: u16 = 2;
/// Bit of `RawSuperblock::state`: orphans are being recovered.
pub const STATE_ORPHANS: u16 = 4;

/// The superblock as the volume stores it.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawSuperblock {
    /// Number of inodes.
    pub inodes_count: U32,
    /// Number of blocks, low half.
    pub blocks_count_lo: U32,
    /// Blocks reserved for root, low half.
    pub r_blocks_count_lo: U32,
    /// Free blocks, low half.
    pub free_blocks_count_lo: U32,
    /// Free inodes.
    pub free_inodes_count: U32,
    /// The first block of group 0.
    pub first_data_block: U32,
    /// log2(block size) - 10.
    pub log_block_size: U32,
    /// log2(cluster size) - 10. Without `bigalloc`, a cluster is a block.
    pub log_cluster_size: U32,
    /// Blocks in a group.
    pub blocks_per_group: U32,
    /// Clusters in a group.
    pub clusters_per_group: U32,
    /// Inodes in a group.
    pub inodes_per_group: U32,
    /// Last mount, seconds since 1970, low 32 bits.
    pub mtime: U32,
    /// Last write, seconds since 1970, low 32 bits.
    pub wtime: U32,
    /// Mounts since the last check.
    pub mnt_count: U16,
    /// Number of mounts after which the volume is checked.
    pub max_mnt_count: U16,
    /// 0xEF53.
    pub magic: U16,
    /// [`STATE_VALID`] and the other bits of this name.
    pub state: U16,
    /// Reaction to errors: 1 continue, 2 remount read-only, 3 panic.
    pub errors: U16,
    /// Minor revision.
    pub minor_rev_level: U16,
    /// Last check, seconds since 1970, low 32 bits.
    pub lastcheck: U32,
    /// Seconds allowed between checks.
    pub checkinterval: U32,
    /// 0 Linux, 1 Hurd, 2 Masix, 3 FreeBSD, 4 Lites.
    pub creator_os: U32,
    /// 0: fixed inode size and no features; 1: dynamic.
    pub rev_level: U32,
    /// User that may use reserved blocks.
    pub def_resuid: U16,
    /// Group that may use reserved blocks.
    pub def_resgid: U16,
    /// The first inode that is not reserved (revision 1).
    pub first_ino: U32,
    /// Bytes in an inode (revision 1).
    pub inode_size: U16,
    /// The group that this copy of the superblock lies in.
    pub block_group_nr: U16,
    /// Compatible features.
    pub feature_compat: U32,
    /// Incompatible features.
    pub feature_incompat: U32,
    /// Read-only-compatible features.
    pub feature_ro_compat: U32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The label, padded with NUL.
    pub volume_name: [u8; 16],
    /// The last mount point, padded with NUL.
    pub last_mounted: [u8; 64],
    /// For compression, unused.
    pub algorithm_usage_bitmap: U32,
    /// Blocks to preallocate for files, unused.
    pub prealloc_blocks: u8,
    /// Blocks to preallocate for directories, unused.
    pub prealloc_dir_blocks: u8,
    /// Descriptor blocks reserved for growth, for each superblock copy.
    pub reserved_gdt_blocks: U16,
    /// UUID of the external journal.
    pub journal_uuid: [u8; 16],
    /// Inode of the internal journal.
    pub journal_inum: U32,
    /// Device number of the external journal.
    pub journal_dev: U32,
    /// Head of the list of orphaned inodes.
    pub last_orphan: U32,
    /// Seed of the directory hash.
    pub hash_seed: [U32; 4],
    /// Directory hash for new directories.
    pub def_hash_version: u8,
    /// 1: `jnl_blocks` holds a copy of the journal inode's block map.
    pub jnl_backup_type: u8,
    /// Bytes in a group descriptor (`64bit`).
    pub desc_size: U16,
    /// Default mount options.
    pub default_mount_opts: U32,
    /// The first meta block group (`meta_bg`).
    pub first_meta_bg: U32,
    /// Creation, seconds since 1970, low 32 bits.
    pub mkfs_time: U32,
    /// Copy of the journal inode's block map (15 words) and size.
    pub jnl_blocks: [U32; 17],
    /// Number of blocks, high half (`64bit`).
    pub blocks_count_hi: U32,
    /// Reserved blocks, high half (`64bit`).
    pub r_blocks_count_hi: U32,
    /// Free blocks, high half (`64bit`).
    pub free_blocks_count_hi: U32,
    /// Extra bytes that every inode has.
    pub min_extra_isize: U16,
    /// Extra bytes that new inodes should have.
    pub want_extra_isize: U16,
    /// 1 signed directory hash, 2 unsigned directory hash, 4 test file system.
    pub flags: U32,
    /// RAID stride, in blocks.
    pub raid_stride: U16,
    /// Seconds between multiple-mount checks.
    pub mmp_interval: U16,
    /// Block of the multiple-mount protection.
    pub mmp_block: U64,
    /// RAID stripe width, in blocks.
    pub raid_stripe_width: U32,
    /// log2 of the groups in a flexible group.
    pub log_groups_per_flex: u8,
    /// Metadata checksum: 1 is crc32c.
    pub checksum_type: u8,
    /// Unused.
    pub encryption_level: u8,
    /// Padding.
    pub reserved_pad: u8,
    /// KiB written over the volume's lifetime.
    pub kbytes_written: U64,
    /// Snapshots, unused in mainline.
    pub snapshot_inum: U32,
    /// Snapshots, unused in mainline.
    pub snapshot_id: U32,
    /// Snapshots, unused in mainline.
    pub snapshot_r_blocks_count: U64,
    /// Snapshots, unused in mainline.
    pub snapshot_list: U32,
    /// Errors seen.
    pub error_count: U32,
    /// First error: seconds since 1970, low 32 bits.
    pub first_error_time: U32,
    /// First error: inode.
    pub first_error_ino: U32,
    /// First error: block.
    pub first_error_block: U64,
    /// First error: function.
    pub first_error_func: [u8; 32],
    /// First error: line.
    pub first_error_line: U32,
    /// Last error: seconds since 1970, low 32 bits.
    pub last_error_time: U32,
    /// Last error: inode.
    pub last_error_ino: U32,
    /// Last error: line.
    pub last_error_line: U32,
    /// Last error: block.
    pub last_error_block: U64,
    /// Last error: function.
    pub last_error_func: [u8; 32],
    /// Default mount options as text.
    pub mount_opts: [u8; 64],
    /// Inode of the user quota file.
    pub usr_quota_inum: U32,
    /// Inode of the group quota file.
    pub grp_quota_inum: U32,
    /// Clusters that the format's own structures use; 0 if not computed.
    pub overhead_clusters: U32,
    /// Groups with superblock copies (`sparse_super2`).
    pub backup_bgs: [U32; 2],
    /// Encryption algorithms in use.
    pub encrypt_algos: [u8; 4],
    /// Salt for keys derived from passwords.
    pub encrypt_pw_salt: [u8; 16],
    /// Inode of lost+found.
    pub lpf_ino: U32,
    /// Inode of the project quota file.
    pub prj_quota_inum: U32,
    /// Seed of the metadata checksums (`metadata_csum_seed`).
    pub checksum_seed: U32,
    /// High 8 bits of `wtime`.
    pub wtime_hi: u8,
    /// High 8 bits of `mtime`.
    pub mtime_hi: u8,
    /// High 8 bits of `mkfs_time`.
    pub mkfs_time_hi: u8,
    /// High 8 bits of `lastcheck`.
    pub lastcheck_hi: u8,
    /// High 8 bits of `first_error_time`.
    pub first_error_time_hi: u8,
    /// High 8 bits of `last_error_time`.
    pub last_error_time_hi: u8,
    /// First error: code.
    pub first_error_errcode: u8,
    /// Last error: code.
    pub last_error_errcode: u8,
    /// Encoding of file names (`casefold`): 1 is UTF-8 12.1.
    pub encoding: U16,
    /// 1: names that are not valid in the encoding are refused.
    pub encoding_flags: U16,
    /// Inode of the orphan file.
    pub orphan_file_inum: U32,
    /// High 16 bits of `def_resuid`.
    pub def_resuid_hi: U16,
    /// High 16 bits of `def_resgid`.
    pub def_resgid_hi: U16,
    /// Padding.
    pub reserved: [U32; 93],
    /// crc32c of all bytes before this field (`metadata_csum`).
    pub checksum: U32,
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == 1024);
    assert!(offset_of!(RawSuperblock, magic) == 0x38);
    assert!(offset_of!(RawSuperblock, first_ino) == 0x54);
    assert!(offset_of!(RawSuperblock, feature_compat) == 0x5C);
    assert!(offset_of!(RawSuperblock, uuid) == 0x68);
    assert!(offset_of!(RawSuperblock, reserved_gdt_blocks) == 0xCE);
    assert!(offset_of!(RawSuperblock, journal_inum) == 0xE0);
    assert!(offset_of!(RawSuperblock, hash_seed) == 0xEC);
    assert!(offset_of!(RawSuperblock, desc_size) == 0xFE);
    assert!(offset_of!(RawSuperblock, first_meta_bg) == 0x104);
    assert!(offset_of!(RawSuperblock, blocks_count_hi) == 0x150);
    assert!(offset_of!(RawSuperblock, mmp_block) == 0x168);
    assert!(offset_of!(RawSuperblock, checksum_type) == 0x175);
    assert!(offset_of!(RawSuperblock, error_count) == 0x194);
    assert!(offset_of!(RawSuperblock, mount_opts) == 0x200);
    assert!(offset_of!(RawSuperblock, overhead_clusters) == 0x248);
    assert!(offset_of!(RawSuperblock, backup_bgs) == 0x24C);
    assert!(offset_of!(RawSuperblock, checksum_seed) == 0x270);
    assert!(offset_of!(RawSuperblock, encoding) == 0x27C);
    assert!(offset_of!(RawSuperblock, orphan_file_inum) == 0x280);
    assert!(offset_of!(RawSuperblock, checksum) == 0x3FC);
};
