//! Listing of a directory's entries from a cursor on, in the order of its blocks.
//!
//! A cursor is the number of a slot, counted through all blocks of the directory. It stays valid while the entry does
//! not move, and any number is a valid cursor: a number inside an entry stands for the next entry.

use std::ops::ControlFlow;

use base::attributes::{DirCursor, DirEntry};
use base::{FileBlock, Location, Result};

use super::entries::Entries;
use super::{Blocks, Directory, DirectoryShape, InlineDirectory};

/// The function that receives the entries.
type Emit<'e> = &'e mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>;

impl<B: Blocks> Directory<'_, B> {
    /// Calls `emit` for each entry ("." and ".." included) from `from` on, until `emit` breaks or the directory ends.
    /// Names are as stored. Reads mapped blocks only.
    pub fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut at = FileBlock(from.0 / self.slots);
        let mut blocks_read = 0;
        while let Some(block) = self.next_mapped(at)? {
            self.count_read(&mut blocks_read)?;
            if let Some((bytes, location)) = self.block(block)? {
                // No overflow: a directory has at most 2^40 blocks.
                let start = DirCursor(block.0 * self.slots);
                if list_area(&bytes, location, self.shape, start, from, emit)?.is_break() {
                    return Ok(());
                }
            }
            at = FileBlock(block.0 + 1);
        }
        Ok(())
    }
}

impl InlineDirectory<'_> {
    /// Calls `emit` for each entry ("." and ".." included) from `from` on, until `emit` breaks or the directory ends.
    /// Names are as stored.
    pub fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let _ = list_area(self.area, self.location, self.shape, DirCursor(0), from, emit)?;
        Ok(())
    }
}

/// Lists the entries of one dentry area, whose first slot has the cursor `start`, from cursor `from` on.
fn list_area(
    bytes: &[u8],
    location: Location,
    shape: &DirectoryShape,
    start: DirCursor,
    from: DirCursor,
    emit: Emit<'_>,
) -> Result<ControlFlow<()>> {
    for entry in Entries::new(bytes, location) {
        let entry = entry?;
        if start.0 + (entry.slot as u64) < from.0 {
            continue;
        }
        entry.check(&shape.entry_format(), location)?;
        let next = DirCursor(start.0 + entry.end as u64);
        let entry = DirEntry { name: entry.name, inode: entry.inode, kind: entry.kind, next };
        if emit(entry).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
