//! The use of the blocks of the main area: in the last checkpoint, and allocated since.
//!
//! A block that the last checkpoint uses stays as it is until the next checkpoint is durable. So a
//! block is taken if the last checkpoint uses it, or if it was allocated since. The next checkpoint
//! finds out which of the allocated blocks belong to something (`segment_changes.rs`), and the
//! others are free after it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::{Error, FsBlock, Location, Problem, Result};

use super::section_use::{EmptySegments, Section, SectionUse};
use super::sit_entries::SitEntries;
use crate::checkpoint::Checkpoint;
use crate::core::Core;
use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::ondisk::sit::{RawSitEntry, SIT_MAP_BYTES};
use crate::sit::{SegmentEntry, bit, check_totals};
use crate::summaries::{BlockKind, LOGS, Log};
use crate::write::allocate::logs::LogName;
use crate::write::allocate::room::Room;

/// A bit for each block of a segment.
type SegmentMap = [u8; SIT_MAP_BYTES];

/// The use of all blocks of the main area.
#[derive(Debug)]
pub(crate) struct Space {
    /// The entries of the last checkpoint.
    pub(crate) entries: SitEntries,
    /// The blocks allocated since, by segment.
    allocated: BTreeMap<u32, Box<SegmentMap>>,
    /// The types of segments that logs have begun since.
    pub(crate) kinds: BTreeMap<u32, u16>,
    /// The number of taken blocks of each segment.
    taken: Vec<u16>,
    sections: Vec<SectionUse>,
    totals: Totals,
    /// The number of blocks of data, and of nodes, that the last checkpoint uses.
    pub(crate) used: [u64; 2],
    /// The number of segments of which the last checkpoint uses no block.
    pub(crate) unused: u32,
    /// The segments that are being cleaned. No log fills their holes.
    cleaned: BTreeSet<u32>,
    segments_per_section: u32,
    /// The section from which on a free one is searched.
    next_section: u32,
}

/// Sums over all segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Totals {
    empty: EmptySegments,
    /// Blocks that are not taken, of segments of nodes with a taken block.
    node_holes: u64,
}

impl Space {
    /// Reads the whole table. Entries in `journal` override it.
    pub(crate) fn read(volume: &Core, journal: &BTreeMap<u32, RawSitEntry>) -> Result<Self> {
        let geometry = volume.geometry();
        let mut used = [0, 0];
        let mut entries = SitEntries::unused(geometry.main_segments());
        for segment in 0..geometry.main_segments() {
            let entry = SegmentEntry::read(volume, journal, segment)?;
            entry.check_count()?;
            used[kind_of_type(entry.kind()).index()] += u64::from(entry.count());
            entries.set(segment, entry.raw());
        }
        check_totals(volume, used)?;
        let mut space = Self {
            entries,
            allocated: BTreeMap::new(),
            kinds: BTreeMap::new(),
            taken: Vec::new(),
            sections: Vec::new(),
            totals: Totals::default(),
            used,
            unused: 0,
            cleaned: BTreeSet::new(),
            segments_per_section: geometry.segments_per_section,
            next_section: 0,
        };
        space.count();
        Ok(space)
    }

    /// Counts all segments.
    fn count(&mut self) {
        let numbers = 0..self.entries.len() as u32;
        self.taken = numbers.map(|number| self.count_taken(number)).collect();
        let sections = self.taken.len().div_ceil(self.segments_per_section as usize);
        self.sections = (0..sections).map(|section| self.count_section(section)).collect();
        self.totals = self.sum();
        self.unused = self.entries.iter().filter(|entry| is_unused(entry)).count() as u32;
    }

    /// Counts the taken blocks of a segment.
    fn count_taken(&self, segment: u32) -> u16 {
        let map = &self.entries[segment as usize].map;
        let own = self.allocated.get(&segment);
        let bits = |at: usize| (map[at] | own.map_or(0, |own| own[at])).count_ones();
        // A segment has 512 blocks.
        (0..SIT_MAP_BYTES).map(bits).sum::<u32>() as u16
    }

