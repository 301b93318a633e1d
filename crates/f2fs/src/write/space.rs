//! The use of the blocks of the main area, changed since the last checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, FsBlock, Location, Problem, Result};

use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::ondisk::sit::RawSitEntry;
use crate::sit::{COUNT_BITS, SegmentEntry};
use crate::summaries::Log;
use crate::volume::Volume;

const STRUCTURE: &str = "SIT entry";

/// Segments that were looked at, and their changes.
pub(crate) struct Space<'v> {
    volume: &'v Volume,
    /// The entries of the checkpoint that override those of the table.
    journal: BTreeMap<u32, RawSitEntry>,
    segments: BTreeMap<u32, Segment>,
    /// Segments that are not allocated: those of logs, and those with blocks that must be kept.
    reserved: BTreeSet<u32>,
    /// No section before this one has a free segment.
    next_section: u32,
}

/// A segment before and after its changes.
#[derive(Clone, Debug)]
struct Segment {
    before: SegmentEntry,
    now: RawSitEntry,
}

impl Segment {
    fn count(&self) -> u16 {
        self.now.valid_blocks.get() & ((1 << COUNT_BITS) - 1)
    }

    fn is_free(&self) -> bool {
        self.before.count() == 0 && self.count() == 0
    }
}

impl<'v> Space<'v> {
    pub(crate) fn new(volume: &'v Volume, journal: BTreeMap<u32, RawSitEntry>) -> Self {
        let logs = Log::all(volume.checkpoint());
        let reserved = logs.iter().map(|log| log.segment).collect();
        Self { volume, journal, segments: BTreeMap::new(), reserved, next_section: 0 }
    }

    /// Excludes the segment of a block from allocation.
    pub(crate) fn reserve(&mut self, block: FsBlock) {
        let (segment, _) = segment_of(self.volume.geometry(), block);
        self.reserved.insert(segment);
    }

    /// Makes a block of the main area used. An empty segment becomes one of the type `kind`.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the block is in use.
    pub(crate) fn set_used(&mut self, block: FsBlock, kind: u16) -> Result<()> {
        self.set(block, true, kind)
    }

    /// Makes a block of the main area free. Errors: `Corrupt` if it is not in use.
    pub(crate) fn set_free(&mut self, block: FsBlock) -> Result<()> {
        self.set(block, false, 0)
    }

    fn set(&mut self, block: FsBlock, used: bool, kind: u16) -> Result<()> {
        let geometry = self.volume.geometry();
        let (number, index) = segment_of(geometry, block);
        let segment = self.segment(number)?;
        let (byte, bit) = ((index / 8) as usize, 0x80_u8 >> (index % 8));
        if (segment.now.map[byte] & bit != 0) == used {
            let problem =
                if used { Problem::Shared { blocks: 1 } } else { Problem::MarkedFree { count: 1 } };
            return Err(Error::corrupt(STRUCTURE, Location::block(block), problem));
        }
        segment.now.map[byte] ^= bit;
        let count = segment.count();
        let old_kind = segment.now.valid_blocks.get() >> COUNT_BITS;
        // The map has as many bits, so the count cannot leave its range unless the entry was damaged.
        let (count, kind) = match (used, count) {
            (true, 0) => (1, kind),
            (true, count) => (count + 1, old_kind),
            (false, count) => (count.saturating_sub(1), old_kind),
        };
        segment.now.valid_blocks.set(kind << COUNT_BITS | count);
        Ok(())
    }

    fn segment(&mut self, number: u32) -> Result<&mut Segment> {
        if !self.segments.contains_key(&number) {
            let before = SegmentEntry::read(self.volume, &self.journal, number)?;
            let now = before.raw().clone();
            self.segments.insert(number, Segment { before, now });
        }
        Ok(self.segments.get_mut(&number).expect("it was just inserted"))
    }

    /// Takes a segment that the checkpoint does not use, in a section without any block in use, and gives it the type
    /// `kind`. Errors: `NoSpace`.
    pub(crate) fn take_segment(&mut self, kind: u16) -> Result<u32> {
        let geometry = self.volume.geometry();
        let per_section = geometry.segments_per_section.max(1);
        for section in self.next_section..geometry.main_segments() / per_section {
            let segments = section * per_section..(section + 1) * per_section;
            let mut is_free = true;
            for number in segments.clone() {
                is_free &= !self.reserved.contains(&number) && self.segment(number)?.is_free();
            }
            if is_free {
                self.next_section = section + 1;
                self.reserved.insert(segments.start);
                self.segment(segments.start)?.now.valid_blocks.set(kind << COUNT_BITS);
                return Ok(segments.start);
            }
        }
        Err(Error::NoSpace)
    }

    /// Returns the number of segments without blocks in use that are not those of `logs`.
    pub(crate) fn free_segments(&mut self, logs: &BTreeSet<u32>) -> Result<u32> {
        let old_logs: BTreeSet<u32> =
            Log::all(self.volume.checkpoint()).iter().map(|log| log.segment).collect();
        let mut free = i64::from(self.volume.checkpoint().raw.free_segments.get());
        let mut looked_at: BTreeSet<u32> = self.segments.keys().copied().collect();
        looked_at.extend(&old_logs);
        looked_at.extend(logs);
        for number in looked_at {
            let segment = self.segment(number)?;
            let was_free = segment.before.count() == 0 && !old_logs.contains(&number);
            let is_free = segment.count() == 0 && !logs.contains(&number);
            free += i64::from(is_free) - i64::from(was_free);
        }
        u32::try_from(free).map_err(|_| {
            let problem = Problem::Invalid { field: "free segments", found: free as u64 };
            Error::corrupt("checkpoint", Location::block(self.volume.checkpoint().start), problem)
        })
    }

    /// Returns the entries to write: those that have changed, and those of the journal.
    pub(crate) fn changes(&self) -> BTreeMap<u32, RawSitEntry> {
        let mut changes = self.journal.clone();
        for (number, segment) in &self.segments {
            let is_same = segment.now.map == segment.before.raw().map
                && segment.now.valid_blocks == segment.before.raw().valid_blocks;
            if !is_same {
                changes.insert(*number, segment.now.clone());
            }
        }
        changes
    }
}

/// Returns the segment of a block of the main area, and the block's index in it.
pub(crate) fn segment_of(geometry: &Geometry, block: FsBlock) -> (u32, u64) {
    let from_main = block.0.saturating_sub(geometry.main.start.0);
    ((from_main / SEGMENT_BLOCKS) as u32, from_main % SEGMENT_BLOCKS)
}
