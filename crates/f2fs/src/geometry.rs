//! The areas of a volume, and the limits that follow from the block size.

use std::ops::Range;

use base::{BlockSize, DeviceOffset, Error, FsBlock, InodeNumber, Location, Problem, Result};

use crate::features::{Feature, Features};
use crate::ondisk::nat::RawNatEntry;
use crate::ondisk::node::{INODE_NIDS, RawInode, RawNodeFooter};
use crate::ondisk::sit::RawSitEntry;

/// Blocks in a segment. All volumes have this number.
pub const SEGMENT_BLOCKS: u64 = 512;
/// Bytes in an address of a block or node.
pub const WORD_BYTES: usize = 4;

/// The shape of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The size of blocks: 4 KiB or 16 KiB.
    pub block_size: BlockSize,
    /// Blocks of the volume.
    pub block_count: u64,
    /// Segments in a section, the unit of cleaning. At least one.
    pub segments_per_section: u32,
    /// Sections in a zone.
    pub sections_per_zone: u32,
    /// First block of the checkpoint area, which has two segments.
    pub checkpoint: FsBlock,
    /// Blocks of a checkpoint pack after its first one that hold version bitmaps.
    pub checkpoint_payload: u32,
    /// The segment information table, both copies.
    pub sit: Range<FsBlock>,
    /// The node address table, both copies.
    pub nat: Range<FsBlock>,
    /// The segment summary area.
    pub ssa: Range<FsBlock>,
    /// The main area, with nodes and data.
    pub main: Range<FsBlock>,
    /// Features.
    pub features: Features,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The root directory.
    pub root: InodeNumber,
}

impl Geometry {
    /// Returns the number of segments of the main area.
    pub fn main_segments(&self) -> u32 {
        // The superblock has the number in 32 bits.
        ((self.main.end.0 - self.main.start.0) / SEGMENT_BLOCKS) as u32
    }

    /// Returns the number of blocks of a section.
    pub fn section_blocks(&self) -> u64 {
        u64::from(self.segments_per_section) * SEGMENT_BLOCKS
    }

    /// Returns the segments of a section.
    pub(crate) fn segments_of(&self, section: u32) -> Range<u32> {
        section * self.segments_per_section..(section + 1) * self.segments_per_section
    }

    /// Returns the first block of a segment of the main area.
    pub(crate) fn segment_start(&self, segment: u32) -> FsBlock {
        FsBlock(self.main.start.0 + u64::from(segment) * SEGMENT_BLOCKS)
    }

    /// Returns the segment of a block of the main area, and the block's index in it.
    pub(crate) fn segment_of(&self, block: FsBlock) -> (u32, u64) {
        let from_main = block.0.saturating_sub(self.main.start.0);
        // Addresses of blocks have 32 bits.
        ((from_main / SEGMENT_BLOCKS) as u32, from_main % SEGMENT_BLOCKS)
    }

    /// Returns the place of a block on the device.
    pub(crate) fn device_offset(&self, block: FsBlock) -> DeviceOffset {
        // Blocks of the volume have 32 bits.
        DeviceOffset(block.0 << self.block_size.shift())
    }

    /// Returns the number of addresses, or of node numbers, in a node that is not an inode.
    pub fn addresses_per_node(&self) -> u32 {
        ((self.block_size.len() - size_of::<RawNodeFooter>()) / WORD_BYTES) as u32
    }

    /// Returns the number of words for addresses in an inode without extra attributes and inline
    /// extended attributes.
    pub fn inode_words(&self) -> u32 {
        let fixed = size_of::<RawInode>() + INODE_NIDS * WORD_BYTES + size_of::<RawNodeFooter>();
        ((self.block_size.len() - fixed) / WORD_BYTES) as u32
    }

    /// Returns the number of entries in a block of the node address table.
    pub fn nat_entries_per_block(&self) -> u32 {
        (self.block_size.len() / size_of::<RawNatEntry>()) as u32
    }

    /// Returns the number of entries in a block of the segment information table.
    pub(crate) fn sit_entries_per_block(&self) -> u32 {
        (self.block_size.len() / size_of::<RawSitEntry>()) as u32
    }

    /// Returns the number of blocks of one copy of the node address table.
    pub fn nat_blocks(&self) -> u64 {
        (self.nat.end.0 - self.nat.start.0) / 2
    }

    /// Returns the number of blocks of one copy of the segment information table.
    pub fn sit_blocks(&self) -> u64 {
        (self.sit.end.0 - self.sit.start.0) / 2
    }

    /// Returns both copies of a block of the node address table. Segments of the two copies
    /// alternate.
    pub(crate) fn nat_copies(&self, block: u64) -> [FsBlock; 2] {
        let before = block / SEGMENT_BLOCKS * 2 * SEGMENT_BLOCKS;
        let first = self.nat.start.0 + before + block % SEGMENT_BLOCKS;
        [FsBlock(first), FsBlock(first + SEGMENT_BLOCKS)]
    }

