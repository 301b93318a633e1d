//! Parsing of extended attribute entries in a block or in an inode's body: bounds and hashes.
//! Not here: reading blocks and inodes, and values in other inodes.
//!
//! Source: kernel documentation, `filesystems/ext4/attributes.rst`.

use std::ops::Range;

use base::checksum::crc32c;
use base::view::view_at;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};

use crate::ondisk::xattr::{RawXattrBlockHeader, RawXattrEntry, XATTR_CHECKSUM_AT, XATTR_MAGIC};
use fs::xattr::NameIndex;

const STRUCTURE: &str = "extended attribute";
const BLOCK_STRUCTURE: &str = "extended attribute block";
/// Bytes of zeroes that end the entries.
pub(crate) const TERMINATOR_BYTES: usize = 4;
/// Alignment of entries and values.
pub(crate) const ALIGNMENT: usize = 4;
/// The longest value that the kernel reads.
pub const VALUE_BYTES_MAX: u32 = 1 << 24;

/// An attribute's value, or its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// A value with the entries.
    Here(&'a [u8]),
    /// The whole data of an inode; at most [`VALUE_BYTES_MAX`] bytes.
    InInode {
        /// The inode.
        inode: InodeNumber,
        /// Its size in bytes.
        size: u32,
    },
}

/// One attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Offset of the entry, from the same origin as value offsets.
    pub start: usize,
    /// The prefix.
    pub index: NameIndex,
    /// The name after the prefix. It contains no NUL.
    pub name: &'a [u8],
    /// The value.
    pub value: Value<'a>,
    /// Offset of the value, from the same origin. Meaningless if the value is in an inode.
    pub value_start: usize,
    /// The stored hash of name and value.
    pub hash: u32,
}

/// The attributes in one block or inode body. All entries were checked to be within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    /// The bytes from the origin of value offsets to the end of the room for values.
    bytes: &'a [u8],
    first: usize,
    /// Offset of the terminator.
    end: usize,
}

impl<'a> Entries<'a> {
    /// No attributes.
    pub const NONE: Entries<'static> = Entries { bytes: &[], first: 0, end: 0 };

    /// Parses the attributes in a block.
    pub fn in_block(block: &'a [u8], has_value_inodes: bool, location: Location) -> Result<Self> {
        block_header(block, location)?;
        Self::parse(block, size_of::<RawXattrBlockHeader>(), has_value_inodes, location)
    }

    /// Parses the attributes in an inode. `body` is the part of the inode after its fixed and extra
    /// fields. Without the magic number at its start, it has no attributes.
    pub fn in_inode(body: &'a [u8], has_value_inodes: bool, location: Location) -> Result<Self> {
        const MAGIC_BYTES: usize = 4;
        match body.split_first_chunk::<MAGIC_BYTES>() {
            Some((magic, bytes))
                if u32::from_le_bytes(*magic) == XATTR_MAGIC && bytes.len() >= TERMINATOR_BYTES =>
            {
                let start = location.byte.unwrap_or(0) + MAGIC_BYTES as u64;
                Self::parse(bytes, 0, has_value_inodes, location.at_byte(start))
            }
            _ => Ok(Entries::NONE),
        }
    }

    /// Checks each entry, as the kernel does.
    fn parse(
        bytes: &'a [u8],
        first: usize,
        has_value_inodes: bool,
        location: Location,
    ) -> Result<Self> {
        let mut end = first;
        while let Some(next) = next_entry(bytes, end, location)? {
            end = next;
        }
        let entries = Self { bytes, first, end };
        let mut at = first;
        while at < end {
            let raw: &RawXattrEntry = view_at(bytes, at, STRUCTURE, location)?;
            entries
                .check(raw, has_value_inodes)
                .map_err(|problem| Error::corrupt(STRUCTURE, at_byte(location, at), problem))?;
            at += entry_bytes(raw);
        }
        Ok(entries)
    }

