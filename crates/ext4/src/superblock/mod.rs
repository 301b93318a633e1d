//! Parsing and validation of the superblock. Not here: its copies in other groups
//! (`superblock/copy.rs`), its mount options (`superblock/default_options.rs`).

pub(crate) mod copy;
pub(crate) mod default_options;
pub(crate) mod error_log;

use std::mem::offset_of;

use base::attributes::Timestamp;
use base::checksum::crc32c;
use base::{
    BlockSize, DeviceOffset, Error, FsBlock, InodeNumber, Location, Problem, Result, Unsupported,
};
use device::SharedDevice;
use fs::ErrorPolicy;
use zerocopy::{FromBytes, IntoBytes};

use crate::features::{Feature, FeatureSet, Features};
use crate::jbd2::LoggedVolume;
use crate::layout::geometry::{CreatorOs, Geometry, SuperblockCopies};
use crate::ondisk::superblock::RawSuperblock;
use crate::ondisk::superblock::SUPERBLOCK_OFFSET;
use crate::superblock::copy::{SuperblockCopy, SuperblockLocation};
use crate::superblock::default_options::DefaultOptions;
use crate::superblock::error_log::{RecordedErrors, policy_of};

/// Bytes in a superblock.
pub const SUPERBLOCK_BYTES: usize = size_of::<RawSuperblock>();

const STRUCTURE: &str = "superblock";
const MAGIC: u16 = 0xEF53;
const BLOCK_SHIFT_MIN: u32 = 10;
const BLOCK_SHIFT_MAX: u32 = 16;
/// The kernel's limit: clusters of 1 GiB.
const CLUSTER_SHIFT_MAX: u32 = 30;
const CHECKSUM_CRC32C: u8 = 1;

/// The counts that change while the volume is used. The kernel updates them only now and then; the
/// sums over the group descriptors are exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Blocks not in use.
    pub blocks_free: u64,
    /// Blocks reserved for root.
    pub blocks_reserved: u64,
    /// Inodes not in use.
    pub inodes_free: u32,
    /// Clusters that the format's own structures use; 0 if not computed.
    pub overhead_clusters: u32,
}

/// The inodes that the superblock refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NamedInodes {
    /// The internal journal.
    pub journal: Option<InodeNumber>,
    /// The user quota file.
    pub user_quota: Option<InodeNumber>,
    /// The group quota file.
    pub group_quota: Option<InodeNumber>,
    /// The project quota file.
    pub project_quota: Option<InodeNumber>,
    /// The orphan file.
    pub orphan_file: Option<InodeNumber>,
    /// The first inode of the orphan list.
    pub last_orphan: Option<InodeNumber>,
}

impl NamedInodes {
    /// Returns whether the format itself uses the inode, which then has no name.
    pub(crate) fn is_special(&self, number: InodeNumber) -> bool {
        [self.journal, self.user_quota, self.group_quota, self.project_quota, self.orphan_file]
            .contains(&Some(number))
    }
}

/// The parameters of name hashes in directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryHash {
    /// The seed; all zeroes stand for the algorithm's default.
    pub seed: [u32; 4],
    /// The version for new directories.
    pub default_version: u8,
    /// Whether bytes of names count as unsigned.
    pub unsigned: bool,
}

/// A validated superblock.
#[derive(Clone, Debug)]
pub struct Superblock {
    /// The shape of the volume.
    pub geometry: Geometry,
    /// Changing counts.
    pub counts: Counts,
    /// Inodes that the superblock refers to.
    pub inodes: NamedInodes,
    /// Parameters of name hashes.
    pub directory_hash: DirectoryHash,
    /// The label, without padding.
    pub label: Vec<u8>,
    raw: RawSuperblock,
}

/// The last revision of the format.
pub(crate) const REVISION_MAX: u32 = 1;

impl Superblock {
    /// Returns an error, as Linux and e2fsck, if the volume has a revision whose rules for changes
    /// are not known.
    pub(crate) fn check_revision(&self) -> Result<()> {
        let (found, known) = (self.raw.rev_level.get(), REVISION_MAX);
        if found > known { Err(Unsupported::Revision { found, known }.into()) } else { Ok(()) }
    }

    /// Returns an error, as Linux and e2fsck, if clusters that are not used are not as large as
    /// blocks. Only for writing: the field locates nothing.
    pub(crate) fn check_cluster_size(&self) -> Result<()> {
        let found = u64::from(self.raw.log_cluster_size.get());
        let expected = u64::from(self.raw.log_block_size.get());
        if self.has(Feature::Bigalloc) || found == expected {
            return Ok(());
        }
        let field = "log2 of the cluster size without bigalloc";
        Err(fault(Problem::Mismatch { field, found, expected }))
    }

