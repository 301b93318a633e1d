//! Reservations for blocks of pointers. Delayed blocks of a file with a block map may need blocks of pointers that the
//! map does not have. A block of the volume is reserved for each of these, so that writeback finds it.
//! Not here: their allocation (`map_write/pointers.rs`), and the reservations for data (`fs/delayed.rs`).

use std::ops::{Range, RangeInclusive};

use base::{FileBlock, Ranges, Result};
use fs::Delayed;

use crate::indirect::{LEVELS, below_pointer_block, missing_pointer_blocks, pointer_blocks};
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::layout::geometry::Geometry;
use crate::map_write::NO_CLUSTERS;

/// A set of blocks of pointers of one file, by level (`indirect.rs`).
///
/// The set that an inode keeps has exactly the blocks of pointers that the map does not have, and that are on the path to a
/// delayed block. Its lock is held while the delayed blocks or the map change.
#[derive(Debug, Default)]
pub(crate) struct PointerBlocks {
    levels: [Ranges; LEVELS as usize],
    count: u64,
}

impl PointerBlocks {
    /// Returns the number of blocks of pointers.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    fn level(&self, level: u32) -> &Ranges {
        &self.levels[level as usize - 1]
    }

    fn insert(&mut self, level: u32, numbers: Range<u64>) {
        let numbers_of_level = &mut self.levels[level as usize - 1];
        self.count += numbers_of_level.missing(&numbers);
        numbers_of_level.insert(numbers);
    }

    /// Removes blocks of pointers. Returns how many were in the set.
    fn remove(&mut self, level: u32, numbers: Range<u64>) -> u64 {
        let removed = self.levels[level as usize - 1].remove(numbers);
        self.count -= removed;
        removed
    }

    /// Adds the blocks of pointers of some levels on the paths to `blocks`.
    pub(crate) fn insert_paths(
        &mut self,
        geometry: &Geometry,
        levels: RangeInclusive<u32>,
        blocks: &Range<FileBlock>,
    ) {
        levels.for_each(|level| self.insert(level, pointer_blocks(geometry, level, blocks)));
    }

    pub(super) fn insert_all(&mut self, other: &Self) {
        for level in 1..=LEVELS {
            other.level(level).iter().for_each(|numbers| self.insert(level, numbers));
        }
    }

    fn remove_all(&mut self, other: &Self) {
        for level in 1..=LEVELS {
            for numbers in other.level(level).iter() {
                self.remove(level, numbers);
            }
        }
    }

    /// Returns whether the set has all blocks of pointers on the paths to `blocks`.
    fn has_paths(&self, geometry: &Geometry, blocks: &Range<FileBlock>) -> bool {
        let has = |level| self.level(level).missing(&pointer_blocks(geometry, level, blocks)) == 0;
        (1..=LEVELS).all(has)
    }

    /// Removes the blocks of pointers on the paths to `blocks`, which were allocated.
    pub(super) fn remove_allocated(&mut self, geometry: &Geometry, blocks: &Range<FileBlock>) {
        if self.count > 0 {
            for level in 1..=LEVELS {
                self.remove(level, pointer_blocks(geometry, level, blocks));
            }
        }
    }

    /// Removes the blocks of pointers that no delayed block needs any more, after `blocks` were removed from `delayed`.
    /// Returns their number.
    pub(super) fn release(
        &mut self,
        geometry: &Geometry,
        blocks: &Range<FileBlock>,
        delayed: &Delayed,
    ) -> u64 {
        let mut released = 0;
        if self.count == 0 {
            return released;
        }
        for level in 1..=LEVELS {
            let mut numbers = pointer_blocks(geometry, level, blocks);
            let is_needed =
                |number| has_any(delayed, &below_pointer_block(geometry, level, number));
            // Those between the ends have only removed blocks below them.
            if !numbers.is_empty() && is_needed(numbers.start) {
                numbers.start += 1;
            }
            if !numbers.is_empty() && is_needed(numbers.end - 1) {
                numbers.end -= 1;
            }
            released += self.remove(level, numbers);
        }
        released
    }
}

/// Returns whether any of `blocks` is delayed.
fn has_any(delayed: &Delayed, blocks: &Range<FileBlock>) -> bool {
    let around = delayed.around(blocks.start);
    around.is_delayed || around.range.end < blocks.end
}

impl Inode {
    /// Returns the blocks of pointers that a hole needs, that the map does not have, and that are not `reserved`.
    pub(super) fn pointer_blocks_wanted(
        &self,
        reserved: &PointerBlocks,
        hole: &Range<FileBlock>,
    ) -> Result<PointerBlocks> {
        let geometry = self.volume().geometry();
        if geometry.cluster_shift > 0 {
            return Err(NO_CLUSTERS.into());
        }
        if reserved.has_paths(geometry, hole) {
            return Ok(PointerBlocks::default());
        }
        let mut wanted = missing_pointer_blocks(self.volume(), &self.record(), hole)?;
        wanted.remove_all(reserved);
        Ok(wanted)
    }

    /// Reserves blocks for the blocks of pointers that delayed blocks need, and that may be freed when `range`, which has
    /// no delayed blocks, is unmapped. They count as free only afterwards, so the caller must not fail for lack of space
    /// meanwhile. Returns them, for [`keep_freed_pointers`](Self::keep_freed_pointers).
    pub(crate) fn reserve_freed_pointers(
        &self,
        reserved: &PointerBlocks,
        range: &Range<FileBlock>,
    ) -> Result<PointerBlocks> {
        let geometry = self.volume().geometry();
        let mut kept = PointerBlocks::default();
        if self.has(InodeFlags::EXTENTS) {
            return Ok(kept);
        }
        let delayed = self.delayed.lock();
        for level in 1..=LEVELS {
            let numbers = pointer_blocks(geometry, level, range);
            // Those between the ends have no delayed blocks below them.
            for number in [Some(numbers.start), numbers.end.checked_sub(1)].into_iter().flatten() {
                let is_needed = has_any(&delayed, &below_pointer_block(geometry, level, number));
                if numbers.contains(&number) && is_needed && !reserved.level(level).contains(number)
                {
                    kept.insert(level, number..number + 1);
                }
            }
        }
        drop(delayed);
        self.volume().restore_reservation(kept.count())?;
        Ok(kept)
    }

    /// Adds to `reserved` those blocks of pointers of `kept` that the map does not have any more, and releases the
    /// reservation of the others.
    pub(crate) fn keep_freed_pointers(
        &self,
        reserved: &mut PointerBlocks,
        kept: PointerBlocks,
    ) -> Result<()> {
        if kept.count == 0 {
            return Ok(());
        }
        let geometry = self.volume().geometry();
        let mut freed = PointerBlocks::default();
        let mut result = Ok(());
        for (level, numbers) in (1..).zip(&kept.levels) {
            for number in numbers.iter().flatten() {
                let first = below_pointer_block(geometry, level, number).start;
                let path = first..FileBlock(first.0 + 1);
                match missing_pointer_blocks(self.volume(), &self.record(), &path) {
                    Ok(missing) if missing.level(level).contains(number) => {
                        freed.insert(level, number..number + 1);
                    }
                    Ok(_) => {}
                    Err(error) => result = Err(error),
                }
            }
        }
        reserved.insert_all(&freed);
        self.change_delayed(reserved.count(), |_| ());
        self.volume().unreserve(kept.count() - freed.count())?;
        result
    }
}

#[cfg(test)]
#[path = "pointer_blocks_tests.rs"]
mod tests;
