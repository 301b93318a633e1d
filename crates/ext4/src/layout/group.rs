//! Group descriptors: parsing, validation, and checksums.
//! Not here: the bitmaps.

use base::checksum::{crc16, crc32c};
use base::{Error, FsBlock, GroupNumber, Location, Problem, Result};
use zerocopy::FromBytes;

use crate::features::Feature;
use crate::layout::geometry::Geometry;
use crate::ondisk::group_descriptor::{
    CHECKSUM_OFFSET, RawGroupDescriptor, RawGroupDescriptorHigh,
};
use base::view::view_at;

const STRUCTURE: &str = "group descriptor";
/// The flag of a group whose inodes were never written.
pub(crate) const INODES_UNINITIALISED: u16 = 1;
/// The flag of a group whose block bitmap was never written.
pub(crate) const BLOCKS_UNINITIALISED: u16 = 2;
const INODE_TABLE_ZEROED: u16 = 4;

/// A validated group descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupDescriptor {
    /// The group.
    pub group: GroupNumber,
    /// The block that holds the bitmap of clusters in use.
    pub block_bitmap: FsBlock,
    /// The block that holds the bitmap of inodes in use.
    pub inode_bitmap: FsBlock,
    /// The first block of the inode table.
    pub inode_table: FsBlock,
    /// Clusters not in use.
    pub free_clusters: u32,
    /// Inodes not in use.
    pub free_inodes: u32,
    /// Inodes in use that are directories.
    pub directories: u32,
    /// Inodes at the table's end that were never used. Meaningful only if the volume allows
    /// uninitialised groups.
    pub unused_inodes: u32,
    /// Whether the block bitmap was never written: only metadata is in use.
    pub blocks_uninitialised: bool,
    /// Whether the inode bitmap and the table were never written: no inode is in use.
    pub inodes_uninitialised: bool,
    /// Whether the inode table was zeroed.
    pub inode_table_zeroed: bool,
    /// Checksum of the block bitmap; 16 bits in descriptors of 32 bytes.
    pub block_bitmap_checksum: u32,
    /// Checksum of the inode bitmap; 16 bits in descriptors of 32 bytes.
    pub inode_bitmap_checksum: u32,
}

impl GroupDescriptor {
    /// Parses and validates the descriptor of `group`; `bytes` are `geometry.descriptor_size` at
    /// `location`.
    pub fn parse(
        bytes: &[u8],
        geometry: &Geometry,
        group: GroupNumber,
        location: Location,
    ) -> Result<Self> {
        let low: &RawGroupDescriptor = view_at(bytes, 0, STRUCTURE, location)?;
        verify_checksum(bytes, low.checksum.get(), geometry, group, location)?;
        let zero;
        let high: &RawGroupDescriptorHigh = if geometry.descriptor_size >= 64 {
            view_at(bytes, size_of::<RawGroupDescriptor>(), STRUCTURE, location)?
        } else {
            zero = zerocopy::FromZeros::new_zeroed();
            &zero
        };
        let block = |low: u32, high: u32| FsBlock(u64::from(high) << 32 | u64::from(low));
        let join = |low: u16, high: u16| u32::from(high) << 16 | u32::from(low);
        let flag = |bit| geometry.has_group_checksums() && low.flags.get() & bit != 0;
        let descriptor = Self {
            group,
            block_bitmap: block(low.block_bitmap_lo.get(), high.block_bitmap_hi.get()),
            inode_bitmap: block(low.inode_bitmap_lo.get(), high.inode_bitmap_hi.get()),
            inode_table: block(low.inode_table_lo.get(), high.inode_table_hi.get()),
            free_clusters: join(low.free_blocks_count_lo.get(), high.free_blocks_count_hi.get()),
            free_inodes: join(low.free_inodes_count_lo.get(), high.free_inodes_count_hi.get()),
            directories: join(low.used_dirs_count_lo.get(), high.used_dirs_count_hi.get()),
            unused_inodes: join(low.itable_unused_lo.get(), high.itable_unused_hi.get()),
            blocks_uninitialised: flag(BLOCKS_UNINITIALISED),
            inodes_uninitialised: flag(INODES_UNINITIALISED),
            inode_table_zeroed: flag(INODE_TABLE_ZEROED),
            block_bitmap_checksum: join(
                low.block_bitmap_csum_lo.get(),
                high.block_bitmap_csum_hi.get(),
            ),
            inode_bitmap_checksum: join(
                low.inode_bitmap_csum_lo.get(),
                high.inode_bitmap_csum_hi.get(),
            ),
        };
        descriptor.check_positions(geometry, location)?;
        Ok(descriptor)
    }

