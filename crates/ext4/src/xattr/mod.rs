//! Extended attributes in the inode, in a block, and with values in other inodes. Reading is here;
//! `write.rs` changes them.
//! Not here: permission to read or change them.

pub mod entries;
pub mod name;

pub(crate) mod remove;
pub(crate) mod value;

mod body;
mod set;
#[cfg(test)]
mod set_tests;
mod share;
mod value_inodes;
mod write;

use base::{Error, Location, Result};
use fs::acl::stored;
use iomap::MetadataBuffer;

use self::entries::{Entries, Value, verify_block};
use self::name::NAMES;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;
use fs::xattr::NameIndex;

impl Inode {
    /// Returns the full names of the extended attributes: those in the inode, then those in the
    /// block, each in stored order.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let block = self.attribute_block()?;
        let record = self.record();
        let both = self
            .attributes_in_inode(&record)?
            .iter()
            .chain(self.attributes_in_block(block.as_ref())?.iter());
        Ok(both.filter_map(|entry| NAMES.full_name(entry.index, entry.name)).collect())
    }

    /// Returns the value of the extended attribute with this full name. ACLs have the form of
    /// `getxattr(2)`.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let (index, name) = NAMES.split_name(name).ok_or(Error::NoAttribute)?;
        let value = self.stored_attribute(index, name)?;
        match index {
            NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT => {
                stored::to_xattr(&value, Location::inode(self.number()))
            }
            _ => Ok(value),
        }
    }

    /// Returns the value of the extended attribute with this stored name, in its stored form.
    /// Errors: `NoAttribute`.
    pub(crate) fn stored_attribute(&self, index: NameIndex, name: &[u8]) -> Result<Vec<u8>> {
        let block;
        let record = self.record();
        let entry = match self.attributes_in_inode(&record)?.find(index, name) {
            Some(entry) => entry,
            None => {
                block = self.attribute_block()?;
                let found = self.attributes_in_block(block.as_ref())?.find(index, name);
                found.ok_or(Error::NoAttribute)?
            }
        };
        match entry.value {
            Value::Here(value) => Ok(value.to_vec()),
            Value::InInode { inode, size } => value::read(self, &entry, inode, size),
        }
    }

    /// Returns the attributes that lie in the inode, whose record is `record`.
    pub(crate) fn attributes_in_inode<'r>(&self, record: &'r InodeRecord) -> Result<Entries<'r>> {
        let location = Location::inode(record.number).at_byte(record.attribute_area_start as u64);
        Entries::in_inode(&record.attribute_area, self.has_value_inodes(), location)
    }

    /// Returns the attributes that lie in the inode's attribute block.
    pub(crate) fn attributes_in_block<'b>(
        &self,
        block: Option<&'b MetadataBuffer>,
    ) -> Result<Entries<'b>> {
        let Some(block) = block else { return Ok(Entries::NONE) };
        let location = Location::inode(self.number()).at_block(block.block());
        Entries::in_block(block, self.has_value_inodes(), location)
    }

    /// Returns the inode's attribute block, with its checksum verified.
    pub(crate) fn attribute_block(&self) -> Result<Option<MetadataBuffer>> {
        let Some(block) = self.record().attribute_block else { return Ok(None) };
        let location = Location::inode(self.number()).at_block(block);
        let volume = self.volume();
        volume.block_validity(self.number()).check(
            "extended attribute block",
            location,
            block,
            1,
        )?;
        let buffer = volume.read_metadata(block, "extended attribute block", location)?;
        if let Some(seed) = volume.geometry().metadata_seed() {
            buffer.verify_once(|bytes| verify_block(bytes, block, seed, location))?;
        }
        Ok(Some(buffer))
    }

    fn has_value_inodes(&self) -> bool {
        self.volume().geometry().features.has(Feature::EaInode)
    }
}