    /// Returns the use of a section.
    fn count_section(&self, section: usize) -> SectionUse {
        let segments = self.segments_of(section);
        let (first, count) = (segments.start, segments.len() as u32);
        let is_complete = count == self.segments_per_section;
        let mut counted = SectionUse::new(count, is_complete, self.kind_of(first));
        for segment in segments.filter(|segment| !self.is_empty(*segment)) {
            counted.add(self.kind_of(segment), segment == first);
        }
        counted
    }

    /// Returns the segments of a section. The last one of a damaged volume may have fewer than
    /// others.
    fn segments_of(&self, section: usize) -> Range<u32> {
        let first = section as u32 * self.segments_per_section;
        first..(first + self.segments_per_section).min(self.entries.len() as u32)
    }

    fn section_of(&self, segment: u32) -> usize {
        (segment / self.segments_per_section) as usize
    }

    /// Returns the totals of all segments.
    fn sum(&self) -> Totals {
        let mut totals = Totals::default();
        for segment in 0..self.entries.len() as u32 {
            totals.node_holes += self.node_holes(segment);
        }
        self.sections.iter().for_each(|section| totals.empty.add(section.empty()));
        totals
    }

    /// Returns the number of blocks between nodes of a segment.
    fn node_holes(&self, segment: u32) -> u64 {
        let has_nodes = !self.is_empty(segment) && self.kind_of(segment) == BlockKind::Node;
        if has_nodes { self.holes(segment) } else { 0 }
    }

    /// Changes a segment, and the totals.
    fn change(&mut self, segment: u32, change: impl FnOnce(&mut Self)) {
        let state = |space: &Self| (space.is_empty(segment), space.kind_of(segment));
        let (before, holes) = (state(self), self.node_holes(segment));
        change(self);
        self.totals.node_holes = self.totals.node_holes - holes + self.node_holes(segment);
        if state(self) != before {
            self.update_section(self.section_of(segment));
        }
    }

    fn update_section(&mut self, section: usize) {
        let counted = self.count_section(section);
        let old = std::mem::replace(&mut self.sections[section], counted);
        self.totals.empty.subtract(old.empty());
        self.totals.empty.add(counted.empty());
    }

    /// Returns whether a block of a segment of the main area is taken.
    pub(crate) fn is_taken(&self, segment: u32, index: u64) -> bool {
        let is_in = |map: &SegmentMap| map[(index / 8) as usize] & bit(index) != 0;
        let of_checkpoint =
            self.entries.get(segment as usize).is_none_or(|entry| is_in(&entry.map));
        of_checkpoint || self.allocated.get(&segment).is_some_and(|map| is_in(map))
    }

    /// Returns whether the last checkpoint uses a block of the main area.
    pub(crate) fn is_used(&self, geometry: &Geometry, block: FsBlock) -> bool {
        let (segment, index) = geometry.segment_of(block);
        let entry = self.entries.get(segment as usize);
        entry.is_some_and(|entry| entry.has(index))
    }

    /// Returns whether the last checkpoint uses a block of a segment.
    pub(crate) fn has_used(&self, segment: u32) -> bool {
        self.entries.get(segment as usize).is_none_or(|entry| !is_unused(entry))
    }

    /// Checks that the segment of each log has no blocks of the other kind: the next checkpoint
    /// gives it the log's type. Errors: `Corrupt`.
    pub(crate) fn check_logs(&self, checkpoint: &Checkpoint) -> Result<()> {
        for log in Log::all(checkpoint) {
            if self.kind_of(log.segment) != log.kind && !self.is_empty(log.segment) {
                let found = self.type_of(log.segment).into();
                let problem = Problem::Invalid { field: "segment type", found };
                let location = Location::block(checkpoint.start);
                return Err(Error::corrupt("segment of a log", location, problem));
            }
        }
        Ok(())
    }

