//! Reservations for blocks of pointers. Delayed blocks of a file with a block map may need blocks
//! of pointers that the map does not have. A block of the volume is reserved for each of these, so
//! that writeback finds it. Not here: their allocation (`map_write/pointers.rs`), and the
//! reservations for data (`fs/delayed.rs`).

use std::ops::Range;

use base::{FileBlock, Result};

use crate::indirect::pointer_blocks::{PointerBlocks, has_any, missing_pointer_blocks};
use crate::indirect::{LEVELS, below_pointer_block, pointer_blocks};
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::map_write::NO_CLUSTERS;

impl Inode {
    /// Returns the blocks of pointers that a hole needs, that the map does not have, and that are
    /// not `reserved`.
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

    /// Reserves blocks for the blocks of pointers that delayed blocks need, and that may be freed
    /// when `range`, which has no delayed blocks, is unmapped. They count as free only afterwards,
    /// so the caller must not fail for lack of space meanwhile. Returns them, for
    /// [`keep_freed_pointers`](Self::keep_freed_pointers).
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
        self.volume().allocator()?.restore_reservation(kept.count());
        Ok(kept)
    }

    /// Adds to `reserved` those blocks of pointers of `kept` that the map does not have any more,
    /// and releases the reservation of the others.
    pub(crate) fn keep_freed_pointers(
        &self,
        reserved: &mut PointerBlocks,
        kept: PointerBlocks,
    ) -> Result<()> {
        if kept.count() == 0 {
            return Ok(());
        }
        let geometry = self.volume().geometry();
        let mut freed = PointerBlocks::default();
        let mut result = Ok(());
        for (level, numbers) in (1..=LEVELS).map(|level| (level, kept.level(level))) {
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
        self.volume().allocator()?.unreserve(kept.count() - freed.count());
        result
    }
}

#[cfg(test)]
#[path = "pointer_reserve_tests.rs"]
mod tests;
