//! Directories whose entries are in their inode. Not here: where an inode has such data
//! (`inode/inline.rs`), and changes (`inline_write.rs`).

use std::ops::ControlFlow;

use base::attributes::{DirCursor, DirEntry, FileType};
use base::{Error, InodeNumber, Location, Problem, Result};

use super::block::{DirFormat, entry_bytes};
use super::slots::{Emit, list_slots};
use crate::core::Core;
use crate::inode::inline::value;
use crate::inode::record::InodeRecord;

/// Bytes at the start of an inline directory: the number of the parent's inode.
pub(crate) const PARENT_BYTES: usize = 4;

/// An inline directory: the parent's number, and entries in two parts. No entry crosses the end of
/// a part.
///
/// Entries "." and ".." are not stored. Cursors are the positions that the entries get when the
/// directory is converted to a block, which begins with "." and "..".
pub(crate) struct InlineDirectory<'a> {
    inode: InodeNumber,
    parent: InodeNumber,
    parts: [Part<'a>; 2],
}

/// A part of the entries, and its offset in the inode's data.
struct Part<'a> {
    start: u64,
    bytes: &'a [u8],
}

const PARENT_CURSOR: DirCursor = DirCursor(entry_bytes(1) as u64);
/// Offset of the first entry after ".." in a block.
pub(crate) const FIRST_ENTRY_AT: usize = entry_bytes(1) + entry_bytes(2);
const FIRST_ENTRY_CURSOR: DirCursor = DirCursor(FIRST_ENTRY_AT as u64);

impl<'a> InlineDirectory<'a> {
    /// Opens a directory whose data is inline.
    pub(crate) fn open(core: &Core, record: &'a InodeRecord) -> Result<Self> {
        let area = &record.block_area;
        let (parent, entries) = area.split_at(PARENT_BYTES);
        let parent = parent.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        Ok(Self {
            inode: record.number,
            parent: InodeNumber(parent),
            parts: [
                Part { start: PARENT_BYTES as u64, bytes: entries },
                Part { start: area.len() as u64, bytes: value(core, record)?.bytes },
            ],
        })
    }

    /// Returns the parent. Errors: `Corrupt` if it is not an inode of the volume.
    pub(crate) fn parent(&self, format: &DirFormat) -> Result<InodeNumber> {
        let (found, max) = (self.parent.0, format.inode_max.0);
        if found == 0 || found > max {
            let problem = Problem::Range { field: "parent", found, min: 1, max };
            return Err(Error::corrupt("inline directory", self.location(), problem));
        }
        Ok(self.parent)
    }

    /// Returns the bytes of each part, with the location of the part's first byte.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'a [u8], Location)> {
        let location = self.location();
        self.parts.iter().map(move |part| (part.bytes, location.at_byte(part.start)))
    }

    pub(crate) fn find(&self, format: &DirFormat, name: &[u8]) -> Result<Option<InodeNumber>> {
        match name {
            b"." => return Ok(Some(self.inode)),
            b".." => return self.parent(format).map(Some),
            _ => {}
        }
        for (bytes, location) in self.parts() {
            if let Some(found) = format.find(bytes, location, name)? {
                return Ok(Some(found.inode));
            }
        }
        Ok(None)
    }

    pub(crate) fn list(&self, format: &DirFormat, from: DirCursor, emit: Emit<'_>) -> Result<()> {
        let kind = format.has_file_types.then_some(FileType::Directory);
        if from.0 == 0
            && emit(DirEntry { name: b".", inode: self.inode, kind, next: PARENT_CURSOR })
                .is_break()
        {
            return Ok(());
        }
        if from.0 <= PARENT_CURSOR.0 {
            let (inode, next) = (self.parent(format)?, FIRST_ENTRY_CURSOR);
            if emit(DirEntry { name: b"..", inode, kind, next }).is_break() {
                return Ok(());
            }
        }
        for (part, (bytes, location)) in self.parts.iter().zip(self.parts()) {
            let start = DirCursor(FIRST_ENTRY_CURSOR.0 + part.start - PARENT_BYTES as u64);
            if list_slots(format, bytes, location, start, from, emit)? == ControlFlow::Break(()) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn location(&self) -> Location {
        Location::inode(self.inode)
    }
}