    fn check(&self, raw: &RawXattrEntry, has_value_inodes: bool) -> Result<(), Problem> {
        let size = raw.value_size.get();
        if size > VALUE_BYTES_MAX {
            let (found, max) = (size.into(), VALUE_BYTES_MAX.into());
            return Err(Problem::Range { field: "value size", found, min: 0, max });
        }
        match raw.value_inode.get() {
            0 => {}
            _ if has_value_inodes => return Ok(()),
            inode => return Err(Problem::Invalid { field: "value inode", found: inode.into() }),
        }
        if size == 0 {
            return Ok(());
        }
        let (offset, size) = (usize::from(raw.value_offset.get()), size as usize);
        let min = self.end + TERMINATOR_BYTES;
        let max = self.bytes.len().saturating_sub(size.next_multiple_of(ALIGNMENT));
        if offset < min || offset > max {
            let (found, min, max) = (offset as u64, min as u64, max as u64);
            return Err(Problem::Range { field: "value offset", found, min, max });
        }
        Ok(())
    }

    /// Iterates over the attributes in stored order.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let Self { bytes, first, end } = *self;
        let mut at = first;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let entry = entry_at(bytes, at)?;
            at = entry.1;
            Some(entry.0)
        })
    }

    /// Returns the first attribute with this name.
    pub fn find(&self, index: NameIndex, name: &[u8]) -> Option<Entry<'a>> {
        self.iter().find(|entry| entry.index == index && entry.name == name)
    }
}

/// Returns the end of the entry at `at`; `None` at the end of the entries.
fn next_entry(bytes: &[u8], at: usize, location: Location) -> Result<Option<usize>> {
    let fault = |problem| Error::corrupt(STRUCTURE, at_byte(location, at), problem);
    if bytes.get(at..at + TERMINATOR_BYTES) == Some(&[0; TERMINATOR_BYTES]) {
        return Ok(None);
    }
    let raw: &RawXattrEntry = view_at(bytes, at, STRUCTURE, location)?;
    let next = at + entry_bytes(raw);
    if next + TERMINATOR_BYTES > bytes.len() {
        let (needed, available) = (next + TERMINATOR_BYTES - at, bytes.len() - at);
        let problem = Problem::Truncated { needed: needed as u64, available: available as u64 };
        return Err(fault(problem));
    }
    if name_of(bytes, at, raw).is_none_or(|name| name.contains(&0)) {
        return Err(fault(Problem::Invalid { field: "name byte", found: 0 }));
    }
    Ok(Some(next))
}

/// Returns the entry at `at`, which was checked, and its end.
fn entry_at(bytes: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
    let raw: &RawXattrEntry = view_at(bytes, at, STRUCTURE, Location::default()).ok()?;
    let (size, value_start) = (raw.value_size.get(), usize::from(raw.value_offset.get()));
    let value = match raw.value_inode.get() {
        0 if size == 0 => Value::Here(&[]),
        0 => Value::Here(bytes.get(value_start..)?.get(..size as usize)?),
        inode => Value::InInode { inode: InodeNumber(inode.into()), size },
    };
    let index = NameIndex(raw.name_index);
    let (name, hash) = (name_of(bytes, at, raw)?, raw.hash.get());
    Some((Entry { start: at, index, name, value, value_start, hash }, at + entry_bytes(raw)))
}

fn name_of<'a>(bytes: &'a [u8], at: usize, raw: &RawXattrEntry) -> Option<&'a [u8]> {
    bytes.get(at + size_of::<RawXattrEntry>()..)?.get(..raw.name_length.into())
}

fn entry_bytes(raw: &RawXattrEntry) -> usize {
    padded_entry_bytes(raw.name_length.into())
}

/// Returns the bytes of an entry with a name of this length.
pub(crate) fn padded_entry_bytes(name_bytes: usize) -> usize {
    (size_of::<RawXattrEntry>() + name_bytes).next_multiple_of(ALIGNMENT)
}

/// Returns `location`, moved by `byte` bytes.
fn at_byte(location: Location, byte: usize) -> Location {
    location.at_byte(location.byte.unwrap_or(0) + byte as u64)
}