    /// Returns whether all blocks of a range of the main area are taken, in segments for data.
    pub(crate) fn has_data(&self, geometry: &Geometry, range: &Range<FsBlock>) -> bool {
        (range.start.0..range.end.0).all(|block| {
            let (segment, index) = geometry.segment_of(FsBlock(block));
            self.is_taken(segment, index) && self.kind_of(segment) == BlockKind::Data
        })
    }

    /// Records that a block of the main area was allocated by a writer before the volume was
    /// opened. An empty segment gets a type of this kind: that of the last checkpoint is from an
    /// earlier use, and blocks of the other kind must not be written beside the block.
    pub(crate) fn keep(&mut self, (segment, index): (u32, u64), kind: BlockKind) {
        let log = match kind {
            BlockKind::Data => LogName::WarmData,
            BlockKind::Node => LogName::WarmNodes,
        };
        if self.is_empty(segment) && self.kind_of(segment) != kind {
            self.begin(segment, log.segment_type());
        }
        self.allocate(segment, index);
    }

    /// Records that a block of the main area was allocated. Does nothing if it is taken.
    pub(crate) fn allocate(&mut self, segment: u32, index: u64) {
        if !self.is_taken(segment, index) {
            self.change(segment, |space| {
                let new = || Box::new([0; SIT_MAP_BYTES]);
                let map = space.allocated.entry(segment).or_insert_with(new);
                map[(index / 8) as usize] |= bit(index);
                space.taken[segment as usize] += 1;
            });
        }
    }

    /// Records that an allocated block belongs to nothing.
    pub(crate) fn release(&mut self, segment: u32, index: u64) {
        let map = self.allocated.get(&segment);
        if map.is_some_and(|map| map[(index / 8) as usize] & bit(index) != 0) {
            self.change(segment, |space| {
                let map = space.allocated.get_mut(&segment).expect("it was just found");
                map[(index / 8) as usize] &= !bit(index);
                space.taken[segment as usize] -= 1;
            });
        }
    }

    /// Returns whether no block of a segment is taken.
    pub(crate) fn is_empty(&self, segment: u32) -> bool {
        self.taken.get(segment as usize) == Some(&0)
    }

    /// Gives a segment of a log the log's type.
    pub(crate) fn set_kind(&mut self, segment: u32, kind: u16) {
        if self.exists(segment) && self.type_of(segment) != kind {
            self.begin(segment, kind);
        }
    }

    /// Records that a log of the type `kind` begins a segment.
    fn begin(&mut self, segment: u32, kind: u16) {
        self.change(segment, |space| {
            space.kinds.insert(segment, kind);
        });
    }

    /// Returns the free blocks that a checkpoint can use, without those of the logs' segments, and
    /// of sections that are being cleaned.
    pub(crate) fn room(&self, logs: &BTreeSet<u32>) -> Room {
        let Totals { mut empty, mut node_holes } = self.totals;
        let mut last = None;
        for segment in logs.union(&self.cleaned).filter(|segment| self.exists(**segment)) {
            node_holes -= self.node_holes(*segment);
            let section = self.section_of(*segment);
            // The segments are in order.
            if last.replace(section) == Some(section) {
                continue;
            }
            empty.subtract(self.sections[section].empty());
            if !self.cleaned.contains(segment) {
                empty.add(self.section_with_logs(section, logs).empty());
            }
        }
        Room { node_holes, empty, segments_per_section: self.segments_per_section.into() }
    }

    /// Returns whether the main area has a segment. The logs of a damaged volume may be elsewhere.
    fn exists(&self, segment: u32) -> bool {
        (segment as usize) < self.entries.len()
    }

    /// Returns the use of a section. The segments of logs count as used, also without any taken
    /// block.
    fn section_with_logs(&self, section: usize, logs: &BTreeSet<u32>) -> SectionUse {
        let mut used = self.sections[section];
        let segments = self.segments_of(section);
        for segment in logs.range(segments.clone()).filter(|segment| self.is_empty(**segment)) {
            used.add(self.kind_of(*segment), *segment == segments.start);
        }
        used
    }

    /// Returns the number of blocks of a segment that are not taken.
    pub(crate) fn holes(&self, number: u32) -> u64 {
        SEGMENT_BLOCKS.saturating_sub(self.taken[number as usize].into())
    }