    /// Reads and validates the superblock of `device`.
    pub fn read(device: &SharedDevice) -> Result<Self> {
        Self::read_for(device, device.size())
    }

    /// [`read`](Self::read), but checks that the volume fits on `device_bytes` bytes.
    fn read_for(device: &SharedDevice, device_bytes: u64) -> Result<Self> {
        let available = device.size().saturating_sub(SUPERBLOCK_OFFSET.0);
        if available < SUPERBLOCK_BYTES as u64 {
            let problem = Problem::Truncated { needed: SUPERBLOCK_BYTES as u64, available };
            return Err(fault(problem));
        }
        let mut bytes = [0; SUPERBLOCK_BYTES];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
        Self::parse(&bytes, device_bytes)
    }

    /// Returns the number of bytes that the volume needs, also if `device` has fewer. The
    /// superblock is that at `location`, or else the first one, or else a copy.
    pub(crate) fn volume_bytes(
        device: &SharedDevice,
        location: Option<SuperblockLocation>,
    ) -> Option<u64> {
        let superblock = match location {
            Some(location) => SuperblockCopy::read_at(device, location, u64::MAX).ok()?.superblock,
            None => Self::read_for(device, u64::MAX).ok().or_else(|| {
                let copies = SuperblockCopy::find(device, u64::MAX).into_iter();
                copies.map(|copy| copy.superblock).next()
            })?,
        };
        let geometry = superblock.geometry;
        geometry.block_count.checked_mul(geometry.block_size.bytes().into())
    }

    /// Returns whether `device` has the format's magic number.
    pub fn has_magic(device: &SharedDevice) -> Result<bool> {
        let mut bytes = [0; size_of::<u16>()];
        let at = SUPERBLOCK_OFFSET.0 + offset_of!(RawSuperblock, magic) as u64;
        if device.size() < at + bytes.len() as u64 {
            return Ok(false);
        }
        device.read_at(DeviceOffset(at), &mut bytes)?;
        Ok(u16::from_le_bytes(bytes) == MAGIC)
    }

    /// Parses and validates the bytes of a superblock, for a device of `device_bytes` bytes.
    pub fn parse(bytes: &[u8; SUPERBLOCK_BYTES], device_bytes: u64) -> Result<Self> {
        let raw = read_raw(bytes)?;
        verify_checksum(&raw, &features(&raw))?;
        Self::from_raw(raw, device_bytes)
    }

    /// Parses and validates the bytes of a superblock with a wrong checksum. Its fields may be a
    /// mixture of two superblocks.
    pub(crate) fn parse_torn(bytes: &[u8; SUPERBLOCK_BYTES], device_bytes: u64) -> Result<Self> {
        Self::from_raw(read_raw(bytes)?, device_bytes)
    }

    fn from_raw(raw: RawSuperblock, device_bytes: u64) -> Result<Self> {
        let features = features(&raw);
        features.check_readable()?;
        let geometry = parse_geometry(&raw, features, device_bytes)?;
        Ok(Self {
            counts: parse_counts(&raw, &geometry)?,
            inodes: parse_named_inodes(&raw, &geometry)?,
            directory_hash: DirectoryHash {
                seed: raw.hash_seed.map(|word| word.get()),
                default_version: raw.def_hash_version,
                unsigned: raw.flags.get() & 2 != 0,
            },
            label: until_nul(&raw.volume_name).to_vec(),
            geometry,
            raw,
        })
    }

    /// Returns the volume as its log knows it.
    pub(crate) fn logged_volume(&self) -> LoggedVolume {
        LoggedVolume {
            block_count: self.geometry.block_count,
            superblock: self.geometry.superblock_block(),
            block_count_in: |block, device_bytes| {
                let at = SUPERBLOCK_OFFSET.0 as usize % block.len();
                let bytes = block[at..].first_chunk()?;
                Some(Self::parse(bytes, device_bytes).ok()?.geometry.block_count)
            },
        }
    }

    /// Returns the raw superblock, for fields that this crate does not interpret.
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// Returns whether the volume has `feature`.
    pub fn has(&self, feature: Feature) -> bool {
        self.geometry.features.has(feature)
    }

    /// Returns the time when the volume was created.
    pub fn created(&self) -> Option<Timestamp> {
        time(self.raw.mkfs_time.get(), self.raw.mkfs_time_hi)
    }

    /// Returns the time of the last mount.
    pub fn last_mounted(&self) -> Option<Timestamp> {
        time(self.raw.mtime.get(), self.raw.mtime_hi)
    }

