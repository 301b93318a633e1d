//! Data in the inode itself (`inline_data`), of files, links and directories: 60 bytes in the block
//! area, and the rest in the value of the attribute `system.data`. Not here: the entries of inline
//! directories (`dir/inline.rs`).
//!
//! Source: kernel documentation, `filesystems/ext4/inlinedata.rst`.

use base::{Error, Location, Problem, Result};

use crate::core::Core;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;

use crate::xattr::entries::{Entries, Entry, Value};
use crate::xattr::name::INLINE_DATA_NAME;
use fs::xattr::NameIndex;

const STRUCTURE: &str = "inline data";
/// Offset of the first attribute entry in an inode's attribute area: after a magic number.
const ENTRIES_AT: usize = 4;

/// Returns the inline data, up to the inode's size. A file may be longer than its inline data:
/// mke2fs creates such files if they are one hole. The rest reads as zeroes.
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

/// Returns the part of the data in the attribute area. The attribute exists even if its value is
/// empty.
pub(crate) fn value<'r>(core: &Core, record: &'r InodeRecord) -> Result<InlineValue<'r>> {
    let location = Location::inode(record.number);
    let has_value_inodes = core.geometry().features.has(Feature::EaInode);
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
