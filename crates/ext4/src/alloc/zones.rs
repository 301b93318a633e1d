//! The blocks that hold the format's own fixed structures: superblock copies, descriptors, bitmaps
//! and inode tables. They are never allocated or freed, whatever a bitmap says.
//! Not here: the journal, and other inodes' blocks.

use std::ops::Range;

use base::{FsBlock, GroupNumber};

use crate::geometry::Geometry;
use crate::group::GroupDescriptor;

/// Ranges of blocks, in ascending order, none of which touch each other.
#[derive(Debug, Default)]
pub(super) struct Zones(Vec<Range<u64>>);

impl Zones {
    /// Adds those of one group. [`Zones::finish`] follows the last.
    pub(super) fn add(&mut self, geometry: &Geometry, group: &GroupDescriptor) {
        let start = geometry.group_start(group.group);
        for (start, count) in [
            (start, geometry.leading_metadata_blocks(group.group)),
            (group.block_bitmap, 1),
            (group.inode_bitmap, 1),
            (group.inode_table, geometry.inode_table_blocks().into()),
        ] {
            self.push(start, count);
        }
    }

    /// Adds a block of the volume's own, before [`Zones::finish`].
    pub(super) fn add_block(&mut self, block: FsBlock) {
        self.push(block, 1);
    }

    /// Most ranges of a flexible group continue one that was added shortly before.
    fn push(&mut self, start: FsBlock, count: u64) {
        let range = start.0..start.0 + count;
        match self.0.iter_mut().rev().take(4).find(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None if count > 0 => self.0.push(range),
            None => {}
        }
    }

    /// Puts the ranges in order.
    pub(super) fn finish(mut self) -> Self {
        self.0.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in self.0 {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        joined.shrink_to_fit();
        Self(joined)
    }

    /// The parts of zones in a range of blocks.
    pub(super) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.0.partition_point(|zone| zone.end <= blocks.start);
        let zones = self.0[first..].iter().take_while(move |zone| zone.start < blocks.end);
        zones.map(move |zone| zone.start.max(blocks.start)..zone.end.min(blocks.end))
    }

    /// The zones of the group's own blocks, as clusters of that group.
    pub(super) fn clusters_in(
        &self,
        geometry: &Geometry,
        group: GroupNumber,
    ) -> impl Iterator<Item = Range<u32>> {
        let (start, shift) = (geometry.group_start(group).0, geometry.cluster_shift);
        let zones = self.within(start..start + geometry.blocks_in_group(group));
        // Clusters of one group, of which there are no more than bits in a block.
        zones.map(move |zone| {
            let (first, end) = (zone.start - start, zone.end - start);
            (first >> shift) as u32..end.div_ceil(1 << shift) as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_joined_and_found_by_their_parts() {
        let mut zones = Zones::default();
        for (start, count) in [(100, 10), (0, 5), (110, 1), (104, 8), (50, 0), (5, 2), (200, 1)] {
            zones.push(FsBlock(start), count);
        }
        let zones = zones.finish();
        assert_eq!(zones.0, [0..7, 100..112, 200..201]);
        let within = |blocks| zones.within(blocks).collect::<Vec<_>>();
        assert_eq!(within(6..105), [6..7, 100..105]);
        assert!(within(7..100).is_empty() && within(112..200).is_empty());
        assert_eq!(within(0..1000).len(), 3);
    }
}