    /// Returns the time of the last write.
    pub fn last_written(&self) -> Option<Timestamp> {
        time(self.raw.wtime.get(), self.raw.wtime_hi)
    }

    /// Returns the time of the last check.
    pub fn last_checked(&self) -> Option<Timestamp> {
        time(self.raw.lastcheck.get(), self.raw.lastcheck_hi)
    }

    /// Returns the errors that were recorded since the volume was last repaired.
    pub fn errors(&self) -> RecordedErrors {
        RecordedErrors::parse(&self.raw)
    }

    /// Returns the error policy.
    pub fn error_policy(&self) -> ErrorPolicy {
        policy_of(&self.raw)
    }

    /// Returns the default mount options.
    pub(crate) fn default_options(&self) -> DefaultOptions {
        DefaultOptions::parse(&self.raw)
    }

    /// Returns the directory of the last mount.
    pub fn last_mounted_on(&self) -> &[u8] {
        until_nul(&self.raw.last_mounted)
    }
}

/// Changes the superblock in `block`, the bytes of the block that contains it, and writes its
/// checksum.
pub(crate) fn edit(block: &mut [u8], geometry: &Geometry, change: impl FnOnce(&mut RawSuperblock)) {
    let at = SUPERBLOCK_OFFSET.0 as usize % geometry.block_size.len();
    let Ok((raw, _)) = RawSuperblock::mut_from_prefix(&mut block[at..]) else {
        unreachable!("blocks of 2 KiB and more have room for the superblock");
    };
    change(raw);
    if geometry.features.has(Feature::MetadataCsum) {
        raw.checksum = crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_BYTES - 4]).into();
    }
}

/// Returns the bytes before the first NUL.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

pub(crate) fn time(low: u32, high: u8) -> Option<Timestamp> {
    let seconds = i64::from(high) << 32 | i64::from(low);
    (seconds != 0).then_some(Timestamp { seconds, nanoseconds: 0 })
}

#[cold]
fn fault(problem: Problem) -> Error {
    Error::corrupt(STRUCTURE, Location::byte(SUPERBLOCK_OFFSET.0), problem)
}

/// Returns `found`. Errors: `Corrupt` if it is outside `min..=max`.
fn in_range(field: &'static str, found: u64, min: u64, max: u64) -> Result<u64> {
    if (min..=max).contains(&found) {
        Ok(found)
    } else {
        Err(fault(Problem::Range { field, found, min, max }))
    }
}

fn in_range_u32(field: &'static str, found: u32, min: u32, max: u32) -> Result<u32> {
    in_range(field, found.into(), min.into(), max.into())?;
    Ok(found)
}

fn power_of_two(field: &'static str, found: u32, min: u32, max: u32) -> Result<u32> {
    in_range_u32(field, found, min, max)?;
    if !found.is_power_of_two() {
        return Err(fault(Problem::Invalid { field, found: found.into() }));
    }
    Ok(found)
}

