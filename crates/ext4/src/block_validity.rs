//! Block validity: the blocks that an inode's map may refer to. As in Linux, these are the blocks
//! outside of the system zones; only the journal's map may refer to the journal's blocks. Not here:
//! the zones (`system_zones.rs`).

use std::ops::Range;

use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};

use crate::core::Core;
use crate::layout::geometry::Geometry;
use crate::layout::zones::Zones;

/// The blocks that one inode may have.
#[derive(Clone, Copy)]
pub(crate) struct BlockValidity<'v> {
    pub geometry: &'v Geometry,
    fixed: Option<&'v Zones>,
    journal: Option<&'v Zones>,
}

impl<'v> BlockValidity<'v> {
    /// Returns a validity that accepts every block of the volume after its superblock. For the
    /// consistency check, which finds blocks with two owners itself.
    pub(crate) fn of_any_block(geometry: &'v Geometry) -> Self {
        Self { geometry, fixed: None, journal: None }
    }

    /// Checks a run of blocks that `location` in `structure` refers to. Errors: `Corrupt` if the
    /// inode cannot have them.
    pub(crate) fn check(
        self,
        structure: &'static str,
        location: Location,
        start: FsBlock,
        count: u64,
    ) -> Result<()> {
        self.checker().check(structure, location, start, count)
    }

    /// Returns a checker for runs that may lie near each other.
    pub(crate) fn checker(self) -> Checker<'v> {
        Checker { validity: self, valid: 0..0 }
    }

    /// Returns the range of valid blocks around a block of the volume. Errors: the zone that
    /// contains the block.
    fn valid_around(&self, block: FsBlock) -> std::result::Result<Range<u64>, Range<u64>> {
        let mut valid = self.geometry.first_data_block.0 + 1..self.geometry.block_count;
        for zones in [self.fixed, self.journal].into_iter().flatten() {
            let gap = zones.gap_around(block)?;
            valid = valid.start.max(gap.start)..valid.end.min(gap.end);
        }
        Ok(valid)
    }
}

/// Checks runs of one inode, most of which lie between the same two zones as the run before.
pub(crate) struct Checker<'v> {
    validity: BlockValidity<'v>,
    /// Blocks that are known to be valid.
    valid: Range<u64>,
}

impl Checker<'_> {
    /// See [`BlockValidity::check`].
    pub(crate) fn check(
        &mut self,
        structure: &'static str,
        location: Location,
        start: FsBlock,
        count: u64,
    ) -> Result<()> {
        let end = start.0.saturating_add(count);
        if self.valid.start <= start.0 && end <= self.valid.end {
            return Ok(());
        }
        self.validity.geometry.check_run(structure, location, start, count)?;
        let zone = match self.validity.valid_around(start) {
            Ok(valid) if end <= valid.end => {
                self.valid = valid;
                return Ok(());
            }
            // The next zone begins where the valid blocks end.
            Ok(valid) => valid.end..end,
            Err(zone) => zone,
        };
        let (first, last) = (zone.start.max(start.0), zone.end.min(end) - 1);
        Err(Error::corrupt(structure, location, Problem::SystemZone { first, last }))
    }
}

impl Core {
    /// Returns the blocks that an inode may have.
    pub(crate) fn block_validity(&self, inode: InodeNumber) -> BlockValidity<'_> {
        // The journal's own zones are collected by its map, so they cannot be used to check that
        // map.
        let is_journal = self.superblock().inodes.journal == Some(inode);
        let journal = if is_journal { None } else { Some(self.journal_zones()) };
        BlockValidity { geometry: self.geometry(), fixed: Some(self.fixed_zones()), journal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::geometry::tests::plain;

    #[test]
    fn runs_in_system_zones_are_refused() {
        let geometry = plain();
        let [fixed, journal] = [[(0, 10), (500, 2)], [(100, 10), (32_768, 1)]].map(Zones::of);
        let of_files =
            BlockValidity { geometry: &geometry, fixed: Some(&fixed), journal: Some(&journal) };
        let of_journal = BlockValidity { journal: None, ..of_files };
        let location = Location::default();
        let mut checker = of_files.checker();
        let mut check = |start, count| checker.check("extent", location, FsBlock(start), count);
        for (start, count) in [(10, 90), (50, 1), (110, 390), (502, 5), (39_999, 1), (32_769, 1)] {
            check(start, count).unwrap();
        }
        for (start, count, first, last) in [
            (9, 1, 9, 9),
            (1, 1000, 1, 9),
            (99, 2, 100, 100),
            (105, 1, 105, 105),
            (110, 391, 500, 500),
            (400, 1000, 500, 1399),
        ] {
            let expected = Problem::SystemZone { first, last };
            let expected = Error::corrupt("extent", location, expected);
            assert_eq!(check(start, count), Err(expected), "{start} {count}");
        }
        for (start, count) in [(0, 1), (39_999, 2), (u64::MAX, 1), (u64::MAX - 1, 3)] {
            let error = check(start, count).unwrap_err().to_string();
            assert!(error.contains("outside"), "{error}");
        }
        of_journal.check("extent", location, FsBlock(99), 300).unwrap();
        of_journal.check("extent", location, FsBlock(499), 2).unwrap_err();
    }
}
