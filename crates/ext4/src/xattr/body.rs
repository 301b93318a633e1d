//! Encoding of attributes in the area of an inode, and in a block.
//! Not here: the choice between area and block (`set.rs`), reading (`entries.rs`).
//!
//! Entries grow from the start and values from the end. A terminator and free space lie between
//! them. All bytes are written anew on each change, so the free space is contiguous, and zero.

use base::checksum::crc32c;
use base::{FsBlock, InodeNumber};
use zerocopy::IntoBytes;

use super::entries::{
    ALIGNMENT, Entry, NameBytes, TERMINATOR_BYTES, Value, entry_hash, padded_entry_bytes,
};
use crate::ondisk::xattr::{RawXattrBlockHeader, RawXattrEntry, XATTR_CHECKSUM_AT, XATTR_MAGIC};
use fs::xattr::NameIndex;

/// Bytes of the magic number at the start of the area in an inode.
const MAGIC_BYTES: usize = 4;
/// Bits by which a block's hash is rotated for each entry.
const HASH_SHIFT: u32 = 16;

/// An attribute that is stored, or will be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Attribute {
    /// The prefix.
    pub index: NameIndex,
    /// The name after the prefix.
    pub name: Box<[u8]>,
    /// The value.
    pub value: Stored,
    /// The hash of name and value in the entry; 0 for a value in an inode's area.
    pub hash: u32,
}

/// Position of a stored or new value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    /// With the entries.
    Here(Vec<u8>),
    /// In its own inode.
    InInode {
        /// The inode.
        inode: InodeNumber,
        /// Bytes of the value.
        size: u32,
    },
    /// In its own inode, which is not created yet.
    ToInode(Vec<u8>),
}

impl Attribute {
    /// Returns the attribute of an entry.
    pub(crate) fn of(entry: &Entry<'_>) -> Self {
        let value = match entry.value {
            Value::Here(value) => Stored::Here(value.to_vec()),
            Value::InInode { inode, size } => Stored::InInode { inode, size },
        };
        Self { index: entry.index, name: entry.name.into(), value, hash: entry.hash }
    }

    pub(crate) fn is(&self, index: NameIndex, name: &[u8]) -> bool {
        self.index == index && *self.name == *name
    }

    /// Returns the bytes that the value takes with the entries.
    fn value_bytes(&self) -> usize {
        match &self.value {
            Stored::Here(value) => padded_value_bytes(value.len()),
            Stored::InInode { .. } | Stored::ToInode(_) => 0,
        }
    }

    /// Returns the sort key of entries in a block.
    fn order(&self) -> (NameIndex, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }
}

/// Returns the bytes that a value of this length takes with the entries.
pub(crate) fn padded_value_bytes(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

/// Returns the bytes of all values with the entries.
pub(crate) fn value_bytes(attributes: &[Attribute]) -> usize {
    attributes.iter().map(Attribute::value_bytes).sum()
}

/// Returns whether the attributes fit in an inode's area of `area` bytes.
pub(crate) fn fits_area(attributes: &[Attribute], area: usize) -> bool {
    MAGIC_BYTES + bytes_needed(attributes) <= area
}

/// Returns whether the attributes fit in a block of `block` bytes.
pub(crate) fn fits_block(attributes: &[Attribute], block: usize) -> bool {
    size_of::<RawXattrBlockHeader>() + bytes_needed(attributes) <= block
}

fn bytes_needed(attributes: &[Attribute]) -> usize {
    let entries: usize = attributes.iter().map(|it| padded_entry_bytes(it.name.len())).sum();
    entries + TERMINATOR_BYTES + value_bytes(attributes)
}

/// Returns an inode's area with these attributes, which fit, in their order.
pub(crate) fn area(attributes: &[Attribute], length: usize) -> Box<[u8]> {
    let mut area = vec![0; length];
    // An area without the magic number has no attributes.
    if !attributes.is_empty() {
        let (magic, bytes) = area.split_at_mut(MAGIC_BYTES);
        magic.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
        write_entries(bytes, 0, attributes);
    }
    area.into()
}

/// Returns a block with these attributes, which fit, and with one reference. The caller calls
/// [`seal_block`].
pub(crate) fn block(mut attributes: Vec<Attribute>, length: usize) -> Vec<u8> {
    attributes.sort_by(|a, b| a.order().cmp(&b.order()));
    let header = RawXattrBlockHeader {
        magic: XATTR_MAGIC.into(),
        reference_count: 1.into(),
        blocks: 1.into(),
        hash: block_hash(&attributes).into(),
        checksum: 0.into(),
        reserved: [0.into(); 3],
    };
    let mut block = vec![0; length];
    let first = size_of_val(&header);
    block[..first].copy_from_slice(header.as_bytes());
    write_entries(&mut block, first, &attributes);
    block
}

/// Writes the checksum of an attribute block. `seed` is the volume's, if it has checksums.
pub(crate) fn seal_block(block: &mut [u8], number: FsBlock, seed: Option<u32>) {
    let field = XATTR_CHECKSUM_AT..XATTR_CHECKSUM_AT + size_of::<u32>();
    block[field.clone()].fill(0);
    if let Some(seed) = seed {
        let checksum = crc32c(crc32c(seed, &number.0.to_le_bytes()), block);
        block[field].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Returns the hash of an entry in a block whose value is with the entries.
pub(crate) fn hash(name: &[u8], value: &[u8]) -> u32 {
    entry_hash(name, value, NameBytes::Unsigned)
}

/// Returns the hash over all entries of a block; 0 if an entry has no hash, since such a block is
/// not shared.
fn block_hash(attributes: &[Attribute]) -> u32 {
    if attributes.iter().any(|attribute| attribute.hash == 0) {
        return 0;
    }
    attributes.iter().fold(0, |hash: u32, attribute| hash.rotate_left(HASH_SHIFT) ^ attribute.hash)
}

/// Writes entries from `first` on, and values backwards from the end.
fn write_entries(bytes: &mut [u8], first: usize, attributes: &[Attribute]) {
    let (mut at, mut value_at) = (first, bytes.len());
    for attribute in attributes {
        let (inode, size) = match &attribute.value {
            Stored::Here(value) => (0, value.len() as u32),
            Stored::InInode { inode, size } => (inode.0 as u32, *size),
            Stored::ToInode(_) => unreachable!("inodes of values are created first"),
        };
        let mut offset = 0;
        if let Stored::Here(value) = &attribute.value {
            if !value.is_empty() {
                value_at -= attribute.value_bytes();
                bytes[value_at..value_at + value.len()].copy_from_slice(value);
                // Below the block size, and a multiple of 4.
                offset = value_at as u16;
            }
        }
        let entry = RawXattrEntry {
            // At most 255: the name was read from an entry, or checked.
            name_length: attribute.name.len() as u8,
            name_index: attribute.index.0,
            value_offset: offset.into(),
            value_inode: inode.into(),
            value_size: size.into(),
            hash: attribute.hash.into(),
        };
        let name_at = at + size_of_val(&entry);
        bytes[at..name_at].copy_from_slice(entry.as_bytes());
        bytes[name_at..name_at + attribute.name.len()].copy_from_slice(&attribute.name);
        at += padded_entry_bytes(attribute.name.len());
    }
    debug_assert!(at + TERMINATOR_BYTES <= value_at, "attributes must fit");
}
