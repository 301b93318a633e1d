//! The validated parameters of a volume, and the positions of groups, superblock copies and
//! descriptors, which follow from them. Not here: reading any of these.

use std::ops::Range;

use base::checksum::crc32c;
use base::{
    BlockSize, Error, FsBlock, GroupNumber, InodeNumber, Location, Problem, Result, Unsupported,
};

use crate::features::{Feature, Features};
use crate::ondisk::superblock::SUPERBLOCK_OFFSET;

/// The maximum number of blocks of a file, in each kind of map (the kernel's limit).
pub const FILE_BLOCKS_MAX: u64 = u32::MAX as u64;

/// The groups that have copies of the superblock and of the descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuperblockCopies {
    /// Every group.
    All,
    /// Groups 0, 1 and powers of 3, 5 and 7 (`sparse_super`).
    Sparse,
    /// Group 0 and these groups (`sparse_super2`); 0 stands for none.
    Two([u32; 2]),
}

/// The operating system that a volume was created for, from its superblock. The meaning of some
/// inode fields depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CreatorOs {
    /// Linux.
    Linux,
    /// GNU/Hurd. The field of an inode's version holds the block of its translator, and the high
    /// half of its attribute block is part of its mode.
    Hurd,
    /// Masix, FreeBSD, Lites, or an unknown system. As in the kernel, inodes are like Linux's, but
    /// their checksums are not verified. They are written, since e2fsck verifies them.
    Other(u32),
}

impl CreatorOs {
    /// Returns the system with this number in the superblock.
    pub(crate) fn from_disk(number: u32) -> Self {
        match number {
            0 => Self::Linux,
            1 => Self::Hurd,
            other => Self::Other(other),
        }
    }
}

/// The shape of a volume. When the superblock was parsed, all fields were checked against the
/// format's limits and each other. So arithmetic within a volume cannot overflow:
/// `block_count << block_size.shift()` is at most the device's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The features.
    pub features: Features,
    /// The system that the volume was created for.
    pub creator: CreatorOs,
    /// The block size.
    pub block_size: BlockSize,
    /// log2 of the blocks in an allocation cluster; 0 without `bigalloc`.
    pub cluster_shift: u32,
    /// Blocks in the volume.
    pub block_count: u64,
    /// The first block of group 0: 1 for blocks of 1 KiB, otherwise 0.
    pub first_data_block: FsBlock,
    /// Blocks in a group (the last group may have fewer).
    pub blocks_per_group: u32,
    /// Inodes in each group.
    pub inodes_per_group: u32,
    /// Inodes in the volume: the number of groups times the inodes in each.
    pub inode_count: u32,
    /// Number of groups.
    pub group_count: u32,
    /// Bytes in an inode: a power of two from 128 to the block size.
    pub inode_size: u32,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// Bytes in a group descriptor: 32, or a power of two from 64 to 1024.
    pub descriptor_size: u32,
    /// Descriptor blocks reserved for growth after the descriptors of each superblock copy.
    pub reserved_descriptor_blocks: u32,
    /// The first descriptor block that lies within the groups that it describes; `u32::MAX` without
    /// `meta_bg`.
    pub first_meta_descriptor_block: u32,
    /// The groups that have superblock copies.
    pub superblock_copies: SuperblockCopies,
    /// The seed of metadata checksums and of the hashes of large attribute values. It exists even
    /// if the volume has no metadata checksums.
    pub checksum_seed: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The block of the superblock copy that is in use; the descriptors in use follow it. `None`
    /// for the first superblock.
    pub copy_in_use: Option<FsBlock>,
}

impl Geometry {
    /// Checks the geometry that a replayed log has left, whose volume had this geometry before. No
    /// program changes these fields through the log, but a hostile log can replace the superblock.
    /// Errors: `Corrupt`.
    pub(crate) fn check_replayed(&self, replayed: &Self) -> Result<()> {
        let fields = |geometry: &Self| {
            [
                ("block size after the replay", u64::from(geometry.block_size.bytes())),
                ("cluster shift after the replay", geometry.cluster_shift.into()),
                ("first block after the replay", geometry.first_data_block.0),
                ("blocks per group after the replay", geometry.blocks_per_group.into()),
                ("inodes per group after the replay", geometry.inodes_per_group.into()),
                ("inode size after the replay", geometry.inode_size.into()),
                ("descriptor size after the replay", geometry.descriptor_size.into()),
            ]
        };
        for ((field, expected), (_, found)) in fields(self).into_iter().zip(fields(replayed)) {
            if found != expected {
                let location = Location::byte(SUPERBLOCK_OFFSET.0);
                let problem = Problem::Mismatch { field, found, expected };
                return Err(Error::corrupt("superblock", location, problem));
            }
        }
        Ok(())
    }