    /// Returns the type of a segment.
    fn type_of(&self, number: u32) -> u16 {
        let stored = || self.entries[number as usize].kind();
        self.kinds.get(&number).copied().unwrap_or_else(stored)
    }

    /// Returns what blocks a segment has, or had when it was last in use.
    fn kind_of(&self, number: u32) -> BlockKind {
        kind_of_type(self.type_of(number))
    }

    /// Takes the segment after `last`, which is full, for a log of the type `kind`, if it is empty
    /// and in the same section. `logs` are the segments of all logs.
    pub(crate) fn take_next_segment(
        &mut self,
        kind: u16,
        last: u32,
        logs: &BTreeSet<u32>,
    ) -> Option<u32> {
        let next = last + 1;
        let is_same_section = !next.is_multiple_of(self.segments_per_section);
        let suits = is_same_section
            && self.exists(next)
            && self.can_begin(next, logs)
            && self.section_with_logs(self.section_of(next), logs).suits(kind_of_type(kind));
        suits.then(|| self.begin(next, kind)).map(|()| next)
    }

    /// Takes the first segment of a section without any taken block. Returns `None` if there is
    /// none.
    pub(crate) fn take_free_section(&mut self, kind: u16, logs: &BTreeSet<u32>) -> Option<u32> {
        let per_section = self.segments_per_section;
        let sections = self.entries.len() as u32 / per_section;
        let after = (self.next_section..sections).chain(0..self.next_section.min(sections));
        let is_free = |section: &u32| {
            self.sections[*section as usize].is_free()
                && self.section_with_logs(*section as usize, logs).is_free()
        };
        let section = after.into_iter().find(is_free)?;
        self.next_section = section + 1;
        self.begin(section * per_section, kind);
        Some(section * per_section)
    }

    /// Takes an empty segment of a section that has other segments of the same kind, data or nodes.
    /// Returns `None` if there is none.
    pub(crate) fn take_suiting_segment(&mut self, kind: u16, logs: &BTreeSet<u32>) -> Option<u32> {
        let wanted = kind_of_type(kind);
        // Without the logs, most sections need no search for their segments.
        let of_logs = logs.iter().filter(|segment| self.exists(**segment));
        let of_logs = of_logs.map(|segment| self.section_of(*segment));
        let all = (0..self.sections.len()).filter(|section| self.sections[*section].suits(wanted));
        let suits = |section: &usize| self.section_with_logs(*section, logs).suits(wanted);
        let mut segments =
            of_logs.chain(all).filter(suits).flat_map(|section| self.segments_of(section));
        let found = segments.find(|segment| self.can_begin(*segment, logs))?;
        self.begin(found, kind);
        Some(found)
    }

    /// Takes an empty segment of any section that is not free, first of one that has both data and
    /// nodes. Returns `None` if there is none.
    pub(crate) fn take_empty_segment(&mut self, kind: u16, logs: &BTreeSet<u32>) -> Option<u32> {
        let is_mixed = |used: &SectionUse| used.empty() == EmptySegments::default();
        let find = |matches: &dyn Fn(&SectionUse) -> bool| {
            (0..self.entries.len() as u32).find(|segment| {
                self.can_begin(*segment, logs)
                    && matches(&self.section_with_logs(self.section_of(*segment), logs))
            })
        };
        let found = find(&is_mixed).or_else(|| find(&|used| !used.is_free()))?;
        self.begin(found, kind);
        Some(found)
    }

    /// Returns whether a segment is empty, and not that of a log, or being cleaned.
    fn can_begin(&self, segment: u32, logs: &BTreeSet<u32>) -> bool {
        self.is_empty(segment) && !logs.contains(&segment) && !self.cleaned.contains(&segment)
    }

