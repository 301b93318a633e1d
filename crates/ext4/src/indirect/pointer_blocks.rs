//! Sets of blocks of pointers, and those that a map does not have. Not here: reservations for them
//! (`data/pointer_reserve.rs`).

use std::ops::{Range, RangeInclusive};

use base::{FileBlock, FsBlock, Location, Ranges, Result};
use fs::Delayed;

use super::{
    DIRECT, LEVELS, Pointers, STRUCTURE, below_pointer_block, blocks_below, common, pointer_blocks,
    start_of_level,
};
use crate::core::Core;
use crate::inode::record::InodeRecord;
use crate::layout::geometry::Geometry;

/// A set of blocks of pointers of one file, by level (`mod.rs`).
///
/// The set that an inode keeps has exactly the blocks of pointers that the map does not have, and
/// that are on the path to a delayed block. Its lock is held while the delayed blocks or the map
/// change.
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

    pub(crate) fn level(&self, level: u32) -> &Ranges {
        &self.levels[level as usize - 1]
    }

    pub(crate) fn insert(&mut self, level: u32, numbers: Range<u64>) {
        let numbers_of_level = &mut self.levels[level as usize - 1];
        self.count += numbers_of_level.missing(&numbers);
        numbers_of_level.insert(numbers);
    }

    /// Removes blocks of pointers. Returns how many were in the set.
    pub(crate) fn remove(&mut self, level: u32, numbers: Range<u64>) -> u64 {
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

    pub(crate) fn insert_all(&mut self, other: &Self) {
        for level in 1..=LEVELS {
            other.level(level).iter().for_each(|numbers| self.insert(level, numbers));
        }
    }

    pub(crate) fn remove_all(&mut self, other: &Self) {
        for level in 1..=LEVELS {
            for numbers in other.level(level).iter() {
                self.remove(level, numbers);
            }
        }
    }

    /// Returns whether the set has all blocks of pointers on the paths to `blocks`.
    pub(crate) fn has_paths(&self, geometry: &Geometry, blocks: &Range<FileBlock>) -> bool {
        let has = |level| self.level(level).missing(&pointer_blocks(geometry, level, blocks)) == 0;
        (1..=LEVELS).all(has)
    }

    /// Removes the blocks of pointers on the paths to `blocks`, which were allocated.
    pub(crate) fn remove_allocated(&mut self, geometry: &Geometry, blocks: &Range<FileBlock>) {
        if self.count > 0 {
            for level in 1..=LEVELS {
                self.remove(level, pointer_blocks(geometry, level, blocks));
            }
        }
    }

    /// Removes the blocks of pointers that no delayed block needs any more, after `blocks` were
    /// removed from `delayed`. Returns their number.
    pub(crate) fn release(
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
pub(crate) fn has_any(delayed: &Delayed, blocks: &Range<FileBlock>) -> bool {
    let around = delayed.around(blocks.start);
    around.is_delayed || around.range.end < blocks.end
}

/// Returns the blocks of pointers on the paths to `blocks` that the map does not have.
pub(crate) fn missing_pointer_blocks(
    core: &Core,
    record: &InodeRecord,
    blocks: &Range<FileBlock>,
) -> Result<PointerBlocks> {
    let geometry = core.geometry();
    let root = Pointers(&record.block_area);
    let mut missing = PointerBlocks::default();
    for level in 1..=LEVELS {
        let tree = FileBlock(start_of_level(geometry, level))
            ..FileBlock(start_of_level(geometry, level + 1));
        let block = root.get(DIRECT + level as usize - 1);
        let part = common(blocks, &tree);
        add_missing(core, record, (level, block), &part, &mut missing)?;
    }
    Ok(missing)
}

/// Adds the blocks of pointers that are missing on the paths to `blocks`, all of which are below
/// `block`, a block of pointers of `level`, or 0 if it is missing.
fn add_missing(
    core: &Core,
    record: &InodeRecord,
    (level, block): (u32, FsBlock),
    blocks: &Range<FileBlock>,
    missing: &mut PointerBlocks,
) -> Result<()> {
    let validity = core.block_validity(record.number);
    let geometry = validity.geometry;
    if blocks.is_empty() {
        return Ok(());
    }
    if block.0 == 0 {
        missing.insert_paths(geometry, 1..=level, blocks);
        return Ok(());
    }
    if level == 1 {
        return Ok(());
    }
    let location = Location::inode(record.number).at_file_block(blocks.start).at_block(block);
    validity.check(STRUCTURE, location, block, 1)?;
    let buffer = core.read_metadata(block, STRUCTURE, location)?;
    let pointers = Pointers(&buffer);
    let number = pointer_blocks(geometry, level, blocks).start;
    let start = below_pointer_block(geometry, level, number).start;
    for child in pointer_blocks(geometry, level - 1, blocks) {
        let below = below_pointer_block(geometry, level - 1, child);
        let slot = (below.start.0 - start.0) / blocks_below(geometry, level - 1);
        let child = (level - 1, pointers.get(slot as usize));
        // The level falls with each call.
        add_missing(core, record, child, &common(blocks, &below), missing)?;
    }
    Ok(())
}