    /// Returns the bits of a bitmap's checksum that descriptors store: descriptors of 32 bytes
    /// store half of them.
    pub(crate) fn bitmap_checksum_mask(&self) -> u32 {
        if self.descriptor_size >= 64 { u32::MAX } else { 0xFFFF }
    }

    /// Returns the checksum seed, if metadata has crc32c checksums.
    pub fn metadata_seed(&self) -> Option<u32> {
        self.features.has(Feature::MetadataCsum).then_some(self.checksum_seed)
    }

    /// Returns the checksum seed of all structures that belong to one inode, if metadata has
    /// checksums.
    pub fn inode_seed(&self, inode: InodeNumber, generation: u32) -> Option<u32> {
        // Inode numbers have 32 bits on disk.
        let number = (inode.0 as u32).to_le_bytes();
        let seed = crc32c(self.metadata_seed()?, &number);
        Some(crc32c(seed, &generation.to_le_bytes()))
    }

    /// Returns whether inode checksums are valid. The kernel writes none on volumes of other
    /// systems.
    pub(crate) fn has_inode_checksums(&self) -> bool {
        self.features.has(Feature::MetadataCsum) && self.creator == CreatorOs::Linux
    }

    /// Returns whether inodes have a version. The Hurd uses the field for something else.
    pub(crate) fn has_inode_versions(&self) -> bool {
        self.creator != CreatorOs::Hurd
    }

    /// Returns whether inodes have the high half of their attribute block's number. The Hurd uses
    /// the field for something else.
    pub(crate) fn has_high_attribute_blocks(&self) -> bool {
        self.features.has(Feature::SixtyFourBit) && self.creator != CreatorOs::Hurd
    }

