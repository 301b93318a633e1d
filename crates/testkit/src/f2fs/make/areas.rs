//! The areas of a new volume: where they begin, how large they are, and how much of the main area
//! users get.

use base::{Error, Result};

use f2fs::ondisk::checkpoint::RawCheckpoint;
use f2fs::ondisk::nat::RawNatEntry;

use super::tables::SIT_ENTRY_BYTES;
use super::{LOGS, MakeOptions, SEGMENT_BLOCKS};

/// Segments of the checkpoint area: one for each pack.
const CHECKPOINT_SEGMENTS: u32 = 2;
/// Bytes of a CRC.
const CRC_BYTES: usize = 4;

/// First blocks and sizes of the areas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Areas {
    /// Blocks of the device.
    pub block_count: u64,
    /// Segments of all areas.
    pub segments: u32,
    /// First block of the checkpoint area.
    pub checkpoint: u32,
    /// First block of the segment information table.
    pub sit: u32,
    /// Segments of both copies of the segment information table.
    pub sit_segments: u32,
    /// First block of the node address table.
    pub nat: u32,
    /// Segments of both copies of the node address table.
    pub nat_segments: u32,
    /// First block of the segment summary area.
    pub ssa: u32,
    /// Segments of the segment summary area.
    pub ssa_segments: u32,
    /// First block of the main area.
    pub main: u32,
    /// Segments of the main area.
    pub main_segments: u32,
    /// Segments that are reserved for cleaning.
    pub reserved_segments: u32,
    /// Segments that users do not get, with the reserved ones.
    pub overprovision_segments: u32,
    /// The current segment of each log.
    pub log_segments: [u32; LOGS],
}

impl Areas {
    /// Chooses the areas. Errors: `InvalidArgument` for a device that is too small or too large.
    pub fn plan(options: &MakeOptions) -> Result<Self> {
        let too_large = Error::InvalidArgument("the volume is too large");
        let too_small = || Error::InvalidArgument("the volume is too small");
        let block_count = options.bytes >> options.block_size.shift();
        let zone = options
            .segments_per_section
            .checked_mul(options.sections_per_zone)
            .filter(|zone| *zone > 0)
            .ok_or(Error::InvalidArgument("sections or zones of no segments, or of too many"))?;
        // Addresses have 32 bits, and the two largest ones have other meanings.
        let addressable = u32::try_from(block_count).ok().filter(|blocks| *blocks < u32::MAX - 1);
        let blocks = addressable.ok_or_else(|| too_large.clone())?;
        // The superblocks are in front of the first zone.
        let checkpoint = zone.checked_mul(SEGMENT_BLOCKS).ok_or_else(|| too_large.clone())?;
        let segments = blocks.checked_sub(checkpoint).ok_or_else(too_small)? / SEGMENT_BLOCKS;
        let segments = segments / zone * zone;

        let block_bytes = options.block_size.bytes();
        let sit_per_block = block_bytes / SIT_ENTRY_BYTES as u32;
        let sit_segments = 2 * segments.div_ceil(sit_per_block).div_ceil(SEGMENT_BLOCKS);
        let rest =
            segments.checked_sub(CHECKPOINT_SEGMENTS + sit_segments).ok_or_else(too_small)?;
        // A node for each block, as far as the version bitmaps fit into a block.
        let nat_per_block = block_bytes / size_of::<RawNatEntry>() as u32;
        let nat_needed = (rest * SEGMENT_BLOCKS).div_ceil(nat_per_block).div_ceil(SEGMENT_BLOCKS);
        let bitmap_bytes = options.block_size.len() - size_of::<RawCheckpoint>() - CRC_BYTES;
        let bitmap_segments = bitmap_bytes as u32 / (SEGMENT_BLOCKS / 8);
        let nat_max = bitmap_segments.saturating_sub(sit_segments / 2);
        if nat_max == 0 {
            return Err(too_large);
        }
        let nat_segments = 2 * nat_needed.min(nat_max);
        let rest = rest.checked_sub(nat_segments).ok_or_else(too_small)?;
        let summaries_per_block = block_bytes / options.summary_bytes() as u32;
        let ssa_segments = rest.div_ceil(summaries_per_block).div_ceil(SEGMENT_BLOCKS);
        // The main area begins with a zone.
        let before = CHECKPOINT_SEGMENTS + sit_segments + nat_segments + ssa_segments;
        let ssa_segments = ssa_segments + before.next_multiple_of(zone) - before;
        let main_segments = rest.checked_sub(ssa_segments).ok_or_else(too_small)?;

        let sit = checkpoint + CHECKPOINT_SEGMENTS * SEGMENT_BLOCKS;
        let nat = sit + sit_segments * SEGMENT_BLOCKS;
        let ssa = nat + nat_segments * SEGMENT_BLOCKS;
        let sections = main_segments / options.segments_per_section;
        let (reserved, overprovision) = reserve(sections).ok_or_else(too_small)?;
        if main_segments / zone < LOGS as u32 {
            return Err(too_small());
        }
        Ok(Self {
            block_count,
            segments,
            checkpoint,
            sit,
            sit_segments,
            nat,
            nat_segments,
            ssa,
            ssa_segments,
            main: ssa + ssa_segments * SEGMENT_BLOCKS,
            main_segments,
            reserved_segments: reserved * options.segments_per_section,
            overprovision_segments: overprovision * options.segments_per_section,
            // Nodes first, and each log in a zone of its own.
            log_segments: [3, 4, 5, 0, 1, 2].map(|number| number * zone),
        })
    }