fn read_raw(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<RawSuperblock> {
    let raw =
        RawSuperblock::read_from_bytes(bytes).expect("the array has exactly the layout's size");
    if raw.magic.get() != MAGIC {
        let found = raw.magic.get().into();
        return Err(fault(Problem::Magic { found, expected: MAGIC.into() }));
    }
    Ok(raw)
}

fn features(raw: &RawSuperblock) -> Features {
    Features {
        compatible: raw.feature_compat.get(),
        incompatible: raw.feature_incompat.get(),
        read_only_compatible: raw.feature_ro_compat.get(),
    }
}

fn verify_checksum(raw: &RawSuperblock, features: &Features) -> Result<()> {
    if !features.has(Feature::MetadataCsum) {
        return Ok(());
    }
    if raw.checksum_type != CHECKSUM_CRC32C {
        let found = raw.checksum_type.into();
        return Err(fault(Problem::Invalid { field: "checksum type", found }));
    }
    let covered = &raw.as_bytes()[..SUPERBLOCK_BYTES - 4];
    let (stored, computed) = (raw.checksum.get(), crc32c(!0, covered));
    if stored != computed {
        return Err(fault(Problem::Checksum { stored, computed }));
    }
    Ok(())
}

fn parse_geometry(raw: &RawSuperblock, features: Features, device_bytes: u64) -> Result<Geometry> {
    let block_shift = raw.log_block_size.get().saturating_add(BLOCK_SHIFT_MIN);
    in_range_u32("log2 of the block size", block_shift, BLOCK_SHIFT_MIN, BLOCK_SHIFT_MAX)?;
    let block_size = BlockSize::from_shift(block_shift)
        .expect("the range of block shifts is within that of BlockSize");

    let (inode_size, first_inode) = if raw.rev_level.get() == 0 {
        (128, 11)
    } else {
        let size = u32::from(raw.inode_size.get());
        (
            power_of_two("inode size", size, 128, block_size.bytes())?,
            in_range_u32("first inode", raw.first_ino.get(), 11, u32::MAX)?,
        )
    };
    let descriptor_size = if features.has(Feature::SixtyFourBit) {
        power_of_two("group descriptor size", raw.desc_size.get().into(), 64, 1024)?
    } else {
        32
    };
    let reserved_descriptor_blocks = in_range_u32(
        "reserved descriptor blocks",
        raw.reserved_gdt_blocks.get().into(),
        0,
        block_size.bytes() / 4,
    )?;
    let (cluster_shift, blocks_per_group) = parse_group_size(raw, &features, block_size)?;
    let inodes_per_group = parse_inodes_per_group(raw, block_size, inode_size)?;

    let first_data_block = u32::from(block_size.bytes() == 1024 && cluster_shift == 0);
    in_range_u32(
        "first data block",
        raw.first_data_block.get(),
        first_data_block,
        first_data_block,
    )?;
    let block_count = parse_block_count(raw, &features, block_size, device_bytes)?;
    let data_blocks = block_count.saturating_sub(first_data_block.into());
    let group_count = in_range(
        "group count",
        data_blocks.div_ceil(blocks_per_group.into()),
        1,
        (u32::MAX - block_size.bytes() / descriptor_size).into(),
    )? as u32;
    let inode_count = raw.inodes_count.get();
    let expected = u64::from(group_count) * u64::from(inodes_per_group);
    if u64::from(inode_count) != expected {
        let found = inode_count.into();
        return Err(fault(Problem::Mismatch { field: "inode count", found, expected }));
    }

    let geometry = Geometry {
        features,
        creator: CreatorOs::from_disk(raw.creator_os.get()),
        block_size,
        cluster_shift,
        block_count,
        first_data_block: FsBlock(first_data_block.into()),
        blocks_per_group,
        inodes_per_group,
        inode_count,
        group_count,
        inode_size,
        first_inode,
        descriptor_size,
        reserved_descriptor_blocks,
        first_meta_descriptor_block: if features.has(Feature::MetaBg) {
            raw.first_meta_bg.get()
        } else {
            u32::MAX
        },
        superblock_copies: parse_copies(raw, &features),
        checksum_seed: if features.has(Feature::MetadataCsumSeed) {
            raw.checksum_seed.get()
        } else {
            crc32c(!0, &raw.uuid)
        },
        uuid: raw.uuid,
        copy_in_use: None,
    };
    check_room(&geometry, raw)?;
    Ok(geometry)
}

/// Returns the blocks per group, and log2 of the blocks in a cluster.
fn parse_group_size(
    raw: &RawSuperblock,
    features: &Features,
    block_size: BlockSize,
) -> Result<(u32, u32)> {
    // A bitmap is one block.
    let bits = block_size.bytes() * 8;
    let blocks = raw.blocks_per_group.get();
    if !features.has(Feature::Bigalloc) {
        return Ok((0, in_range_u32("blocks per group", blocks, 8, bits)?));
    }
    let cluster_shift = raw.log_cluster_size.get().saturating_add(BLOCK_SHIFT_MIN);
    in_range_u32("log2 of the cluster size", cluster_shift, block_size.shift(), CLUSTER_SHIFT_MAX)?;
    let shift = cluster_shift - block_size.shift();
    let clusters = in_range_u32("clusters per group", raw.clusters_per_group.get(), 8, bits)?;
    let expected = u64::from(clusters) << shift;
    if u64::from(blocks) != expected {
        let found = blocks.into();
        return Err(fault(Problem::Mismatch { field: "blocks per group", found, expected }));
    }
    Ok((shift, blocks))
}

fn parse_inodes_per_group(
    raw: &RawSuperblock,
    block_size: BlockSize,
    inode_size: u32,
) -> Result<u32> {
    let per_block = block_size.bytes() / inode_size;
    let found = raw.inodes_per_group.get();
    in_range_u32("inodes per group", found, per_block, block_size.bytes() * 8)?;
    Ok(found)
}

fn parse_block_count(
    raw: &RawSuperblock,
    features: &Features,
    block_size: BlockSize,
    device_bytes: u64,
) -> Result<u64> {
    let high = if features.has(Feature::SixtyFourBit) { raw.blocks_count_hi.get() } else { 0 };
    let blocks = u64::from(high) << 32 | u64::from(raw.blocks_count_lo.get());
    let min = u64::from(raw.first_data_block.get()).saturating_add(1);
    let available = device_bytes >> block_size.shift();
    if blocks > available {
        let needed = u128::from(blocks) << block_size.shift();
        let needed = u64::try_from(needed).unwrap_or(u64::MAX);
        return Err(Error::corrupt(
            "volume",
            Location::default(),
            Problem::Truncated { needed, available: device_bytes },
        ));
    }
    in_range("block count", blocks, min, available)
}

fn parse_copies(raw: &RawSuperblock, features: &Features) -> SuperblockCopies {
    if features.has(Feature::SparseSuper2) {
        SuperblockCopies::Two(raw.backup_bgs.map(|group| group.get()))
    } else if features.has(Feature::SparseSuper) {
        SuperblockCopies::Sparse
    } else {
        SuperblockCopies::All
    }
}

/// Returns an error if the volume is too small for its own bitmaps, inode tables and descriptors.
/// This also bounds the work per group by the size of the device.
fn check_room(geometry: &Geometry, raw: &RawSuperblock) -> Result<()> {
    let descriptor_blocks = geometry.descriptor_blocks();
    if geometry.features.has(Feature::MetaBg) {
        let first = raw.first_meta_bg.get();
        in_range_u32("first meta block group", first, 0, descriptor_blocks)?;
    }
    let per_group = u64::from(geometry.inode_table_blocks()) + 2;
    let needed = u64::from(geometry.group_count)
        .saturating_mul(per_group)
        .saturating_add(u64::from(descriptor_blocks));
    if needed > geometry.block_count {
        let available = geometry.block_count << geometry.block_size.shift();
        let needed = needed.saturating_mul(geometry.block_size.bytes().into());
        return Err(Error::corrupt(
            "volume",
            Location::default(),
            Problem::Truncated { needed, available },
        ));
    }
    Ok(())
}

fn parse_counts(raw: &RawSuperblock, geometry: &Geometry) -> Result<Counts> {
    let join = |high: u32, low: u32| {
        let high = if geometry.features.has(Feature::SixtyFourBit) { high } else { 0 };
        u64::from(high) << 32 | u64::from(low)
    };
    let blocks_free = join(raw.free_blocks_count_hi.get(), raw.free_blocks_count_lo.get());
    let blocks_reserved = join(raw.r_blocks_count_hi.get(), raw.r_blocks_count_lo.get());
    // Limited instead of refused: these numbers locate nothing, and the files can be read even if a
    // count is stale.
    Ok(Counts {
        blocks_free: blocks_free.min(geometry.block_count),
        blocks_reserved: blocks_reserved.min(geometry.block_count),
        inodes_free: raw.free_inodes_count.get().min(geometry.inode_count),
        overhead_clusters: raw.overhead_clusters.get(),
    })
}

fn parse_named_inodes(raw: &RawSuperblock, geometry: &Geometry) -> Result<NamedInodes> {
    let named = |feature: Feature, field: &'static str, number: u32| -> Result<_> {
        if number == 0 || !geometry.features.has(feature) {
            return Ok(None);
        }
        in_range_u32(field, number, 1, geometry.inode_count)?;
        Ok(Some(InodeNumber(number.into())))
    };
    let last_orphan = raw.last_orphan.get();
    Ok(NamedInodes {
        journal: named(Feature::HasJournal, "journal inode", raw.journal_inum.get())?,
        user_quota: named(Feature::Quota, "user quota inode", raw.usr_quota_inum.get())?,
        group_quota: named(Feature::Quota, "group quota inode", raw.grp_quota_inum.get())?,
        project_quota: named(Feature::Quota, "project quota inode", raw.prj_quota_inum.get())?,
        orphan_file: named(Feature::OrphanFile, "orphan file inode", raw.orphan_file_inum.get())?,
        last_orphan: (last_orphan != 0).then_some(InodeNumber(last_orphan.into())),
    })
}

/// Sets or clears the flag of `feature`.
pub(crate) fn set_feature(raw: &mut RawSuperblock, feature: Feature, value: bool) {
    let (set, bit) = feature.position();
    let field = match set {
        FeatureSet::Compatible => &mut raw.feature_compat,
        FeatureSet::Incompatible => &mut raw.feature_incompat,
        FeatureSet::ReadOnlyCompatible => &mut raw.feature_ro_compat,
    };
    let others = field.get() & !(1 << bit);
    *field = (others | u32::from(value) << bit).into();
}
