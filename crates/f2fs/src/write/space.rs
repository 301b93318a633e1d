//! The use of the blocks of the main area: in the last checkpoint, and allocated since.
//!
//! A block that the last checkpoint uses stays as it is until the next checkpoint is durable. So a block is taken if the
//! last checkpoint uses it, or if it was allocated since. The next checkpoint finds out which of the allocated blocks
//! belong to something ([`SegmentChanges`]), and the others are free after it.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, FsBlock, Location, Problem, Result};

use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::ondisk::sit::{RawSitEntry, SIT_MAP_BYTES};
use crate::sit::{COUNT_BITS, SegmentEntry};
use crate::volume::Volume;

const STRUCTURE: &str = "SIT entry";

/// A bit for each block of a segment.
type SegmentMap = [u8; SIT_MAP_BYTES];

/// The use of all blocks of the main area.
#[derive(Debug)]
pub(super) struct Space {
    /// The entries of the last checkpoint.
    entries: Vec<RawSitEntry>,
    /// The blocks allocated since, by segment.
    allocated: BTreeMap<u32, Box<SegmentMap>>,
    /// The types of segments that logs have begun since.
    kinds: BTreeMap<u32, u16>,
    /// Blocks of the main area that are not taken.
    free: u64,
    segments_per_section: u32,
    /// The section from which on a free one is searched.
    next_section: u32,
}

impl Space {
    /// Reads the whole table. Entries in `journal` override it.
    pub(super) fn read(volume: &Volume, journal: &BTreeMap<u32, RawSitEntry>) -> Result<Self> {
        let geometry = volume.geometry();
        let read =
            |segment| SegmentEntry::read(volume, journal, segment).map(|entry| entry.raw().clone());
        let entries: Vec<_> = (0..geometry.main_segments()).map(read).collect::<Result<_>>()?;
        let mut space = Self {
            entries,
            allocated: BTreeMap::new(),
            kinds: BTreeMap::new(),
            free: 0,
            segments_per_section: geometry.segments_per_section.max(1),
            next_section: 0,
        };
        space.count_free();
        Ok(space)
    }

    fn count_free(&mut self) {
        let maps = self.entries.iter().map(|entry| &entry.map);
        let maps = maps.chain(self.allocated.values().map(Box::as_ref));
        let taken: u64 = maps.flatten().map(|byte| u64::from(byte.count_ones())).sum();
        let all = self.entries.len() as u64 * SEGMENT_BLOCKS;
        self.free = all.saturating_sub(taken);
    }

    /// Returns the number of blocks that can be allocated before the next checkpoint.
    pub(super) fn free_blocks(&self) -> u64 {
        self.free
    }

    /// Returns whether a block of a segment of the main area is taken.
    pub(super) fn is_taken(&self, segment: u32, index: u64) -> bool {
        let is_in = |map: &SegmentMap| map[(index / 8) as usize] & bit(index) != 0;
        let of_checkpoint =
            self.entries.get(segment as usize).is_none_or(|entry| is_in(&entry.map));
        of_checkpoint || self.allocated.get(&segment).is_some_and(|map| is_in(map))
    }

    /// Records that a block of the main area was allocated. Does nothing if it is taken.
    pub(super) fn allocate(&mut self, segment: u32, index: u64) {
        if !self.is_taken(segment, index) {
            let map = self.allocated.entry(segment).or_insert_with(|| Box::new([0; SIT_MAP_BYTES]));
            map[(index / 8) as usize] |= bit(index);
            self.free -= 1;
        }
    }

    /// Records that an allocated block belongs to nothing.
    pub(super) fn release(&mut self, segment: u32, index: u64) {
        let Some(map) = self.allocated.get_mut(&segment) else { return };
        let byte = &mut map[(index / 8) as usize];
        if *byte & bit(index) != 0 {
            *byte &= !bit(index);
            self.free += 1;
        }
    }

