//! Listing of a directory's entries from a cursor on, in the order of its blocks.
//!
//! A cursor is the number of a slot, counted through all blocks of the directory. It stays valid
//! while the entry does not move, and any number is a valid cursor: a number inside an entry stands
//! for the next entry.

use std::ops::ControlFlow;

use base::attributes::{DirCursor, DirEntry};
use base::{FileBlock, Location, Result};
use fscrypt::ShownNames;

use super::entries::Entries;
use super::{Blocks, Directory, DirectoryShape, InlineDirectory};

/// The function that receives the entries.
type Emit<'e> = &'e mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>;

impl<B: Blocks> Directory<'_, B> {
    /// Calls `emit` for each entry ("." and ".." included) from `from` on, until `emit` breaks or
    /// the directory ends. Names have the form `shown`. Reads mapped blocks only.
    pub fn read_dir(
        &self,
        from: DirCursor,
        shown: ShownNames<'_>,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut at = FileBlock(from.0 / self.slots);
        let mut blocks_read = 0;
        while let Some(block) = self.next_mapped(at)? {
            self.count_read(&mut blocks_read)?;
            if let Some((bytes, location)) = self.block(block)? {
                // No overflow: a directory has at most 2^40 blocks.
                let start = DirCursor(block.0 * self.slots);
                let listing = Listing { shape: self.shape, shown, start, from };
                if listing.list(&bytes, location, emit)?.is_break() {
                    return Ok(());
                }
            }
            at = FileBlock(block.0 + 1);
        }
        Ok(())
    }
}

impl InlineDirectory<'_> {
    /// Calls `emit` for each entry ("." and ".." included) from `from` on, until `emit` breaks or
    /// the directory ends. Names have the form `shown`.
    pub fn read_dir(
        &self,
        from: DirCursor,
        shown: ShownNames<'_>,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let listing = Listing { shape: self.shape, shown, start: DirCursor(0), from };
        let _ = listing.list(self.area, self.location, emit)?;
        Ok(())
    }
}

/// The listing of one dentry area.
struct Listing<'a> {
    shape: &'a DirectoryShape,
    shown: ShownNames<'a>,
    /// The cursor of the area's first slot.
    start: DirCursor,
    /// The cursor of the first entry that is listed.
    from: DirCursor,
}

impl Listing<'_> {
    /// Lists the entries of the area `bytes`, which lies at `location`.
    fn list(&self, bytes: &[u8], location: Location, emit: Emit<'_>) -> Result<ControlFlow<()>> {
        for entry in Entries::new(bytes, location) {
            let entry = entry?;
            if self.start.0 + (entry.slot as u64) < self.from.0 {
                continue;
            }
            entry.check(&self.shape.entry_format(), location)?;
            let next = DirCursor(self.start.0 + entry.end as u64);
            let name = self.shown.name(entry.name, || [entry.hash, 0])?;
            let entry = DirEntry { name: &name, inode: entry.inode, kind: entry.kind, next };
            if emit(entry).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