    /// Returns an error for features that cannot be written, and for features that need inode
    /// fields which the Hurd uses for something else.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.features.check_writable()?;
        let clashes = [Feature::SixtyFourBit, Feature::EaInode, Feature::MetadataCsum];
        if self.creator == CreatorOs::Hurd && clashes.iter().any(|&one| self.features.has(one)) {
            let operation = "writing a volume of the Hurd with 64bit, ea_inode or metadata_csum";
            return Err(Unsupported::Operation(operation).into());
        }
        Ok(())
    }

    /// Returns whether group descriptors have checksums, so that groups may be uninitialised.
    pub fn has_group_checksums(&self) -> bool {
        self.features.has(Feature::MetadataCsum) || self.features.has(Feature::UninitBg)
    }

    /// Returns the number of blocks in a cluster.
    pub fn blocks_per_cluster(&self) -> u32 {
        1 << self.cluster_shift
    }

    /// Returns the number of clusters in a group: the bits in use of a block bitmap.
    pub fn clusters_per_group(&self) -> u32 {
        self.blocks_per_group >> self.cluster_shift
    }

    /// Returns the number of clusters that `blocks` blocks need.
    pub fn clusters_for(&self, blocks: u64) -> u64 {
        blocks.div_ceil(1 << self.cluster_shift)
    }

    /// Returns the number of blocks of a group's inode table.
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group / (self.block_size.bytes() / self.inode_size)
    }

    /// Returns the number of group descriptors in a block.
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_size.bytes() / self.descriptor_size
    }

    /// Returns the number of blocks that all descriptors need.
    pub fn descriptor_blocks(&self) -> u32 {
        self.group_count.div_ceil(self.descriptors_per_block())
    }

    /// Returns the first block of a group of this volume.
    pub fn group_start(&self, group: GroupNumber) -> FsBlock {
        let blocks = u64::from(group.0) * u64::from(self.blocks_per_group);
        FsBlock(self.first_data_block.0 + blocks)
    }

    /// Returns the number of blocks in a group of this volume.
    pub fn blocks_in_group(&self, group: GroupNumber) -> u64 {
        let rest = self.block_count.saturating_sub(self.group_start(group).0);
        rest.min(self.blocks_per_group.into())
    }

    /// Returns the group of a block; `None` before the first group and after the last.
    pub fn group_of_block(&self, block: FsBlock) -> Option<GroupNumber> {
        if block.0 >= self.block_count {
            return None;
        }
        let distance = block.checked_distance_from(self.first_data_block)?;
        u32::try_from(distance / u64::from(self.blocks_per_group)).ok().map(GroupNumber)
    }

    /// Returns the number of groups all of whose blocks are before `end`.
    pub(crate) fn groups_before(&self, end: FsBlock) -> u32 {
        if self.block_count <= end.0 {
            return self.group_count;
        }
        let blocks = end.0.saturating_sub(self.first_data_block.0);
        let groups = blocks / u64::from(self.blocks_per_group);
        u32::try_from(groups).map_or(self.group_count, |groups| groups.min(self.group_count))
    }

    /// Returns the group of an inode, and its index in the group's table.
    pub fn inode_position(&self, inode: InodeNumber) -> Result<(GroupNumber, u32)> {
        let max = u64::from(self.inode_count);
        if inode.0 == 0 || inode.0 > max {
            let problem = Problem::Range { field: "inode number", found: inode.0, min: 1, max };
            return Err(Error::corrupt("inode reference", Location::inode(inode), problem));
        }
        // At most `inode_count`, so 32 bits are enough.
        let index = (inode.0 - 1) as u32;
        Ok((GroupNumber(index / self.inodes_per_group), index % self.inodes_per_group))
    }

    /// Returns whether the inode is reserved for the format's own use. The root counts as ordinary.
    pub fn is_reserved_inode(&self, inode: InodeNumber) -> bool {
        inode.0 < self.first_inode.into() && inode != crate::ROOT_INODE
    }

    /// Returns the clusters that contain `count` blocks from `start` on, counted from the volume's
    /// first. The blocks lie in the volume, after its first block.
    pub(crate) fn clusters_of(&self, start: FsBlock, count: u64) -> Range<u64> {
        let first = start.0.saturating_sub(self.first_data_block.0);
        first >> self.cluster_shift..self.clusters_for(first + count)
    }

    /// Returns the first block of a cluster of this volume.
    pub(crate) fn cluster_start(&self, cluster: u64) -> FsBlock {
        FsBlock(self.first_data_block.0 + (cluster << self.cluster_shift))
    }

    /// Returns the block with the descriptor of a group of this volume, and the descriptor's offset
    /// in the block.
    pub(crate) fn descriptor_position(&self, group: GroupNumber) -> (FsBlock, usize) {
        let per_block = self.descriptors_per_block();
        let at = group.0 % per_block * self.descriptor_size;
        (self.descriptor_block(group.0 / per_block), at as usize)
    }

    /// Returns whether `count` blocks from `start` on lie in the volume and after its superblock.
    pub fn contains_run(&self, start: FsBlock, count: u64) -> bool {
        start > self.first_data_block
            && start.checked_add(count).is_some_and(|end| end.0 <= self.block_count)
    }

    /// Checks a reference to blocks. Errors: `Corrupt` if they are outside the volume.
    pub fn check_run(
        &self,
        structure: &'static str,
        location: Location,
        start: FsBlock,
        count: u64,
    ) -> Result<()> {
        if self.contains_run(start, count) {
            return Ok(());
        }
        let problem = Problem::Range {
            field: "block",
            found: start.0,
            min: self.first_data_block.0 + 1,
            max: self.block_count.saturating_sub(count.max(1)),
        };
        Err(Error::corrupt(structure, location, problem))
    }

    /// Returns whether the group begins with a superblock or a copy of it.
    pub fn has_superblock(&self, group: GroupNumber) -> bool {
        let group = group.0;
        match self.superblock_copies {
            _ if group == 0 => true,
            SuperblockCopies::Two(copies) => copies.contains(&group),
            SuperblockCopies::All => true,
            SuperblockCopies::Sparse => {
                group == 1 || [3, 5, 7].into_iter().any(|base| is_power_of(base, group))
            }
        }
    }

    /// Returns the block that contains the superblock.
    pub fn superblock_block(&self) -> FsBlock {
        FsBlock(1024 >> self.block_size.shift())
    }

    /// Returns the block that contains part `index` of the group descriptors.
    pub fn descriptor_block(&self, index: u32) -> FsBlock {
        if index < self.first_meta_descriptor_block {
            let superblock = self.copy_in_use.unwrap_or(self.superblock_block());
            return FsBlock(superblock.0 + 1 + u64::from(index));
        }
        // `index < descriptor_blocks()`, so the product is at most `group_count`.
        let first = index * self.descriptors_per_block();
        // If a meta group has a second group, that one has the first copy of its descriptors.
        let has_copy = self.copy_in_use.is_some() && first + 1 < self.group_count;
        let group = GroupNumber(first + u32::from(has_copy));
        let mut skip = u64::from(self.has_superblock(group));
        if group.0 == 0 && self.first_data_block.0 == 0 && self.block_size.bytes() == 1024 {
            // With clusters of 1 KiB blocks, group 0 begins with block 0, before the superblock.
            skip += 1;
        }
        FsBlock(self.group_start(group).0 + skip)
    }

    /// Returns the number of descriptor blocks at the start of a group, without those reserved for
    /// growth.
    pub fn descriptor_blocks_in_group(&self, group: GroupNumber) -> u32 {
        let per_block = self.descriptors_per_block();
        let index = group.0 / per_block;
        if index < self.first_meta_descriptor_block {
            let blocks = self.descriptor_blocks().min(self.first_meta_descriptor_block);
            return if self.has_superblock(group) { blocks } else { 0 };
        }
        // The first, second and last group of a meta group have its descriptors.
        u32::from([0, 1, per_block - 1].contains(&(group.0 % per_block)))
    }

    /// Returns the blocks at the start of a group that hold the superblock, descriptors and room
    /// for growth; in group 0, including the blocks before the superblock.
    pub(crate) fn leading_zone(&self, group: GroupNumber) -> Range<u64> {
        let start = self.group_start(group);
        // With clusters of 1 KiB blocks, group 0 begins with block 0.
        let before =
            if group.0 == 0 { self.superblock_block().0.saturating_sub(start.0) } else { 0 };
        let blocks = before + self.leading_metadata_blocks(group);
        start.0..start.0 + blocks.min(self.blocks_in_group(group))
    }

    /// Returns the number of blocks at the start of a group that hold the superblock, descriptors
    /// and room for growth.
    pub fn leading_metadata_blocks(&self, group: GroupNumber) -> u64 {
        let copy = self.has_superblock(group);
        let in_old_layout =
            group.0 / self.descriptors_per_block() < self.first_meta_descriptor_block;
        let reserved = if copy && in_old_layout { self.reserved_descriptor_blocks } else { 0 };
        u64::from(copy) + u64::from(self.descriptor_blocks_in_group(group)) + u64::from(reserved)
    }
}

