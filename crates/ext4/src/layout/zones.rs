//! Sorted ranges of blocks. Not here: which blocks are in them (`system_zones.rs`).

use std::ops::Range;

use base::{Error, FsBlock, Location, Problem, Result, Unsupported};

/// Ranges of blocks, in ascending order, with gaps between them.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    pub(crate) ranges: Vec<Range<u64>>,
    /// Blocks that two structures claim, if there are any.
    pub(crate) overlap: Option<Range<u64>>,
    /// Whether zones are missing, since there are more than the maximum.
    pub(crate) is_incomplete: bool,
}

impl Zones {
    /// Adds a range. In a flexible group, most ranges continue one that was added shortly before.
    pub(crate) fn push(&mut self, start: FsBlock, count: u64) {
        let range = start.0..start.0 + count;
        match self.ranges.iter_mut().rev().take(4).find(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None if count > 0 => self.ranges.push(range),
            None => {}
        }
    }

    /// Sorts and joins the ranges.
    pub(crate) fn finish(mut self) -> Self {
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

    /// Returns the range of blocks around `block` that are in no zone. Errors: the zone that
    /// contains `block`.
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