    /// Writes the counts, the bitmaps' checksums and the flags of initialised parts to the
    /// descriptor in `bytes`, then its checksum.
    pub(crate) fn store(&self, bytes: &mut [u8], geometry: &Geometry) {
        let Ok((low, rest)) = RawGroupDescriptor::mut_from_prefix(bytes) else {
            unreachable!("descriptors have at least 32 bytes");
        };
        low.free_blocks_count_lo = (self.free_clusters as u16).into();
        low.free_inodes_count_lo = (self.free_inodes as u16).into();
        low.used_dirs_count_lo = (self.directories as u16).into();
        low.itable_unused_lo = (self.unused_inodes as u16).into();
        low.block_bitmap_csum_lo = (self.block_bitmap_checksum as u16).into();
        low.inode_bitmap_csum_lo = (self.inode_bitmap_checksum as u16).into();
        let mut flags = low.flags.get();
        for (set, flag) in [
            (self.inodes_uninitialised, INODES_UNINITIALISED),
            (self.blocks_uninitialised, BLOCKS_UNINITIALISED),
        ] {
            if !set {
                flags &= !flag;
            }
        }
        low.flags = flags.into();
        if let Ok((high, _)) = RawGroupDescriptorHigh::mut_from_prefix(rest) {
            high.free_blocks_count_hi = ((self.free_clusters >> 16) as u16).into();
            high.free_inodes_count_hi = ((self.free_inodes >> 16) as u16).into();
            high.used_dirs_count_hi = ((self.directories >> 16) as u16).into();
            high.itable_unused_hi = ((self.unused_inodes >> 16) as u16).into();
            high.block_bitmap_csum_hi = ((self.block_bitmap_checksum >> 16) as u16).into();
            high.inode_bitmap_csum_hi = ((self.inode_bitmap_checksum >> 16) as u16).into();
        }
        if let Some(checksum) = checksum(bytes, geometry, self.group) {
            if let Ok((low, _)) = RawGroupDescriptor::mut_from_prefix(bytes) {
                low.checksum = checksum.into();
            }
        }
    }

    /// Verifies that bitmaps and table lie in the volume, and without `flex_bg` in their own group.
    fn check_positions(&self, geometry: &Geometry, location: Location) -> Result<()> {
        let (start, end) = if geometry.features.has(Feature::FlexBg) {
            (geometry.first_data_block.0 + 1, geometry.block_count)
        } else {
            let start = geometry.group_start(self.group).0;
            (start, start + geometry.blocks_in_group(self.group))
        };
        for (field, block, count) in [
            ("block bitmap", self.block_bitmap, 1),
            ("inode bitmap", self.inode_bitmap, 1),
            ("inode table", self.inode_table, geometry.inode_table_blocks().into()),
        ] {
            let max = end.saturating_sub(count);
            if block.0 < start || block.0 > max {
                let problem = Problem::Range { field, found: block.0, min: start, max };
                return Err(Error::corrupt(STRUCTURE, location, problem));
            }
        }
        Ok(())
    }
}

/// Returns the correct checksum of a descriptor; `None` if the volume's descriptors have no
/// checksums. If a volume has both `metadata_csum` and `uninit_bg`, the former takes precedence.
pub(crate) fn checksum(bytes: &[u8], geometry: &Geometry, group: GroupNumber) -> Option<u16> {
    let size = geometry.descriptor_size as usize;
    let before = bytes.get(..CHECKSUM_OFFSET).unwrap_or_default();
    let after = bytes.get(CHECKSUM_OFFSET + 2..size).unwrap_or_default();
    let number = group.0.to_le_bytes();
    if let Some(seed) = geometry.metadata_seed() {
        let head = crc32c(crc32c(seed, &number), before);
        Some(crc32c(crc32c(head, &[0; 2]), after) as u16)
    } else if geometry.features.has(Feature::UninitBg) {
        let head = crc16(crc16(crc16(!0, &geometry.uuid), &number), before);
        Some(crc16(head, after))
    } else {
        None
    }
}

fn verify_checksum(
    bytes: &[u8],
    stored: u16,
    geometry: &Geometry,
    group: GroupNumber,
    location: Location,
) -> Result<()> {
    let Some(computed) = checksum(bytes, geometry, group) else { return Ok(()) };
    if stored != computed {
        let problem = Problem::Checksum { stored: stored.into(), computed: computed.into() };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::layout::geometry::tests::plain;
    use proptest::prelude::*;

    /// Returns a descriptor of group 1 of [`plain`], whose blocks are 32768 to 39999.
    fn descriptor(block_bitmap: u32, inode_bitmap: u32, inode_table: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [block_bitmap, inode_bitmap, inode_table].map(u32::to_le_bytes).concat();
        bytes.resize(32, 0);
        bytes
    }

    fn parse(bytes: &[u8], geometry: &Geometry) -> Result<GroupDescriptor> {
        GroupDescriptor::parse(bytes, geometry, GroupNumber(1), Location::default())
    }

    #[test]
    fn without_flex_bg_bitmaps_and_table_must_lie_in_their_own_group() {
        let flexible = plain();
        let features = Features { incompatible: 0x42, ..Features::default() };
        let rigid = Geometry { features, ..plain() };
        assert!(parse(&descriptor(32_768, 32_769, 32_770), &rigid).is_ok());
        for bytes in [
            descriptor(32_767, 32_769, 32_770),
            descriptor(32_768, 40_000, 32_770),
            // The table has 512 blocks.
            descriptor(32_768, 32_769, 39_489),
        ] {
            assert!(parse(&bytes, &rigid).is_err());
        }
        assert!(parse(&descriptor(32_767, 32_769, 32_770), &flexible).is_ok());
        assert!(parse(&descriptor(0, 32_769, 32_770), &flexible).is_err());
        assert!(parse(&descriptor(32_768, 32_769, u32::MAX), &flexible).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_parse_to_an_error_or_a_descriptor(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            features in any::<[u32; 3]>(),
            descriptor_size in prop_oneof![Just(32), Just(64), Just(1024)],
        ) {
            let [compatible, incompatible, read_only_compatible] = features;
            let features = Features { compatible, incompatible, read_only_compatible };
            let _ = parse(&bytes, &Geometry { features, descriptor_size, ..plain() });
        }
    }
}