/// Returns the header of an attribute block. Verifies the magic number and the number of blocks.
pub fn block_header(block: &[u8], location: Location) -> Result<&RawXattrBlockHeader> {
    let header: &RawXattrBlockHeader = view_at(block, 0, BLOCK_STRUCTURE, location)?;
    let (magic, blocks) = (header.magic.get(), header.blocks.get());
    let problem = if magic != XATTR_MAGIC {
        Problem::Magic { found: magic.into(), expected: XATTR_MAGIC.into() }
    } else if blocks != 1 {
        Problem::Mismatch { field: "block count", found: blocks.into(), expected: 1 }
    } else {
        return Ok(header);
    };
    Err(Error::corrupt(BLOCK_STRUCTURE, location, problem))
}

/// Verifies the checksum of block `number`. `seed` is the volume's.
pub fn verify_block(block: &[u8], number: FsBlock, seed: u32, location: Location) -> Result<()> {
    let stored = block_header(block, location)?.checksum.get();
    let part = |range: Range<usize>| block.get(range).unwrap_or_default();
    let before = crc32c(crc32c(seed, &number.0.to_le_bytes()), part(0..XATTR_CHECKSUM_AT));
    let after = part(XATTR_CHECKSUM_AT + size_of_val(&stored)..block.len());
    let computed = crc32c(crc32c(before, &[0; 4]), after);
    if stored != computed {
        let problem = Problem::Checksum { stored, computed };
        return Err(Error::corrupt(BLOCK_STRUCTURE, location, problem));
    }
    Ok(())
}

/// How a name's bytes enter an entry's hash. Kernels before 6.2 used `char`, which is signed on
/// some machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameBytes {
    /// From 0 to 255.
    Unsigned,
    /// From -128 to 127.
    Signed,
}