    /// Takes the segment of data, or of nodes, with the most blocks that are not taken, and gives
    /// it the type `kind`. Returns `None` if there is none.
    pub(crate) fn take_segment_with_holes(
        &mut self,
        kind: u16,
        logs: &BTreeSet<u32>,
    ) -> Option<u32> {
        let candidates = (0..self.entries.len() as u32).filter(|number| {
            !self.is_empty(*number)
                && self.kind_of(*number) == kind_of_type(kind)
                && !logs.contains(number)
                && !self.cleaned.contains(number)
        });
        let best = candidates.max_by_key(|number| self.holes(*number))?;
        if self.holes(best) == 0 {
            return None;
        }
        self.begin(best, kind);
        Some(best)
    }

    /// Lets no log fill the holes of segments before the next checkpoint, or lets them again.
    pub(crate) fn set_cleaned(&mut self, segments: Range<u32>, is_cleaned: bool) {
        match is_cleaned {
            true => self.cleaned.extend(segments),
            false => self.cleaned.retain(|segment| !segments.contains(segment)),
        }
    }

    /// Returns the time at which the blocks of a segment were written, on average, in seconds since
    /// the volume was made.
    pub(crate) fn written(&self, segment: u32) -> u64 {
        self.entries[segment as usize].mtime.get()
    }

    /// Returns whether no block of a segment was allocated since the last checkpoint, and no log
    /// uses it.
    fn is_settled(&self, segment: u32, logs: &BTreeSet<u32>) -> bool {
        let is_own = |map: &SegmentMap| map.iter().any(|byte| *byte != 0);
        !logs.contains(&segment) && !self.allocated.get(&segment).is_some_and(|map| is_own(map))
    }

    /// Returns the sections that can be cleaned.
    pub(crate) fn sections(&self, logs: &BTreeSet<u32>) -> impl Iterator<Item = Section> {
        let per_section = self.segments_per_section;
        (0..self.entries.len() as u32 / per_section).filter_map(move |number| {
            let segments = number * per_section..(number + 1) * per_section;
            let can_be_cleaned =
                |segment| self.is_settled(segment, logs) && !self.cleaned.contains(&segment);
            if !segments.clone().all(can_be_cleaned) {
                return None;
            }
            let (mut used, mut written) = (0, 0);
            for segment in segments {
                let of_segment = u64::from(self.taken[segment as usize]);
                used += of_segment;
                written += u128::from(self.written(segment)) * u128::from(of_segment);
            }
            // An average of numbers with 64 bits.
            let written = (written / u128::from(used.max(1))) as u64;
            let blocks = u64::from(per_section) * SEGMENT_BLOCKS;
            Some(Section { number, used, blocks, written })
        })
    }

    /// Returns the free blocks in sections with data, and those in sections with nodes, that can be
    /// cleaned: between others, and of empty segments.
    pub(crate) fn blocks_to_gain(&self, logs: &BTreeSet<u32>) -> [u64; 2] {
        let mut free = [0, 0];
        for section in self.sections(logs) {
            let first = section.number * self.segments_per_section;
            let mut segments = first..first + self.segments_per_section;
            if let Some(segment) = segments.find(|segment| !self.is_empty(*segment)) {
                free[self.kind_of(segment).index()] += section.blocks - section.used;
            }
        }
        free
    }

    /// Returns whether cleaning can make a free section.
    pub(crate) fn has_section_to_gain(&self, logs: &BTreeSet<u32>) -> bool {
        let section = u64::from(self.segments_per_section) * SEGMENT_BLOCKS;
        self.blocks_to_gain(logs).into_iter().any(|blocks| blocks >= section)
    }

    /// Returns the segments that have blocks in use, and none in `changed`.
    pub(crate) fn freed_segments(&self, changed: &BTreeMap<u32, RawSitEntry>) -> Vec<u32> {
        let has_blocks = |entry: &RawSitEntry| entry.map.iter().any(|byte| *byte != 0);
        let is_freed = |(number, entry): &(&u32, &RawSitEntry)| {
            has_blocks(&self.entries[**number as usize]) && !has_blocks(entry)
        };
        changed.iter().filter(is_freed).map(|(number, _)| *number).collect()
    }

