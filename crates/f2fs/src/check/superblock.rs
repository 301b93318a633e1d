//! The check of the superblocks: limits that reading does not need, and the second copy.

use base::{Location, Problem};

use super::Check;
use crate::features::Feature;
use crate::geometry::SEGMENT_BLOCKS;
use crate::ondisk::superblock::RawSuperblock;
use crate::superblock::Superblock;

const STRUCTURE: &str = "superblock";
const COPY: &str = "second superblock";
/// The number of entries for file name extensions.
const EXTENSIONS_MAX: u64 = 64;
/// The least number of segments: one for superblocks, two each for checkpoints and both tables, one
/// each for summaries and the main area.
const SEGMENTS_MIN: u64 = 9;
/// The maximum number of segments: 16 TiB with blocks of 4 KiB.
const SEGMENTS_MAX: u64 = 1 << 23;

impl Check<'_> {
    pub(super) fn check_superblocks(&mut self) {
        if let Some(error) = self.volume.superblock().damage.clone() {
            self.report.add(error);
            self.check_limits(self.volume.superblock().raw());
            return;
        }
        self.check_limits(self.volume.superblock().raw());
        self.check_copy();
    }

    fn range(&mut self, field: &'static str, found: u64, min: u64, max: u64) {
        if !(min..=max).contains(&found) {
            let problem = Problem::Range { field, found, min, max };
            self.report.corrupt(STRUCTURE, Location::default(), problem);
        }
    }

    fn check_limits(&mut self, raw: &RawSuperblock) {
        let segments = u64::from(raw.segment_count.get());
        self.range("segments", segments, SEGMENTS_MIN, SEGMENTS_MAX);
        self.range("segments", segments, 0, raw.block_count.get() / SEGMENT_BLOCKS);
        let per_section = u64::from(raw.segments_per_section.get());
        let sections = u64::from(raw.section_count.get());
        // `Superblock::parse` has checked that a section has segments.
        let sections_max = segments.checked_div(per_section).unwrap_or_default();
        let is_read_only = self.geometry().features.has(Feature::ReadOnly);
        let sections_min = if is_read_only { 0 } else { SEGMENTS_MIN };
        self.range("sections", sections, sections_min, sections_max);
        self.range("sections per zone", raw.sections_per_zone.get().into(), 1, sections);
        let main = &self.geometry().main;
        let end = u64::from(raw.segment0_block.get()).saturating_add(segments * SEGMENT_BLOCKS);
        self.range("end of main area", main.end.0, main.start.0, end);
        let cold = u64::from(raw.cold_extension_count.get());
        let has_quota = self.geometry().features.has(Feature::QuotaInodes);
        for number in raw.quota_inodes.iter().map(|number| number.get()) {
            if number != 0 && !has_quota {
                let field = "quota inode of a volume without the feature `quota`";
                let problem = Problem::Invalid { field, found: number.into() };
                self.report.corrupt(STRUCTURE, Location::default(), problem);
            }
        }
        self.range("extensions", cold + u64::from(raw.hot_extension_count), 0, EXTENSIONS_MAX);
    }

    /// Checks that the second copy describes the same volume. Versions and counts of errors may
    /// differ.
    fn check_copy(&mut self) {
        let shift = self.geometry().block_size.shift();
        let copy =
            Superblock::read_at(self.volume.device(), 1 << shift, self.volume.device().size());
        let Some(copy) = self.report.ok(copy) else { return };
        let location = Location::byte(1 << shift);
        let (found, expected) = (&copy, self.volume.superblock());
        if found.geometry != expected.geometry || found.quota_inodes != expected.quota_inodes {
            let problem = Problem::Missing("description of this volume");
            self.report.corrupt(COPY, location, problem);
        }
    }
}
