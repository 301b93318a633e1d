//! Decides where the value of an attribute goes: into the inode, into the block, or into an inode
//! of its own. Not here: bytes (`body.rs`), and making it so (`write.rs`).
//!
//! As the kernel does: the inode comes first, then the block; what fits in neither, or would fill a
//! block all by itself, gets an inode of its own where the volume has such.

use base::{Error, Result};

use super::body::{
    Attribute, Stored, fits_area, fits_block, hash, padded_value_bytes, value_bytes,
};
use super::entries::{TERMINATOR_BYTES, padded_entry_bytes};
use super::name::NameIndex;
use crate::ondisk::xattr::RawXattrBlockHeader;

/// With values in inodes, no value beside its entry leaves less than this of a block, or an eighth
/// of it, to entries.
const BLOCK_RESERVE_MAX: usize = 1024;

/// What an inode offers to attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    /// Bytes of the area in the inode; 0 if it has none.
    pub area: usize,
    /// Bytes of a block.
    pub block: usize,
    /// Whether values may have inodes of their own.
    pub has_value_inodes: bool,
    /// Whether attributes with such values go into the block only. Without a block, e2fsck takes a
    /// link whose block count is not zero for one with blocks, even if all of them are of values.
    pub is_link: bool,
}

/// The attributes of an inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Attributes {
    /// Those in the inode, in the order in which they lie there.
    pub area: Vec<Attribute>,
    /// Those in its block.
    pub block: Vec<Attribute>,
}

impl Attributes {
    pub(super) fn contains(&self, index: NameIndex, name: &[u8]) -> bool {
        self.area.iter().chain(&self.block).any(|attribute| attribute.is(index, name))
    }

    /// Takes an attribute away; whether it was there.
    pub(super) fn remove(&mut self, index: NameIndex, name: &[u8]) -> bool {
        let before = self.area.len() + self.block.len();
        self.area.retain(|attribute| !attribute.is(index, name));
        self.block.retain(|attribute| !attribute.is(index, name));
        self.area.len() + self.block.len() < before
    }

    /// Gives an attribute its value. `NoSpace`, and everything as it was, if there is no room.
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
            match self.location(room, index, name, value) {
                Err(Error::NoSpace) => {}
                placed => return placed,
            }
        }
        if !room.has_value_inodes || value.is_empty() {
            return Err(Error::NoSpace);
        }
        self.location(room, index, name, Stored::ToInode(value.to_vec()))
    }

    fn location(
        &mut self,
        room: &Room,
        index: NameIndex,
        name: &[u8],
        value: Stored,
    ) -> Result<()> {
        let (is_here, block_hash) = match &value {
            Stored::Here(value) => (!value.is_empty(), hash(name, value)),
            // That of the value, once it is there.
            Stored::InInode { .. } | Stored::ToInode(_) => (false, 0),
        };
        let mut attribute = Attribute { index, name: name.into(), value, hash: 0 };
        let area = with(&self.area, attribute.clone());
        let is_kept_out = room.is_link && !matches!(attribute.value, Stored::Here(_));
        if !is_kept_out && fits_area(&area, room.area) {
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
    /// Larger values leave a block no room for more than an entry with a name of a few bytes.
    pub(super) fn value_bytes_alone(&self) -> usize {
        let entry = padded_entry_bytes(3);
        self.block - entry - size_of::<RawXattrBlockHeader>() - TERMINATOR_BYTES
    }

    fn block_reserve(&self) -> usize {
        (self.block / 8).min(BLOCK_RESERVE_MAX)
    }
}

/// The list with one more attribute, or with it in the place of the one of that name.
fn with(list: &[Attribute], attribute: Attribute) -> Vec<Attribute> {
    let mut list = list.to_vec();
    match list.iter_mut().find(|other| other.is(attribute.index, &attribute.name)) {
        Some(other) => *other = attribute,
        None => list.push(attribute),
    }
    list
}
