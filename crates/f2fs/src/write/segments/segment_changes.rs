//! The entries of the segment information table that a checkpoint changes: which of the blocks that
//! were allocated since the last one belong to something, and which are free. Not here: the use of
//! blocks between checkpoints (`space.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base::{Error, FsBlock, Location, Problem, Result};

use super::space::{Space, is_unused, kind_of_type, replace_use};
use crate::geometry::Geometry;
use crate::ondisk::sit::RawSitEntry;
use crate::sit::bit;
use crate::summaries::BlockKind;

const STRUCTURE: &str = "SIT entry";

/// The entries that a checkpoint changes.
pub(crate) struct SegmentChanges<'s> {
    space: &'s Space,
    /// The segments of the logs.
    logs: BTreeSet<u32>,
    changed: BTreeMap<u32, RawSitEntry>,
    times: WriteTimes<'s>,
}

/// The times at which new blocks were written, in seconds since the volume was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteTimes<'t> {
    pub(crate) now: u64,
    /// Those of blocks that were moved.
    pub(crate) of_moved: &'t HashMap<FsBlock, u64>,
}

impl<'s> SegmentChanges<'s> {
    pub(crate) fn new(space: &'s Space, logs: BTreeSet<u32>, times: WriteTimes<'s>) -> Self {
        let mut changes = Self { space, logs, changed: BTreeMap::new(), times };
        for (number, kind) in &space.kinds {
            let entry = changes.entry(*number);
            entry.set_use(*kind, entry.count());
        }
        changes
    }

    fn entry(&mut self, number: u32) -> &mut RawSitEntry {
        let entries = &self.space.entries;
        self.changed.entry(number).or_insert_with(|| entries[number as usize].clone())
    }

    /// Makes a block of the main area used. An empty segment that no log has begun becomes one of
    /// the type `kind`.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the block is in use.
    pub(crate) fn set_used(
        &mut self,
        geometry: &Geometry,
        block: FsBlock,
        kind: u16,
    ) -> Result<()> {
        self.set(geometry, block, Some(kind))
    }

    /// Makes a block of the main area free, which has had data or a node.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the block is not in use, or in a segment of the other kind: a damaged file may
    /// have the block of a node as one of its own.
    pub(crate) fn set_free(
        &mut self,
        geometry: &Geometry,
        block: FsBlock,
        kind: BlockKind,
    ) -> Result<()> {
        let found = self.entry(geometry.segment_of(block).0).kind();
        if kind_of_type(found) != kind {
            let problem = Problem::Invalid { field: "segment type", found: found.into() };
            return Err(Error::corrupt(STRUCTURE, Location::block(block), problem));
        }
        self.set(geometry, block, None)
    }

    fn set(&mut self, geometry: &Geometry, block: FsBlock, used: Option<u16>) -> Result<()> {
        let (number, index) = geometry.segment_of(block);
        let time = self.times.of_moved.get(&block).copied().unwrap_or(self.times.now);
        let is_begun = self.space.kinds.contains_key(&number) || self.logs.contains(&number);
        let entry = self.entry(number);
        if entry.has(index) == used.is_some() {
            let problem = match used {
                Some(_) => Problem::Shared { blocks: 1 },
                None => Problem::MarkedFree { count: 1 },
            };
            return Err(Error::corrupt(STRUCTURE, Location::block(block), problem));
        }
        entry.map[(index / 8) as usize] ^= bit(index);
        let (count, old_kind) = (entry.count(), entry.kind());
        if used.is_some() {
            let sum = u128::from(entry.mtime.get()) * u128::from(count) + u128::from(time);
            // An average of numbers with 64 bits.
            entry.mtime.set((sum / (u128::from(count) + 1)) as u64);
        }
        // The map has as many bits, so the count cannot leave its range unless the entry was
        // damaged.
        let (count, kind) = match used {
            Some(kind) if count == 0 && !is_begun => (1, kind),
            Some(_) => (count + 1, old_kind),
            None => (count.saturating_sub(1), old_kind),
        };
        entry.set_use(kind, count);
        Ok(())
    }

    /// Returns whether a block of a segment is used in the new checkpoint.
    pub(crate) fn is_used(&self, segment: u32, index: u64) -> bool {
        let entry = self.changed.get(&segment).or(self.space.entries.get(segment as usize));
        entry.is_some_and(|entry| entry.has(index))
    }

    /// Returns the number of segments without blocks in use that are not those of logs.
    pub(crate) fn free_segments(&self) -> u32 {
        let Self { space, logs, changed, .. } = self;
        let old = |number: &u32| space.entries.get(*number as usize);
        let mut free = space.unused;
        for (number, entry) in changed {
            free += u32::from(is_unused(entry));
            free -= u32::from(old(number).is_some_and(is_unused));
        }
        let of_logs = logs.iter().filter_map(|number| changed.get(number).or(old(number)));
        free - of_logs.filter(|entry| is_unused(entry)).count() as u32
    }

    /// Returns the number of blocks in use of data, and that of nodes.
    pub(crate) fn used(&self) -> [u64; 2] {
        let mut used = self.space.used;
        for (number, entry) in &self.changed {
            replace_use(&mut used, &self.space.entries[*number as usize], entry);
        }
        used
    }

    /// Returns the entries that have changed.
    pub(crate) fn into_changed(self) -> BTreeMap<u32, RawSitEntry> {
        self.changed
    }
}
