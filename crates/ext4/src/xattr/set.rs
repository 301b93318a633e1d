//! Choice of the position of an attribute's value: in the inode, in the block, or in its own inode.
//! Not here: encoding (`body.rs`), and writing (`write.rs`).
//!
//! As in the kernel, the inode comes first, then the block. A value that fits in neither, or would
//! fill a block by itself, gets its own inode if the volume has the feature.

use base::{Error, Result};

use super::body::{
    Attribute, Stored, fits_area, fits_block, hash, padded_value_bytes, value_bytes,
};
use super::entries::{TERMINATOR_BYTES, padded_entry_bytes};
use crate::ondisk::xattr::RawXattrBlockHeader;
use fs::xattr::NameIndex;

/// Upper bound of the space that values leave to entries in a block. Below it, that space is an
/// eighth of the block. Only applies if values may be in inodes.
const BLOCK_RESERVE_MAX: usize = 1024;

/// The room for attributes in an inode and its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    /// Bytes of the area in the inode; 0 if it has none.
    pub area: usize,
    /// Bytes of a block.
    pub block: usize,
    /// Whether values may be in their own inodes.
    pub has_value_inodes: bool,
    /// Whether attributes with such values must be in the block. If a symbolic link has no
    /// attribute block, but a block count other than zero, e2fsck expects the target in a block,
    /// even if only values account for the count.
    pub is_link: bool,
}

/// The attributes of an inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Attributes {
    /// The attributes in the inode, in stored order.
    pub area: Vec<Attribute>,
    /// The attributes in its block.
    pub block: Vec<Attribute>,
}

impl Attributes {
    pub(super) fn contains(&self, index: NameIndex, name: &[u8]) -> bool {
        self.area.iter().chain(&self.block).any(|attribute| attribute.is(index, name))
    }

    /// Removes an attribute. Returns whether it existed.
    pub(super) fn remove(&mut self, index: NameIndex, name: &[u8]) -> bool {
        let before = self.area.len() + self.block.len();
        self.area.retain(|attribute| !attribute.is(index, name));
        self.block.retain(|attribute| !attribute.is(index, name));
        self.area.len() + self.block.len() < before
    }

    /// Sets an attribute's value. Errors: `NoSpace` if there is no room; nothing is changed.
    pub(super) fn set(
        &mut self,
        room: &Room,
        index: NameIndex,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let is_large = padded_value_bytes(value.len()) > room.value_bytes_alone();
        if !(room.has_value_inodes && is_large) {
            let value = Stored::Here(value.to_vec());
            match self.insert(room, index, name, value) {
                Err(Error::NoSpace) => {}
                result => return result,
            }
        }
        if !room.has_value_inodes || value.is_empty() {
            return Err(Error::NoSpace);
        }
        self.insert(room, index, name, Stored::ToInode(value.to_vec()))
    }

    fn insert(&mut self, room: &Room, index: NameIndex, name: &[u8], value: Stored) -> Result<()> {
        let (is_here, block_hash) = match &value {
            Stored::Here(value) => (!value.is_empty(), hash(name, value)),
            // The hash follows when the value has its inode.
            Stored::InInode { .. } | Stored::ToInode(_) => (false, 0),
        };
        let mut attribute = Attribute { index, name: name.into(), value, hash: 0 };
        let area = with(&self.area, attribute.clone());
        let must_be_in_block = room.is_link && !matches!(attribute.value, Stored::Here(_));
        if !must_be_in_block && fits_area(&area, room.area) {
            self.area = area;
            self.block.retain(|attribute| !attribute.is(index, name));
            return Ok(());
        }
        attribute.hash = block_hash;
        let block = with(&self.block, attribute);
        let is_crowded = room.has_value_inodes
            && is_here
            && room.block.saturating_sub(value_bytes(&block)) < room.block_reserve();
        if is_crowded || !fits_block(&block, room.block) {
            return Err(Error::NoSpace);
        }
        self.block = block;
        self.area.retain(|attribute| !attribute.is(index, name));
        Ok(())
    }
}

impl Room {
    /// Returns the length of the largest value that leaves room in a block for an entry with a name
    /// of three bytes.
    pub(super) fn value_bytes_alone(&self) -> usize {
        let entry = padded_entry_bytes(3);
        self.block - entry - size_of::<RawXattrBlockHeader>() - TERMINATOR_BYTES
    }

    fn block_reserve(&self) -> usize {
        (self.block / 8).min(BLOCK_RESERVE_MAX)
    }
}

/// Returns the list with this attribute added, or in place of the attribute of the same name.
fn with(list: &[Attribute], attribute: Attribute) -> Vec<Attribute> {
    let mut list = list.to_vec();
    match list.iter_mut().find(|other| other.is(attribute.index, &attribute.name)) {
        Some(other) => *other = attribute,
        None => list.push(attribute),
    }
    list
}
