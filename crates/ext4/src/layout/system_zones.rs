//! System zones: the blocks that hold the format's own structures. They are never allocated or freed, even if a
//! bitmap marks them as free, and no file except the journal has any of them (`layout/block_validity.rs`).
//!
//! - Fixed zones: superblock copies, group descriptors and the blocks reserved for more of them, bitmaps, inode
//!   tables, and the multiple-mount protection block.
//! - Journal zones: the blocks of an internal journal, including the blocks of its map.
//!
//! Both are collected on first use, and do not change while the volume is open.

use std::ops::Range;

use base::{Error, FsBlock, GroupNumber, Location, Problem, Result, Unsupported};

use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;
use crate::recovery;
use crate::volume::Volume;
use crate::volume::mmp::MmpBlock;

/// The maximum number of zones in memory, 64 MiB. Volumes of 1 PiB have fewer, unless their metadata was scattered on
/// purpose.
const ZONES_MAX: usize = 1 << 22;
/// The maximum number of groups whose zones are collected. Volumes with more groups are not written; a hostile image
/// in a sparse file can have 2^31.
const GROUPS_MAX: u32 = 1 << 22;

/// Ranges of blocks, in ascending order, with gaps between them.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    ranges: Vec<Range<u64>>,
    /// Blocks that two structures claim, if there are any.
    overlap: Option<Range<u64>>,
    /// Whether zones are missing, since there are more than the maximum.
    is_incomplete: bool,
}

impl Zones {
    /// Collects the fixed zones of a volume. For a descriptor that cannot be read, adds only the blocks at the start
    /// of its group, since other code cannot find its other blocks either.
    fn fixed(volume: &Volume) -> Self {
        let (geometry, mut zones) = (volume.geometry(), Self::default());
        if geometry.group_count > GROUPS_MAX {
            tracing::warn!("the volume has too many groups for their metadata to be protected");
            return Self { is_incomplete: true, ..zones };
        }
        for number in (0..geometry.group_count).map(GroupNumber) {
            if zones.ranges.len() >= ZONES_MAX {
                tracing::warn!("the volume has too many metadata zones: some are not protected");
                zones.is_incomplete = true;
                break;
            }
            let blocks = geometry.leading_zone(number);
            zones.push(FsBlock(blocks.start), blocks.end - blocks.start);
            match volume.group(number) {
                Ok(descriptor) => zones.add(geometry, &descriptor),
                Err(error) => tracing::debug!(%error, "a group without system zones"),
            }
        }
        if let Ok(Some(mmp)) = MmpBlock::of(volume) {
            zones.push(mmp.block(), 1);
        }
        zones.finish()
    }

    /// Collects the zones of an internal journal. There are none if the journal cannot be found.
    fn of_journal(volume: &Volume) -> Self {
        let runs = recovery::journal_runs(volume);
        if runs.is_incomplete {
            tracing::warn!("the journal is in too many pieces: some are not protected");
        }
        let mut zones = Self { is_incomplete: runs.is_incomplete, ..Self::default() };
        for run in runs.ranges {
            zones.push(FsBlock(run.start), run.end - run.start);
        }
        zones.finish()
    }

    /// Adds the blocks that a group's descriptor refers to.
    fn add(&mut self, geometry: &Geometry, group: &GroupDescriptor) {
        self.push(group.block_bitmap, 1);
        self.push(group.inode_bitmap, 1);
        self.push(group.inode_table, geometry.inode_table_blocks().into());
    }

    /// Adds a range. In a flexible group, most ranges continue one that was added shortly before.
    fn push(&mut self, start: FsBlock, count: u64) {
        let range = start.0..start.0 + count;
        match self.ranges.iter_mut().rev().take(4).find(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None if count > 0 => self.ranges.push(range),
            None => {}
        }
    }

    /// Sorts and joins the ranges.
    fn finish(mut self) -> Self {
        self.ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in self.ranges {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => {
                    if range.start < last.end {
                        self.overlap.get_or_insert(range.start..range.end.min(last.end));
                    }
                    last.end = last.end.max(range.end);
                }
                _ => joined.push(range),
            }
        }
        joined.shrink_to_fit();
        Self { ranges: joined, ..self }
    }

    /// Returns an error if zones overlap, or are missing.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_incomplete {
            let operation = "writing a volume whose metadata is in too many pieces";
            return Err(Unsupported::Operation(operation).into());
        }
        let Some(overlap) = &self.overlap else { return Ok(()) };
        let location = Location::block(FsBlock(overlap.start));
        let problem = Problem::Shared { blocks: overlap.end - overlap.start };
        Err(Error::corrupt("system zone", location, problem))
    }

    /// Iterates over the zones that intersect a range of blocks.
    fn zones_in(&self, blocks: Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let first = self.ranges.partition_point(|zone| zone.end <= blocks.start);
        self.ranges[first..].iter().take_while(move |zone| zone.start < blocks.end)
    }

    /// Iterates over the parts of zones in a range of blocks.
    pub(crate) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let zones = self.zones_in(blocks.clone());
        zones.map(move |zone| zone.start.max(blocks.start)..zone.end.min(blocks.end))
    }

    /// Returns the range of blocks around `block` that are in no zone. Errors: the zone that contains `block`.
    pub(crate) fn gap_around(&self, block: FsBlock) -> std::result::Result<Range<u64>, Range<u64>> {
        let next = self.ranges.partition_point(|zone| zone.end <= block.0);
        let start = next.checked_sub(1).map_or(0, |before| self.ranges[before].end);
        match self.ranges.get(next) {
            Some(zone) if zone.start <= block.0 => Err(zone.clone()),
            Some(zone) => Ok(start..zone.start),
            None => Ok(start..u64::MAX),
        }
    }
}