    /// Ends a checkpoint: its entries are those of the last one from now on. Allocated blocks are
    /// free, unless `in_use` has them.
    pub(crate) fn install(
        &mut self,
        changed: BTreeMap<u32, RawSitEntry>,
        in_use: impl Iterator<Item = (u32, u64)>,
    ) {
        // Only these are counted anew: a large volume has a million segments.
        let of_logs = self.allocated.keys().chain(self.kinds.keys());
        let touched: BTreeSet<u32> = of_logs.chain(changed.keys()).copied().collect();
        for segment in &touched {
            self.totals.node_holes -= self.node_holes(*segment);
        }
        for (number, entry) in changed {
            let old = &mut self.entries[number as usize];
            replace_use(&mut self.used, old, &entry);
            self.unused += u32::from(is_unused(&entry));
            self.unused -= u32::from(is_unused(old));
            *old = entry;
        }
        self.allocated.clear();
        self.kinds.clear();
        self.cleaned.clear();
        for segment in &touched {
            self.taken[*segment as usize] = self.count_taken(*segment);
            self.totals.node_holes += self.node_holes(*segment);
        }
        let sections: BTreeSet<usize> =
            touched.iter().map(|number| self.section_of(*number)).collect();
        sections.into_iter().for_each(|section| self.update_section(section));
        debug_assert_eq!(self.totals, self.sum());
        for (segment, index) in in_use {
            self.allocate(segment, index);
        }
    }
}

/// Returns what blocks segments of this type have.
pub(crate) fn kind_of_type(number: u16) -> BlockKind {
    if usize::from(number) >= LOGS { BlockKind::Node } else { BlockKind::Data }
}

/// Replaces the blocks in use of a segment's entry `old` by those of `new`, in the number of those
/// of data and of nodes.
pub(crate) fn replace_use(used: &mut [u64; 2], old: &RawSitEntry, new: &RawSitEntry) {
    let of = |entry: &RawSitEntry| (kind_of_type(entry.kind()).index(), u64::from(entry.count()));
    let (kind, count) = of(old);
    used[kind] -= count;
    let (kind, count) = of(new);
    used[kind] += count;
}

