//! The check of the segment information table against the blocks found in use, of the segments of
//! the logs, and of the checkpoint's counts.

use base::{FsBlock, Location, Problem};

use super::Check;
use crate::features::Feature;
use crate::geometry::SEGMENT_BLOCKS;
use crate::sit::SegmentEntry;
use crate::summaries::Log;

const STRUCTURE: &str = "SIT entry";
const CHECKPOINT: &str = "checkpoint";
/// The number of types of segments of data, and of all types.
const DATA_KINDS: u16 = 3;
const KINDS: u16 = 6;

impl Check<'_> {
    pub(super) fn check_segments(&mut self) {
        let logs = Log::all(&self.volume.checkpoint());
        let main_segments = self.geometry().main_segments();
        let mut unused_end = 0;
        for segment in 0..main_segments {
            if segment < unused_end {
                continue;
            }
            if !self.report.advance("segments", segment.into(), main_segments.into()) {
                return;
            }
            if segment % self.geometry().sit_entries_per_block() == 0 {
                unused_end = self.unused_end(segment, &logs);
                if segment < unused_end {
                    self.counts.free_segments += u64::from(unused_end - segment);
                    continue;
                }
            }
            let entry = self.segment_entry(segment);
            let Some(entry) = self.report.ok(entry) else { continue };
            if entry.count() == 0 && logs.iter().all(|log| log.segment != segment) {
                self.counts.free_segments += 1;
            }
            self.check_segment(segment, &entry);
        }
    }

    /// Returns the end of the segments whose entries are in the same block as that of `segment`,
    /// the first one of them, if the block is a hole of the device and these segments have no use:
    /// their entries need no check. Otherwise returns `segment`.
    fn unused_end(&mut self, segment: u32, logs: &[Log]) -> u32 {
        let per_block = self.geometry().sit_entries_per_block();
        let segments = segment..self.geometry().main_segments().min(segment + per_block);
        let is_used = self.owners.pack.sit_journal.range(segments.clone()).next().is_some()
            || logs.iter().any(|log| segments.contains(&log.segment))
            || segments.clone().any(|segment| self.claims.map(segment) != [0; 8]);
        let block = SegmentEntry::block(self.volume, segment);
        let is_hole = block.is_ok_and(|block| self.holes.has(self.volume.metadata(), block));
        if is_hole && !is_used { segments.end } else { segment }
    }

    fn segment_entry(&self, segment: u32) -> base::Result<SegmentEntry> {
        SegmentEntry::read(self.volume, &self.owners.pack.sit_journal, segment)
    }

    fn check_segment(&mut self, segment: u32, entry: &SegmentEntry) {
        let location = entry.location;
        let map = entry.map();
        let in_map: u32 = map.iter().map(|word| word.count_ones()).sum();
        let (found, expected) = (entry.count().into(), in_map.into());
        self.report.compare(STRUCTURE, location, "block count", found, expected);
        let known = self.claims.segment(segment);
        let is_data = entry.kind() < DATA_KINDS;
        if entry.kind() >= KINDS || known.has_data && !is_data || known.has_nodes && is_data {
            let problem = Problem::Invalid { field: "segment type", found: entry.kind().into() };
            self.report.corrupt(STRUCTURE, location, problem);
        }
        let claimed = self.claims.map(segment);
        let start = self.geometry().segment_start(segment).0;
        if let Some((first, count)) = without(&claimed, &map) {
            let location = location.at_block(FsBlock(start + first));
            self.report.corrupt(STRUCTURE, location, Problem::MarkedFree { count });
        }
        // The blocks of files that could not be read are not known.
        if self.has_unread_files {
            return;
        }
        if let Some((first, count)) = without(&map, &claimed) {
            let location = location.at_block(FsBlock(start + first));
            self.report.corrupt(STRUCTURE, location, Problem::MarkedUsed { count });
        }
    }

    /// Checks that the segment of each log has the log's type, and that its next block is free, and
    /// all blocks after it if the log only appends.
    pub(super) fn check_logs(&mut self) {
        let is_read_only = self.geometry().features.has(Feature::ReadOnly);
        for (kind, log) in (0..).zip(Log::all(&self.volume.checkpoint())) {
            // A volume that is never written has only the first log of each kind.
            let is_unused = is_read_only && log.index > 0;
            let is_valid = log.segment < self.geometry().main_segments();
            if is_unused || !is_valid {
                continue;
            }
            let entry = self.segment_entry(log.segment);
            let Some(entry) = self.report.ok(entry) else { continue };
            self.report.compare(STRUCTURE, entry.location, "type", entry.kind().into(), kind);
            let next = u64::from(log.offset);
            let end = if log.fills_holes { next + 1 } else { SEGMENT_BLOCKS };
            if let Some(used) = (next..end).find(|index| entry.has(*index)) {
                let start = self.geometry().segment_start(log.segment).0;
                let location = Location::block(FsBlock(start + used));
                let problem =
                    Problem::Invalid { field: "offset, whose block is in use", found: next };
                self.report.corrupt("log", location, problem);
            }
        }
    }

    /// Compares the checkpoint's counts with what was found.
    pub(super) fn check_counts(&mut self) {
        let checkpoint = self.volume.checkpoint();
        let raw = &checkpoint.raw;
        let location = Location::block(self.pack());
        let counts = self.counts;
        let free = u64::from(raw.free_segments.get());
        self.report.compare(CHECKPOINT, location, "free segments", free, counts.free_segments);
        if self.has_unread_files {
            return;
        }
        for (field, found, expected) in [
            ("blocks in use", raw.valid_block_count.get(), counts.blocks),
            ("nodes in use", raw.valid_nodes.get().into(), counts.nodes),
            ("inodes in use", raw.valid_inodes.get().into(), counts.inodes),
        ] {
            self.report.compare(CHECKPOINT, location, field, found, expected);
        }
    }
}

/// Returns the first bit of `map` that `other` does not have, and the number of such bits.
fn without(map: &[u64; 8], other: &[u64; 8]) -> Option<(u64, u64)> {
    let mut first = None;
    let mut count = 0;
    for (index, (word, other)) in (0..).zip(map.iter().zip(other)) {
        let rest = word & !other;
        if rest != 0 {
            first.get_or_insert(index * u64::from(u64::BITS) + u64::from(rest.leading_zeros()));
            count += u64::from(rest.count_ones());
        }
    }
    first.map(|first| (first, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_more_bits_is_found() {
        let mut map = [0; 8];
        assert_eq!(without(&map, &map), None);
        map[2] = 0x4000_0000_0000_0001;
        map[7] = 1;
        assert_eq!(without(&map, &[0; 8]), Some((129, 3)));
        assert_eq!(without(&[0; 8], &map), None);
        let mut other = map;
        other[2] = 1;
        assert_eq!(without(&map, &other), Some((129, 1)));
    }
}