/// Returns the hash of an entry with this name and value. For a value in another inode, `value` is
/// the crc32c of the value in little-endian order.
pub fn entry_hash(name: &[u8], value: &[u8], bytes: NameBytes) -> u32 {
    let of_name = name.iter().fold(0_u32, |hash, &byte| {
        let byte = match bytes {
            NameBytes::Unsigned => u32::from(byte),
            NameBytes::Signed => byte as i8 as u32,
        };
        hash.rotate_left(5) ^ byte
    });
    value.chunks(4).fold(of_name, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns an inode body of 128 bytes, with `entry` (16 bytes and a name), and with "value!" at
    /// byte 100 after the start of the first entry.
    fn body(entry: &[u8]) -> Vec<u8> {
        let mut body = XATTR_MAGIC.to_le_bytes().to_vec();
        body.extend(entry);
        body.resize(104, 0);
        body.extend(b"value!");
        body.resize(128, 0);
        body
    }

    fn entry(name: &[u8], offset: u16, inode: u32, size: u32) -> Vec<u8> {
        let mut entry = vec![name.len() as u8, 1];
        entry.extend(offset.to_le_bytes());
        entry.extend([inode, size, 0].into_iter().flat_map(u32::to_le_bytes));
        entry.extend(name);
        entry.resize(entry.len().next_multiple_of(4), 0);
        entry
    }

    fn parse(body: &[u8]) -> Result<Vec<Entry<'_>>> {
        Ok(Entries::in_inode(body, false, Location::default())?.iter().collect())
    }

    #[test]
    fn an_attribute_in_an_inode_is_found_by_prefix_and_name() {
        let body = body(&entry(b"mime", 100, 0, 6));
        let entries = Entries::in_inode(&body, false, Location::default()).unwrap();
        let found = entries.find(NameIndex(1), b"mime").unwrap();
        assert_eq!(found.value, Value::Here(b"value!"));
        assert_eq!(entries.find(NameIndex(4), b"mime"), None);
        assert_eq!(entries.find(NameIndex(1), b"mim"), None);
        assert_eq!(entries.iter().count(), 1);
    }

    #[test]
    fn an_inode_without_the_magic_number_or_without_room_has_no_attributes() {
        assert_eq!(parse(&[7; 128]).unwrap(), []);
        assert_eq!(parse(&XATTR_MAGIC.to_le_bytes()).unwrap(), []);
        assert_eq!(parse(&[]).unwrap(), []);
    }

    #[test]
    fn entries_and_values_out_of_bounds_are_refused() {
        for bad in [
            entry(b"mime", 117, 0, 6),
            entry(b"mime", 120, 0, 8),
            entry(b"mime", 20, 0, 6),
            entry(b"mime", 100, 0, u32::MAX),
            entry(b"mime", 100, 12, 6),
            entry(b"mi\0e", 100, 0, 6),
            [&[200, 1][..], &[0; 14]].concat(),
        ] {
            assert!(matches!(parse(&body(&bad)), Err(Error::Corrupt(_))), "{bad:?}");
        }
        // Entries without a terminator.
        let mut endless = body(&[]);
        endless[4..].fill(1);
        assert!(parse(&endless).is_err());
        // An empty value has no position.
        assert_eq!(parse(&body(&entry(b"none", 9999, 0, 0))).unwrap()[0].value, Value::Here(&[]));
    }

    #[test]
    fn a_value_in_an_inode_needs_the_feature() {
        let body = body(&entry(b"big", 0, 77, 70_000));
        let entries = Entries::in_inode(&body, true, Location::default()).unwrap();
        let expected = Value::InInode { inode: InodeNumber(77), size: 70_000 };
        assert_eq!(entries.iter().next().unwrap().value, expected);
        assert!(parse(&body).is_err());
    }

    #[test]
    fn a_block_is_verified_by_its_header_and_checksum() {
        let mut block = vec![0; 1024];
        for (at, value) in [(0, XATTR_MAGIC), (4, 1), (8, 1)] {
            block[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        let entry = entry(b"a", 1020, 0, 1);
        block[32..32 + entry.len()].copy_from_slice(&entry);
        let location = Location::block(FsBlock(7));
        let parse = |block: &[u8]| {
            Entries::in_block(block, false, location).map(|entries| entries.iter().count())
        };
        assert_eq!(parse(&block).unwrap(), 1);
        assert!(verify_block(&block, FsBlock(7), 3, location).is_err());
        let sum = crc32c(crc32c(3, &7_u64.to_le_bytes()), &block);
        block[16..20].copy_from_slice(&sum.to_le_bytes());
        verify_block(&block, FsBlock(7), 3, location).unwrap();
        block[8] = 2;
        assert!(parse(&block).is_err());
        assert!(parse(&block[..20]).is_err());
    }

    #[test]
    fn hashes_distinguish_signed_from_unsigned_names() {
        let hash = |name: &[u8], bytes| entry_hash(name, b"12345", bytes);
        assert_eq!(hash(b"ab", NameBytes::Signed), hash(b"ab", NameBytes::Unsigned));
        assert_ne!(hash(b"\xE9", NameBytes::Signed), hash(b"\xE9", NameBytes::Unsigned));
        assert_eq!(entry_hash(b"", b"", NameBytes::Signed), 0);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(
            mut bytes in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..600),
            has_value_inodes: bool,
        ) {
            let location = Location::block(FsBlock(1));
            for magic_at_start in [false, true] {
                if let (true, Some(magic)) = (magic_at_start, bytes.get_mut(..4)) {
                    magic.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
                }
                let _ = verify_block(&bytes, FsBlock(1), 1, location);
                for entries in [
                    Entries::in_inode(&bytes, has_value_inodes, location),
                    Entries::in_block(&bytes, has_value_inodes, location),
                ] {
                    let Ok(entries) = entries else { continue };
                    prop_assert!(entries.iter().count() <= bytes.len() / 16);
                }
            }
        }

        #[test]
        fn every_checked_entry_is_listed(
            names in proptest::collection::vec("[a-z]{1,20}", 0..5),
            tail in proptest::collection::vec(any::<u8>(), 40),
        ) {
            let mut bytes = XATTR_MAGIC.to_le_bytes().to_vec();
            for name in &names {
                bytes.extend(entry(name.as_bytes(), 0, 0, 0));
            }
            bytes.extend([0; 4]);
            bytes.extend(tail);
            let found: Vec<_> = parse(&bytes).unwrap().iter().map(|e| e.name.to_vec()).collect();
            let expected: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