/// Returns whether a segment has no block in use.
pub(crate) fn is_unused(entry: &RawSitEntry) -> bool {
    entry.count() == 0
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    /// Returns the use of segments that have a type and a number of blocks in use.
    fn space(segments: &[(LogName, u16)]) -> Space {
        let entry = |(log, count): &(LogName, u16)| {
            let mut entry = RawSitEntry::new_zeroed();
            entry.set_use(log.segment_type(), *count);
            (0..u64::from(*count)).for_each(|index| entry.map[(index / 8) as usize] |= bit(index));
            entry
        };
        let mut space = Space {
            entries: {
                let mut entries = SitEntries::unused(segments.len() as u32);
                let all = (0..).zip(segments.iter().map(entry));
                all.for_each(|(segment, entry)| entries.set(segment, &entry));
                entries
            },
            allocated: BTreeMap::new(),
            kinds: BTreeMap::new(),
            taken: Vec::new(),
            sections: Vec::new(),
            totals: Totals::default(),
            used: [0, 0],
            unused: 0,
            cleaned: BTreeSet::new(),
            segments_per_section: 1,
            next_section: 0,
        };
        space.count();
        space
    }

    /// Returns the use of sections of four segments.
    fn sections_of_four(segments: &[(LogName, u16)]) -> Space {
        let mut space = Space { segments_per_section: 4, ..space(segments) };
        space.count();
        space
    }

    #[test]
    fn a_section_gets_segments_of_one_kind() {
        let (data, nodes) = (LogName::WarmData, LogName::WarmNodes);
        let none = BTreeSet::new();
        let take = |segments: &[(LogName, u16)], log: LogName, logs: &BTreeSet<u32>| {
            sections_of_four(segments).take_suiting_segment(log.segment_type(), logs)
        };
        let section = [(data, 5), (nodes, 0), (nodes, 0), (data, 0)];
        assert_eq!(take(&section, nodes, &none), None);
        assert_eq!(take(&section, data, &none), Some(1));
        assert_eq!(take(&section, data, &BTreeSet::from([3])), Some(1));
        assert_eq!(take(&section, data, &BTreeSet::from([2])), None);
        assert_eq!(take(&section, data, &BTreeSet::from([1, 3])), None);
        // The kind of the first segment counts for Linux, also if it is empty.
        let section = [(nodes, 0), (data, 5), (data, 0), (nodes, 0)];
        assert_eq!(take(&section, data, &none), None);
        assert_eq!(take(&section, nodes, &none), None);
        // The last section of a damaged volume may be incomplete.
        assert_eq!(
            take(&[(data, 5), (data, 5), (data, 5), (data, 5), (data, 0)], data, &none),
            None
        );
        let mut space = sections_of_four(&section);
        assert_eq!(space.take_empty_segment(nodes.segment_type(), &none), Some(0));
    }

    #[test]
    fn the_room_of_sections_follows_the_use_of_segments() {
        let (data, nodes) = (LogName::WarmData, LogName::WarmNodes);
        let mut space = sections_of_four(&[(data, 0); 12]);
        let room = |space: &Space, logs: &[u32]| {
            assert_eq!(space.totals, space.sum());
            let Room { node_holes, empty, .. } = space.room(&logs.iter().copied().collect());
            (empty.free_sections, empty.data, empty.nodes, node_holes)
        };
        assert_eq!(room(&space, &[]), (3, 0, 0, 0));
        assert_eq!(room(&space, &[1]), (2, 3, 0, 0));
        let first = space.take_free_section(nodes.segment_type(), &BTreeSet::new());
        assert_eq!((first, room(&space, &[0])), (Some(0), (2, 0, 3, 0)));
        space.allocate(0, 7);
        assert_eq!(room(&space, &[0]), (2, 0, 3, 0));
        assert_eq!(room(&space, &[]), (2, 0, 3, 511));
        let logs = BTreeSet::from([0]);
        let next = space.take_next_segment(nodes.segment_type(), 0, &logs);
        assert_eq!((next, room(&space, &[0, 1])), (Some(1), (2, 0, 2, 0)));
        assert_eq!(space.take_next_segment(data.segment_type(), 1, &logs), None);
        let second = space.take_free_section(data.segment_type(), &logs);
        space.allocate(4, 0);
        assert_eq!((second, room(&space, &[0, 4])), (Some(4), (1, 3, 3, 0)));
        // The last resort.
        let mixed = space.take_empty_segment(data.segment_type(), &logs);
        space.allocate(1, 0);
        assert_eq!((mixed, room(&space, &[0])), (Some(1), (1, 3, 0, 0)));
        space.release(1, 0);
        space.set_cleaned(4..8, true);
        assert_eq!(room(&space, &[0]), (1, 0, 3, 0));
        space.set_cleaned(4..8, false);
        space.release(4, 0);
        assert_eq!(room(&space, &[0]), (2, 0, 3, 0));
        space.install(BTreeMap::new(), [(9, 1)].into_iter());
        assert_eq!(room(&space, &[]), (2, 3, 0, 0));
    }

    #[test]
    fn no_log_fills_holes_between_synced_blocks_of_the_other_kind() {
        let (data, nodes) = (LogName::WarmData, LogName::WarmNodes);
        for (before, kept, (fills, other)) in [
            (nodes, BlockKind::Data, (data, nodes)),
            (data, BlockKind::Data, (data, nodes)),
            (data, BlockKind::Node, (nodes, data)),
            (nodes, BlockKind::Node, (nodes, data)),
        ] {
            let mut space = space(&[(nodes, 512), (before, 0), (data, 512)]);
            [7, 8].into_iter().for_each(|index| space.keep((1, index), kept));
            assert_eq!(space.totals, space.sum());
            let mut take =
                |log: LogName| space.take_segment_with_holes(log.segment_type(), &BTreeSet::new());
            assert_eq!(take(other), None, "{before:?} {kept:?}");
            assert_eq!(take(fills), Some(1), "{before:?} {kept:?}");
        }
    }
}