    fn is_empty(&self, segment: u32) -> bool {
        let of_checkpoint = self.entries.get(segment as usize);
        of_checkpoint.is_some_and(|entry| entry.map.iter().all(|byte| *byte == 0))
            && self.allocated.get(&segment).is_none_or(|map| map.iter().all(|byte| *byte == 0))
    }

    /// Gives a segment of a log the log's type.
    pub(super) fn set_kind(&mut self, segment: u32, kind: u16) {
        let stored = self.entries.get(segment as usize);
        if stored.is_some_and(|entry| entry.valid_blocks.get() >> COUNT_BITS != kind) {
            self.kinds.insert(segment, kind);
        }
    }

    /// Takes the segment after `last`, which is full, if it is empty and in the same section, or else the first segment of
    /// a section without any taken block. Gives it the type `kind`. Returns `None` if there is none. `logs` are the
    /// segments of all logs.
    pub(super) fn take_free_segment(
        &mut self,
        kind: u16,
        last: u32,
        logs: &BTreeSet<u32>,
    ) -> Option<u32> {
        let per_section = self.segments_per_section;
        let next = last + 1;
        if next % per_section != 0 && self.is_empty(next) && !logs.contains(&next) {
            self.kinds.insert(next, kind);
            return Some(next);
        }
        let sections = self.entries.len() as u32 / per_section;
        let after = (self.next_section..sections).chain(0..self.next_section.min(sections));
        let is_free = |section: &u32| {
            let mut segments = section * per_section..(section + 1) * per_section;
            segments.all(|number| !logs.contains(&number) && self.is_empty(number))
        };
        let section = after.into_iter().find(is_free)?;
        self.next_section = section + 1;
        self.kinds.insert(section * per_section, kind);
        Some(section * per_section)
    }

    /// Takes the segment of data, or of nodes, with the most blocks that are not taken, and gives it the type `kind`.
    /// Returns `None` if there is none.
    pub(super) fn take_segment_with_holes(
        &mut self,
        kind: u16,
        logs: &BTreeSet<u32>,
    ) -> Option<u32> {
        let is_node = |kind: u16| usize::from(kind) >= crate::summaries::LOGS;
        let holes = |number: u32| {
            let entry = &self.entries[number as usize];
            let own = self.allocated.get(&number);
            let taken = |at: usize| entry.map[at] | own.map_or(0, |map| map[at]);
            (0..SIT_MAP_BYTES).map(|at| taken(at).count_zeros()).sum::<u32>()
        };
        let kind_of = |number: u32| {
            let stored = || self.entries[number as usize].valid_blocks.get() >> COUNT_BITS;
            self.kinds.get(&number).copied().unwrap_or_else(stored)
        };
        let candidates = (0..self.entries.len() as u32).filter(|number| {
            let fits = self.is_empty(*number) || is_node(kind_of(*number)) == is_node(kind);
            fits && !logs.contains(number)
        });
        let best = candidates.map(|number| (holes(number), number)).max_by_key(|best| best.0)?;
        if best.0 == 0 {
            return None;
        }
        self.kinds.insert(best.1, kind);
        Some(best.1)
    }

    /// Ends a checkpoint: its entries are those of the last one from now on. Allocated blocks are free, unless `in_flight`
    /// has them.
    pub(super) fn install(
        &mut self,
        changed: BTreeMap<u32, RawSitEntry>,
        in_flight: impl Iterator<Item = (u32, u64)>,
    ) {
        for (number, entry) in changed {
            self.entries[number as usize] = entry;
        }
        self.allocated.clear();
        self.kinds.clear();
        self.count_free();
        for (segment, index) in in_flight {
            self.allocate(segment, index);
        }
    }
}

/// The entries that a checkpoint changes.
pub(super) struct SegmentChanges<'s> {
    space: &'s Space,
    /// The segments of the logs.
    logs: BTreeSet<u32>,
    changed: BTreeMap<u32, RawSitEntry>,
}