/// The zones of a volume that is open for writing.
#[derive(Clone, Copy)]
pub(crate) struct SystemZones<'v> {
    pub fixed: &'v Zones,
    pub journal: &'v Zones,
}

impl SystemZones<'_> {
    /// Returns an error if two structures claim the same blocks, or if zones are missing.
    pub(crate) fn check(self) -> Result<()> {
        self.fixed.check()?;
        self.journal.check()?;
        let overlap =
            self.journal.ranges.iter().find_map(|run| self.fixed.within(run.clone()).next());
        let Some(overlap) = overlap else { return Ok(()) };
        let location = Location::block(FsBlock(overlap.start));
        let problem = Problem::SystemZone { first: overlap.start, last: overlap.end - 1 };
        Err(Error::corrupt("journal", location, problem))
    }

    /// Returns the first zone in a range of blocks.
    pub(crate) fn first_within(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        let fixed = self.fixed.within(blocks.clone()).next();
        fixed.or_else(|| self.journal.within(blocks).next())
    }

    /// Returns the zones of a group, as clusters of that group.
    pub(crate) fn clusters_in(
        self,
        geometry: &Geometry,
        group: GroupNumber,
    ) -> impl Iterator<Item = Range<u32>> {
        let (start, shift) = (geometry.group_start(group).0, geometry.cluster_shift);
        let blocks = start..start + geometry.blocks_in_group(group);
        let zones = self.fixed.within(blocks.clone()).chain(self.journal.within(blocks));
        // The numbers fit: a group has at most as many clusters as a block has bits.
        zones.map(move |zone| {
            let (first, end) = (zone.start - start, zone.end - start);
            (first >> shift) as u32..end.div_ceil(1 << shift) as u32
        })
    }
}

impl Volume {
    /// Returns the fixed zones. They are collected once.
    pub(crate) fn fixed_zones(&self) -> &Zones {
        self.fixed_zones.get_or_init(|| Zones::fixed(self))
    }

    /// Returns the journal's zones. They are collected once.
    pub(crate) fn journal_zones(&self) -> &Zones {
        self.journal_zones.get_or_init(|| Zones::of_journal(self))
    }

    /// Returns all zones.
    pub(crate) fn system_zones(&self) -> SystemZones<'_> {
        SystemZones { fixed: self.fixed_zones(), journal: self.journal_zones() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Zones {
        /// Returns zones with these start blocks and lengths.
        pub(crate) fn of<const N: usize>(ranges: [(u64, u64); N]) -> Self {
            let mut zones = Self::default();
            ranges.into_iter().for_each(|(start, count)| zones.push(FsBlock(start), count));
            zones.finish()
        }
    }

    #[test]
    fn adjacent_zones_are_joined_and_parts_of_zones_are_found() {
        let zones = Zones::of([(100, 10), (0, 5), (110, 1), (104, 8), (50, 0), (5, 2), (200, 1)]);
        assert_eq!(zones.ranges, [0..7, 100..112, 200..201]);
        let within = |blocks| zones.within(blocks).collect::<Vec<_>>();
        assert_eq!(within(6..105), [6..7, 100..105]);
        assert!(within(7..100).is_empty() && within(112..200).is_empty());
        assert_eq!(within(0..1000).len(), 3);
    }

    #[test]
    fn a_gap_extends_from_one_zone_to_the_next() {
        let zones = Zones::of([(0, 5), (100, 10)]);
        let gap = |block| zones.gap_around(FsBlock(block));
        assert_eq!(gap(4), Err(0..5));
        assert_eq!(gap(5), Ok(5..100));
        assert_eq!(gap(99), Ok(5..100));
        assert_eq!(gap(100), Err(100..110));
        assert_eq!(gap(110), Ok(110..u64::MAX));
    }

    #[test]
    fn overlapping_zones_are_refused_and_adjacent_ones_are_not() {
        assert_eq!(Zones::of([(0, 5), (5, 5), (20, 1)]).check(), Ok(()));
        let error = Zones::of([(0, 5), (4, 5)]).check().unwrap_err().to_string();
        assert!(error.contains("block 4"), "{error}");
        assert!(Zones::of([(30, 1), (0, 50)]).check().is_err());
    }
}
