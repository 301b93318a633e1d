//! Data in the inode itself (`inline_data`), of files, links and directories: 60 bytes in the block area, and the
//! rest in the value of the attribute `system.data`.
//!
//! Source: kernel documentation, `filesystems/ext4/inlinedata.rst`.

use std::ops::ControlFlow;

use base::attributes::{DirCursor, DirEntry, FileType};
use base::{Error, InodeNumber, Location, Problem, Result};

use crate::dir::block::{DirFormat, entry_bytes};
use crate::dir::list::{Emit, list_slots};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;
use crate::volume::Volume;
use crate::xattr::entries::{Entries, Entry, Value};
use crate::xattr::name::INLINE_DATA_NAME;
use fs::xattr::NameIndex;

const STRUCTURE: &str = "inline data";
/// Offset of the first attribute entry in an inode's attribute area: after a magic number.
const ENTRIES_AT: usize = 4;
/// Bytes at the start of an inline directory: the number of the parent's inode.
pub(crate) const PARENT_BYTES: usize = 4;

/// Returns the inline data, up to the inode's size. A file may be longer than its inline data: mke2fs creates such
/// files if they are one hole. The rest reads as zeroes.
pub(crate) fn data(inode: &Inode) -> Result<Vec<u8>> {
    let record = inode.record();
    let mut data = [&record.block_area, value(inode.volume(), &record)?.bytes].concat();
    data.truncate(usize::try_from(record.size).unwrap_or(usize::MAX));
    Ok(data)
}

/// The part of the data that does not fit in the block area. It lies in the inode's attribute area.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineValue<'r> {
    pub bytes: &'r [u8],
    /// Offset of the value in the attribute area; meaningless if the value is empty.
    pub at: usize,
    /// Offset of the value's entry in the attribute area.
    pub entry_at: usize,
}

/// Returns the part of the data in the attribute area. The attribute exists even if its value is empty.
pub(crate) fn value<'r>(volume: &Volume, record: &'r InodeRecord) -> Result<InlineValue<'r>> {
    let location = Location::inode(record.number);
    let has_value_inodes = volume.geometry().features.has(Feature::EaInode);
    let entries = Entries::in_inode(&record.attribute_area, has_value_inodes, location)?;
    let problem = match entries.find(NameIndex::SYSTEM, INLINE_DATA_NAME) {
        Some(Entry { value: Value::Here(bytes), start, value_start, .. }) => {
            let (at, entry_at) = (ENTRIES_AT + value_start, ENTRIES_AT + start);
            return Ok(InlineValue { bytes, at, entry_at });
        }
        Some(Entry { value: Value::InInode { inode, .. }, .. }) => {
            Problem::Invalid { field: "value inode", found: inode.0 }
        }
        None => Problem::Missing("attribute system.data"),
    };
    Err(Error::corrupt(STRUCTURE, location, problem))
}

/// The inline data past a file's new end, which is to be zeroed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truncation {
    /// The offset of the first byte in the block area, and the bytes in the attribute area.
    block_area_from: usize,
    attribute_area: (usize, usize),
}

impl Truncation {
    /// Returns the truncation of a file to `size` bytes.
    pub(crate) fn new(inode: &Inode, size: u64) -> Result<Self> {
        let record = inode.record();
        let value = value(inode.volume(), &record)?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let within = size.saturating_sub(record.block_area.len()).min(value.bytes.len());
        Ok(Self {
            block_area_from: size.min(record.block_area.len()),
            attribute_area: (value.at + within, value.at + value.bytes.len()),
        })
    }

    pub(crate) fn apply(self, record: &mut InodeRecord) {
        record.block_area[self.block_area_from..].fill(0);
        let (start, end) = self.attribute_area;
        // An empty value has no position.
        if start < end {
            record.attribute_area[start..end].fill(0);
        }
    }
}

/// An inline directory: the parent's number, and entries in two parts. No entry crosses the end of a part.
///
/// Entries "." and ".." are not stored. Cursors are the positions that the entries get when the directory is
/// converted to a block, which begins with "." and "..".
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
    pub(crate) fn open(volume: &Volume, record: &'a InodeRecord) -> Result<Self> {
        let area = &record.block_area;
        let (parent, entries) = area.split_at(PARENT_BYTES);
        let parent = parent.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        Ok(Self {
            inode: record.number,
            parent: InodeNumber(parent),
            parts: [
                Part { start: PARENT_BYTES as u64, bytes: entries },
                Part { start: area.len() as u64, bytes: value(volume, record)?.bytes },
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