impl<'s> SegmentChanges<'s> {
    pub(super) fn new(space: &'s Space, logs: BTreeSet<u32>) -> Self {
        let mut changes = Self { space, logs, changed: BTreeMap::new() };
        for (number, kind) in &space.kinds {
            changes.entry(*number).valid_blocks.set(
                kind << COUNT_BITS
                    | space.entries[*number as usize].valid_blocks.get() & COUNT_MASK,
            );
        }
        changes
    }

    fn entry(&mut self, number: u32) -> &mut RawSitEntry {
        let entries = &self.space.entries;
        self.changed.entry(number).or_insert_with(|| entries[number as usize].clone())
    }

    /// Makes a block of the main area used. An empty segment that no log has begun becomes one of the type `kind`.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the block is in use.
    pub(super) fn set_used(
        &mut self,
        geometry: &Geometry,
        block: FsBlock,
        kind: u16,
    ) -> Result<()> {
        self.set(geometry, block, Some(kind))
    }

    /// Makes a block of the main area free. Errors: `Corrupt` if it is not in use.
    pub(super) fn set_free(&mut self, geometry: &Geometry, block: FsBlock) -> Result<()> {
        self.set(geometry, block, None)
    }

    fn set(&mut self, geometry: &Geometry, block: FsBlock, used: Option<u16>) -> Result<()> {
        let (number, index) = segment_of(geometry, block);
        let is_begun = self.space.kinds.contains_key(&number) || self.logs.contains(&number);
        let entry = self.entry(number);
        let (byte, bit) = ((index / 8) as usize, bit(index));
        if (entry.map[byte] & bit != 0) == used.is_some() {
            let problem = match used {
                Some(_) => Problem::Shared { blocks: 1 },
                None => Problem::MarkedFree { count: 1 },
            };
            return Err(Error::corrupt(STRUCTURE, Location::block(block), problem));
        }
        entry.map[byte] ^= bit;
        let (count, old_kind) =
            (entry.valid_blocks.get() & COUNT_MASK, entry.valid_blocks.get() >> COUNT_BITS);
        // The map has as many bits, so the count cannot leave its range unless the entry was damaged.
        let (count, kind) = match used {
            Some(kind) if count == 0 && !is_begun => (1, kind),
            Some(_) => (count + 1, old_kind),
            None => (count.saturating_sub(1), old_kind),
        };
        entry.valid_blocks.set(kind << COUNT_BITS | count & COUNT_MASK);
        Ok(())
    }

    /// Returns whether a block of a segment is used in the new checkpoint.
    pub(super) fn is_used(&self, segment: u32, index: u64) -> bool {
        let entry = self.changed.get(&segment).or(self.space.entries.get(segment as usize));
        entry.is_some_and(|entry| entry.map[(index / 8) as usize] & bit(index) != 0)
    }

    /// Returns the number of segments without blocks in use that are not those of logs.
    pub(super) fn free_segments(&self) -> u32 {
        let count = |number: u32| {
            let entry = self.changed.get(&number).unwrap_or(&self.space.entries[number as usize]);
            entry.valid_blocks.get() & COUNT_MASK
        };
        let all = 0..self.space.entries.len() as u32;
        all.filter(|number| count(*number) == 0 && !self.logs.contains(number)).count() as u32
    }

    /// Returns the entries that have changed.
    pub(super) fn into_changed(self) -> BTreeMap<u32, RawSitEntry> {
        self.changed
    }
}

/// The bits of an entry with the number of blocks in use.
const COUNT_MASK: u16 = (1 << COUNT_BITS) - 1;

fn bit(index: u64) -> u8 {
    0x80 >> (index % 8)
}

/// Returns the segment of a block of the main area, and the block's index in it.
pub(crate) fn segment_of(geometry: &Geometry, block: FsBlock) -> (u32, u64) {
    let from_main = block.0.saturating_sub(geometry.main.start.0);
    ((from_main / SEGMENT_BLOCKS) as u32, from_main % SEGMENT_BLOCKS)
}
