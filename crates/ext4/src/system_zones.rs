//! System zones: the blocks that hold the format's own structures. They are never allocated or
//! freed, even if a bitmap marks them as free, and no file except the journal has any of them
//! (`block_validity.rs`).
//!
//! - Fixed zones: superblock copies, group descriptors and the blocks reserved for more of them,
//!   bitmaps, inode tables, and the multiple-mount protection block.
//! - Journal zones: the blocks of an internal journal, including the blocks of its map.
//!
//! Both are collected on first use, and do not change while the volume is open.

use std::ops::Range;

use base::{Error, FsBlock, GroupNumber, Location, Problem, Result};

use crate::core::Core;
use crate::journal_map::journal_runs;
use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;
use crate::layout::zones::Zones;
use crate::mmp::MmpBlock;

/// The maximum number of zones in memory, 64 MiB. Volumes of 1 PiB have fewer, unless their
/// metadata was scattered on purpose.
const ZONES_MAX: usize = 1 << 22;
/// The maximum number of groups whose zones are collected. Volumes with more groups are not
/// written; a hostile image in a sparse file can have 2^31.
const GROUPS_MAX: u32 = 1 << 22;

impl Zones {
    /// Collects the fixed zones of a core. For a descriptor that cannot be read, adds only the
    /// blocks at the start of its group, since other code cannot find its other blocks either.
    fn fixed(core: &Core) -> Self {
        let (geometry, mut zones) = (core.geometry(), Self::default());
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
            match core.group(number) {
                Ok(descriptor) => zones.add(geometry, &descriptor),
                Err(error) => tracing::debug!(%error, "a group without system zones"),
            }
        }
        if let Ok(Some(mmp)) = MmpBlock::of(core) {
            zones.push(mmp.block(), 1);
        }
        zones.finish()
    }

    /// Collects the zones of an internal journal. There are none if the journal cannot be found.
    fn of_journal(core: &Core) -> Self {
        let runs = journal_runs(core);
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

impl Core {
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