    /// Returns both copies of a block of the segment information table. The second copy of the
    /// table follows the first one.
    pub(crate) fn sit_copies(&self, block: u64) -> [FsBlock; 2] {
        let first = self.sit.start.0 + block;
        [FsBlock(first), FsBlock(first + self.sit_blocks())]
    }

    /// Returns the number of node numbers that the node address table has entries for.
    pub fn nid_count(&self) -> u64 {
        self.nat_blocks() * u64::from(self.nat_entries_per_block())
    }

    /// Returns the size of a summary in bytes.
    pub fn summary_bytes(&self) -> usize {
        if self.features.has(Feature::PackedSummaries) { 4096 } else { self.block_size.len() }
    }

    /// Checks that the segment information table and the segment summary area have all segments of
    /// the main area. Otherwise a checkpoint would write to the areas behind them. Errors:
    /// `Corrupt`.
    pub(crate) fn check_tables(&self) -> Result<()> {
        let segments = u64::from(self.main_segments());
        let sit_entries = self.sit_blocks() * u64::from(self.sit_entries_per_block());
        let summaries = (self.block_size.len() / self.summary_bytes()).max(1) as u64;
        let ssa_entries = (self.ssa.end.0 - self.ssa.start.0) * summaries;
        for (field, max) in [
            ("number of segments for the SIT", sit_entries),
            ("number of segments for the SSA", ssa_entries),
        ] {
            if segments > max {
                let problem = Problem::Range { field, found: segments, min: 1, max };
                return Err(Error::corrupt("superblock", Location::default(), problem));
            }
        }
        Ok(())
    }

    /// Returns `block` if it is in the main area. Errors: `Corrupt` for the reference to it, in
    /// `structure`.
    pub fn main_block(
        &self,
        block: u32,
        structure: &'static str,
        location: Location,
    ) -> Result<FsBlock> {
        let block = FsBlock(block.into());
        if self.main.contains(&block) {
            return Ok(block);
        }
        let (min, max) = (self.main.start.0, self.main.end.0.saturating_sub(1));
        let problem = Problem::Range { field: "block address", found: block.0, min, max };
        Err(Error::corrupt(structure, location, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(shift: u32, features: u32) -> Geometry {
        let area = |start: u64, segments: u64| {
            FsBlock(start * SEGMENT_BLOCKS)..FsBlock((start + segments) * SEGMENT_BLOCKS)
        };
        Geometry {
            block_size: BlockSize::from_shift(shift).unwrap(),
            block_count: 100 * SEGMENT_BLOCKS,
            segments_per_section: 1,
            sections_per_zone: 1,
            checkpoint: FsBlock(SEGMENT_BLOCKS),
            checkpoint_payload: 0,
            sit: area(3, 2),
            nat: area(5, 4),
            ssa: area(9, 1),
            main: area(10, 90),
            features: Features::new(features).unwrap(),
            uuid: [0; 16],
            root: InodeNumber(3),
        }
    }

    #[test]
    fn nodes_and_tables_grow_with_the_block_size() {
        let [small, large] = [12, 14].map(|shift| geometry(shift, 0));
        assert_eq!([small.addresses_per_node(), large.addresses_per_node()], [1018, 4090]);
        assert_eq!([small.inode_words(), large.inode_words()], [923, 3995]);
        assert_eq!([small.nat_entries_per_block(), large.nat_entries_per_block()], [455, 1820]);
        // Two segments for each copy.
        assert_eq!([small.nid_count(), large.nid_count()], [1024 * 455, 1024 * 1820]);
        assert_eq!([small.main_segments(), large.main_segments()], [90, 90]);
    }

    #[test]
    fn the_copies_of_a_table_alternate_in_segments_or_follow_each_other() {
        let geometry = geometry(12, 0);
        let at = |segment: u64, block: u64| FsBlock(segment * SEGMENT_BLOCKS + block);
        assert_eq!(geometry.nat_copies(511), [at(5, 511), at(6, 511)]);
        assert_eq!(geometry.nat_copies(512), [at(7, 0), at(8, 0)]);
        assert_eq!(geometry.sit_copies(511), [at(3, 511), at(4, 511)]);
    }

    #[test]
    fn summaries_have_4_kib_unless_blocks_are_larger_and_summaries_not_packed() {
        const PACKED: u32 = 0x1_0000;
        let bytes = |shift, features| geometry(shift, features).summary_bytes();
        assert_eq!([bytes(12, 0), bytes(12, PACKED)], [4096, 4096]);
        assert_eq!([bytes(14, 0), bytes(14, PACKED)], [16_384, 4096]);
    }
}
