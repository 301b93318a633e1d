//! Changes of directories whose entries are in their inodes, their creation, and their conversion
//! to blocks. Not here: reading them (`inode/inline.rs`).
//!
//! An entry lies in the inode's block area or in the value of its attribute. The length of the
//! value never changes.

use std::mem::offset_of;

use base::{Error, InodeNumber, Result};
use zerocopy::IntoBytes;

use super::Directory;
use super::block::entry_bytes;
use super::insert::Progress;
use super::leaf::{Found, NewEntry};
use crate::dir::inline::{FIRST_ENTRY_AT, InlineDirectory, PARENT_BYTES};
use crate::features::Feature;
use crate::inode::inline;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::journal::Handle;
use crate::map_write::empty_root;
use crate::ondisk::xattr::{RawXattrEntry, XATTR_MAGIC};
use crate::xattr::name::INLINE_DATA_NAME;
use crate::xattr::remove::remove_from_inode;
use fs::xattr::NameIndex;

/// One of the two parts of an inode that hold entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    BlockArea,
    /// The value of `system.data`.
    Value,
}

const PARTS: [Part; 2] = [Part::BlockArea, Part::Value];

impl Directory<'_> {
    /// Returns the part and the position of a name's entry.
    fn locate_inline(&self, record: &InodeRecord, name: &[u8]) -> Result<Option<(Part, Found)>> {
        let directory = InlineDirectory::open(self.inode.volume(), record)?;
        for (part, (bytes, location)) in PARTS.into_iter().zip(directory.parts()) {
            if let Some(found) = self.format.dir.find(bytes, location, name)? {
                return Ok(Some((part, found)));
            }
        }
        Ok(None)
    }

    /// Returns the inode of a name other than "." and "..".
    pub(super) fn find_inline(&self, name: &[u8]) -> Result<Option<InodeNumber>> {
        let located = self.locate_inline(&self.inode.record(), name)?;
        Ok(located.map(|(_, found)| found.inode))
    }

    /// Adds an entry if there is room. Otherwise converts the directory to a block.
    pub(super) fn insert_inline(
        &self,
        handle: &mut Handle<'_>,
        entry: &NewEntry<'_>,
    ) -> Result<Progress> {
        let (record, format) = (self.inode.record(), self.format.dir);
        let directory = InlineDirectory::open(self.inode.volume(), &record)?;
        for (part, (bytes, location)) in PARTS.into_iter().zip(directory.parts()) {
            if let Some(room) = format.find_room(bytes, location, entry.bytes())? {
                self.edit_part(handle, part, |bytes| format.insert(bytes, room, entry))?;
                return Ok(Progress::Inserted);
            }
        }
        self.convert_to_block(handle, &record)?;
        Ok(Progress::MadeRoom)
    }

    pub(super) fn remove_inline(
        &self,
        handle: &mut Handle<'_>,
        name: &[u8],
    ) -> Result<InodeNumber> {
        let (part, found) =
            self.locate_inline(&self.inode.record(), name)?.ok_or(Error::NotFound)?;
        self.edit_part(handle, part, |bytes| self.format.dir.remove(bytes, &found))?;
        Ok(found.inode)
    }

    /// Sets the inode and type of an existing name. Returns the previous inode.
    pub(super) fn set_inline_entry(
        &self,
        handle: &mut Handle<'_>,
        entry: &NewEntry<'_>,
    ) -> Result<InodeNumber> {
        let (part, found) =
            self.locate_inline(&self.inode.record(), entry.name)?.ok_or(Error::NotFound)?;
        self.edit_part(handle, part, |bytes| {
            self.format.dir.set_inode(bytes, found.range.0, entry.inode, entry.code);
        })?;
        Ok(found.inode)
    }

    pub(super) fn set_inline_parent(
        &self,
        handle: &mut Handle<'_>,
        parent: InodeNumber,
    ) -> Result<()> {
        self.inode.update(handle, |record| store_parent(record, parent))
    }

    pub(super) fn is_inline_empty(&self) -> Result<bool> {
        let record = self.inode.record();
        let directory = InlineDirectory::open(self.inode.volume(), &record)?;
        for (bytes, location) in directory.parts() {
            if let Some(entry) = self.format.dir.used(bytes, location).next() {
                return entry.map(|_| false);
            }
        }
        Ok(true)
    }

    /// Creates the directory in its inode. Returns false if the inode has no room, or has
    /// attributes.
    pub(super) fn init_inline(&self, handle: &mut Handle<'_>, parent: InodeNumber) -> Result<bool> {
        let attribute = empty_value();
        let area = &self.inode.record().attribute_area;
        if area.len() < attribute.len() + TERMINATOR_BYTES || area.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        let format = self.format.dir;
        self.inode.update(handle, |record| {
            record.flags =
                InodeFlags(record.flags.0 & !InodeFlags::EXTENTS.0 | InodeFlags::INLINE_DATA.0);
            record.attribute_area[..attribute.len()].copy_from_slice(&attribute);
            store_parent(record, parent);
            format.pack(&mut record.block_area[PARENT_BYTES..], []);
            record.size = record.block_area.len() as u64;
        })?;
        Ok(true)
    }

    /// Changes the entries of a part. The part must have entries.
    fn edit_part(
        &self,
        handle: &mut Handle<'_>,
        part: Part,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let known = self.inode.record();
        let value = inline::value(self.inode.volume(), &known)?;
        self.inode.update(handle, |record| match part {
            Part::BlockArea => change(&mut record.block_area[PARENT_BYTES..]),
            Part::Value => {
                // Within an inode, an attribute needs no hash, but a wrong hash is corrupt.
                let hash_at = value.entry_at + offset_of!(RawXattrEntry, hash);
                record.attribute_area[hash_at..][..size_of::<u32>()].fill(0);
                change(&mut record.attribute_area[value.at..][..value.bytes.len()]);
            }
        })
    }

    /// Converts the directory to a block, in which the entries keep their distances.
    fn convert_to_block(&self, handle: &mut Handle<'_>, record: &InodeRecord) -> Result<()> {
        let volume = self.inode.volume();
        let features = &volume.geometry().features;
        let block = self.to_block(record)?;
        let mut emptied = record.clone();
        remove_from_inode(
            &mut emptied.attribute_area,
            (NameIndex::SYSTEM, INLINE_DATA_NAME),
            features.has(Feature::EaInode),
            self.location(),
        )?;
        emptied.flags.0 &= !InodeFlags::INLINE_DATA.0;
        emptied.block_area = [0; 60];
        if features.has(Feature::Extent) {
            emptied.flags.0 |= InodeFlags::EXTENTS.0;
            emptied.block_area = empty_root();
        }
        emptied.size = 0;
        self.inode.update(handle, |record| *record = emptied)?;
        let outcome = Self::new(self.inode).append(handle, block);
        if outcome == Err(Error::NoSpace) {
            self.inode.update(handle, |now| *now = record.clone())?;
        }
        outcome.map(|_| ())
    }

    /// Returns the directory as a block: "." and "..", then both parts unchanged.
    fn to_block(&self, record: &InodeRecord) -> Result<Box<[u8]>> {
        let format = self.format.dir;
        let directory = InlineDirectory::open(self.inode.volume(), record)?;
        let mut block = format.new_leaf(format.dot_entries(directory.parent(&format)?));
        let room = format.entries_bytes();
        format.set_length(&mut block, FIRST_ENTRY_AT - PARENT_ENTRY_BYTES, PARENT_ENTRY_BYTES);
        let (mut at, mut last) = (FIRST_ENTRY_AT, FIRST_ENTRY_AT);
        for (bytes, location) in directory.parts() {
            for slot in format.slots(bytes, location) {
                last = at + slot?.start;
            }
            // The parts fit: an inode is no larger than a block, and has other fields.
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        format.set_length(&mut block, last, room - last);
        format.seal_leaf(&mut block);
        Ok(block)
    }
}

const PARENT_ENTRY_BYTES: usize = entry_bytes(2);
/// Bytes of the zeroes that end a list of attributes.
const TERMINATOR_BYTES: usize = 4;

/// Returns the start of an inode's attribute area whose only attribute is an empty `system.data`.
fn empty_value() -> Vec<u8> {
    let entry = RawXattrEntry {
        name_length: INLINE_DATA_NAME.len() as u8,
        name_index: NameIndex::SYSTEM.0,
        value_offset: 0.into(),
        value_inode: 0.into(),
        value_size: 0.into(),
        hash: 0.into(),
    };
    [&XATTR_MAGIC.to_le_bytes(), entry.as_bytes(), INLINE_DATA_NAME].concat()
}

/// Writes the parent's number. Directories are inodes of the volume, so their numbers have 32 bits.
fn store_parent(record: &mut InodeRecord, parent: InodeNumber) {
    record.block_area[..PARENT_BYTES].copy_from_slice(&(parent.0 as u32).to_le_bytes());
}