fn is_power_of(base: u32, number: u32) -> bool {
    let mut power = u64::from(base);
    while power < number.into() {
        power *= u64::from(base);
    }
    power == u64::from(number)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a volume with 40,000 blocks of 4 KiB, two groups, and common features.
    pub(crate) fn plain() -> Geometry {
        Geometry {
            features: Features { incompatible: 0x242, ..Features::default() },
            creator: CreatorOs::Linux,
            block_size: BlockSize::from_bytes(4096).unwrap(),
            cluster_shift: 0,
            block_count: 40_000,
            first_data_block: FsBlock(0),
            blocks_per_group: 32_768,
            inodes_per_group: 8192,
            inode_count: 16_384,
            group_count: 2,
            inode_size: 256,
            first_inode: 11,
            descriptor_size: 32,
            reserved_descriptor_blocks: 0,
            first_meta_descriptor_block: u32::MAX,
            superblock_copies: SuperblockCopies::Sparse,
            checksum_seed: 0,
            uuid: [0; 16],
            copy_in_use: None,
        }
    }

    #[test]
    fn groups_before_a_block_are_whole() {
        let geometry = Geometry {
            first_data_block: FsBlock(1),
            blocks_per_group: 8192,
            block_count: 100_000,
            group_count: 13,
            ..plain()
        };
        let groups = |end| geometry.groups_before(FsBlock(end));
        assert_eq!([0, 8192, 8193, 16_384, 16_385].map(groups), [0, 0, 1, 1, 2]);
        // The last group is shorter.
        assert_eq!([99_999, 100_000, 1 << 40].map(groups), [12, 13, 13]);
    }

    #[test]
    fn sparse_copies_are_in_groups_0_1_and_powers_of_3_5_7() {
        let geometry = plain();
        let groups: Vec<u32> =
            (0..130).filter(|&group| geometry.has_superblock(GroupNumber(group))).collect();
        assert_eq!(groups, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
        // 3^20, and a number at the end of the type's range.
        assert!(geometry.has_superblock(GroupNumber(3_486_784_401)));
        assert!(!geometry.has_superblock(GroupNumber(u32::MAX)));
    }

    #[test]
    fn the_first_second_and_last_group_of_a_meta_group_have_its_descriptors() {
        let geometry = Geometry {
            block_count: 32_768 * 600,
            group_count: 600,
            first_meta_descriptor_block: 2,
            ..plain()
        };
        assert_eq!(geometry.descriptor_block(1), FsBlock(2));
        assert_eq!(geometry.descriptor_block(2), FsBlock(256 * 32_768));
        assert_eq!(geometry.descriptor_blocks_in_group(GroupNumber(3)), 2);
        assert_eq!(geometry.descriptor_blocks_in_group(GroupNumber(4)), 0);
        assert_eq!(geometry.descriptor_blocks_in_group(GroupNumber(257)), 1);
        assert_eq!(geometry.descriptor_blocks_in_group(GroupNumber(258)), 0);
        assert_eq!(geometry.descriptor_blocks_in_group(GroupNumber(383)), 1);
    }

    #[test]
    fn runs_must_lie_after_the_superblock_and_within_the_volume() {
        let geometry = plain();
        assert!(geometry.contains_run(FsBlock(1), 39_999));
        assert!(!geometry.contains_run(FsBlock(0), 1));
        assert!(!geometry.contains_run(FsBlock(2), 39_999));
        assert!(!geometry.contains_run(FsBlock(u64::MAX), 2));
    }
}