    /// Returns the number of blocks of the main area that users get.
    pub fn user_blocks(&self) -> u64 {
        u64::from(self.main_segments - self.overprovision_segments) * u64::from(SEGMENT_BLOCKS)
    }

    /// Returns the block in the main area that is `offset` blocks into a segment.
    pub fn block(&self, segment: u32, offset: u32) -> u32 {
        self.main + segment * SEGMENT_BLOCKS + offset
    }

    /// Returns the sizes of both version bitmaps in bytes: those of the segment information table
    /// and of the node address table.
    pub fn bitmap_bytes(&self) -> [usize; 2] {
        [self.sit_segments, self.nat_segments]
            .map(|segments| (segments / 2 * SEGMENT_BLOCKS / 8) as usize)
    }
}

/// Returns the sections that are reserved for cleaning, and those that users do not get, with the
/// former. Cleaning a full volume moves the contents of as many sections as have the size of a
/// section free together. The part of the space that is not offered is chosen so that users get
/// most. `None`: there are too few sections.
fn reserve(sections: u32) -> Option<(u32, u32)> {
    let split = |percent: u32| {
        let reserved = 2 * (100 / percent + 1) + LOGS as u32;
        let rest = sections.checked_sub(reserved)?;
        // Two more, so that cleaning begins before they are needed.
        let overprovision = (rest * percent / 100).max(reserved) + 2;
        (overprovision < sections).then_some((reserved, overprovision))
    };
    (1..=60).filter_map(split).min_by_key(|(_, overprovision)| *overprovision)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use base::BlockSize;

    use super::*;
    use crate::f2fs::Kind;
    use crate::{Random, must};

    const PACKED_SSA: u32 = 0x1_0000;

    fn options(shift: u32, bytes: u64) -> MakeOptions {
        MakeOptions::new(BlockSize::from_shift(shift).expect("a block size"), bytes)
    }

    #[test]
    fn areas_are_those_of_mkfs() {
        let folder = must(tempfile::TempDir::new(), "a folder");
        for megabytes in [64, 300, 5000, 200_000] {
            let path = folder.path().join("image");
            Kind::named("plain").make(&path, megabytes);
            let mut superblock = [0; 104];
            must(must(File::open(&path), "the image").read_exact_at(&mut superblock, 1024), "");
            let areas = Areas::plan(&options(12, megabytes << 20)).expect("areas");
            // From the number of segments to the first block of the main area.
            let fields = [
                areas.segments,
                CHECKPOINT_SEGMENTS,
                areas.sit_segments,
                areas.nat_segments,
                areas.ssa_segments,
                areas.main_segments,
                areas.checkpoint,
                areas.checkpoint,
                areas.sit,
                areas.nat,
                areas.ssa,
                areas.main,
            ];
            let found: Vec<u32> = superblock[48..96]
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes(word.try_into().expect("a word")))
                .collect();
            assert_eq!(found, fields, "{megabytes} MiB");
        }
    }

    #[test]
    fn areas_follow_each_other_and_hold_all_entries() {
        for seed in 0..2000 {
            let mut random = Random(seed);
            let shift = *random.pick(&[12, 14]).expect("a shift");
            let mut options = options(shift, random.draw() >> (22 + random.below(14)));
            if shift == 14 && random.below(2) == 0 {
                options.features = PACKED_SSA;
            }
            options.segments_per_section = 1 + random.below(5) as u32;
            options.sections_per_zone = 1 + random.below(3) as u32;
            let Ok(areas) = Areas::plan(&options) else { continue };
            let zone = options.segments_per_section * options.sections_per_zone;
            let end = u64::from(areas.main) + u64::from(areas.main_segments) * 512;
            assert!(end <= areas.block_count, "seed {seed}: {areas:?}");
            assert_eq!(end, u64::from(areas.checkpoint) + u64::from(areas.segments) * 512);
            assert_eq!(
                (areas.main / 512 % zone, areas.main_segments % zone),
                (0, 0),
                "seed {seed}"
            );
            // An entry of 74 bytes for each segment, in each copy.
            let entries =
                u64::from(areas.sit_segments / 2) * 512 * (options.block_size.len() / 74) as u64;
            assert!(entries >= areas.main_segments.into(), "seed {seed}: {areas:?}");
            let summaries = u64::from(areas.ssa_segments)
                * 512
                * (options.block_size.len() / options.summary_bytes()) as u64;
            assert!(summaries >= areas.main_segments.into(), "seed {seed}: {areas:?}");
            let bitmaps: usize = areas.bitmap_bytes().into_iter().sum();
            assert!(192 + 4 + bitmaps <= options.block_size.len(), "seed {seed}: {areas:?}");
            assert!(areas.reserved_segments > 0 && areas.user_blocks() > 0, "seed {seed}");
            assert!(areas.overprovision_segments >= areas.reserved_segments, "seed {seed}");
        }
    }

    #[test]
    fn blocks_of_16_kib_need_few_summary_blocks_if_these_are_packed() {
        let mut options = options(14, 32 << 40);
        let separate = Areas::plan(&options).expect("areas").ssa_segments;
        options.features = PACKED_SSA;
        let packed = Areas::plan(&options).expect("areas").ssa_segments;
        assert_eq!(packed, separate.div_ceil(4));
    }

    #[test]
    fn volumes_that_are_too_small_or_too_large_are_refused() {
        for (shift, bytes) in
            [(12, 0), (12, 8 << 20), (14, 100 << 20), (12, 16 << 40), (14, 1 << 50)]
        {
            let error = Areas::plan(&options(shift, bytes)).expect_err("no areas");
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        }
    }
}
