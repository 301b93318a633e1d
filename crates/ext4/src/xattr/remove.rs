//! Removal of an attribute from an inode's body: bytes in, bytes out.
//! Not here: attributes in a block, and adding attributes.

use base::{Location, Result};
use zerocopy::FromBytes;

use super::entries::{ALIGNMENT, Entries, Entry, Value};
use crate::ondisk::xattr::{RawXattrEntry, XATTR_MAGIC};
use fs::xattr::NameIndex;

const MAGIC_BYTES: usize = size_of_val(&XATTR_MAGIC);

/// Removes the attribute of this name from an inode's body. Its value must be in the body, too.
/// Moves the other entries and values together. Returns false if there is no such attribute.
pub(crate) fn remove_from_inode(
    body: &mut [u8],
    (index, name): (NameIndex, &[u8]),
    has_value_inodes: bool,
    location: Location,
) -> Result<bool> {
    let entries = Entries::in_inode(body, has_value_inodes, location)?;
    let Some(entry) = entries.find(index, name) else { return Ok(false) };
    let (start, length) = (entry.start, entry_bytes(entry.name.len()));
    let starts: Vec<usize> = entries.iter().map(|entry| entry.start).collect();
    let end = entries.iter().map(|entry| entry.start + entry_bytes(entry.name.len())).max();
    let end = end.unwrap_or_default();
    let value = value_range(&entry);
    let lowest = entries.iter().filter_map(|entry| value_range(&entry)).map(|value| value.0).min();
    let bytes = &mut body[MAGIC_BYTES..];
    if let (Some((value_start, value_bytes)), Some(lowest)) = (value, lowest) {
        bytes.copy_within(lowest..value_start, lowest + value_bytes);
        bytes[lowest..lowest + value_bytes].fill(0);
        for &at in starts.iter().filter(|&&at| at != start) {
            let (raw, _) = RawXattrEntry::mut_from_prefix(&mut bytes[at..]).expect("it was read");
            let offset = usize::from(raw.value_offset.get());
            let is_here = raw.value_inode.get() == 0 && raw.value_size.get() > 0;
            if is_here && offset < value_start {
                raw.value_offset = ((offset + value_bytes) as u16).into();
            }
        }
    }
    bytes.copy_within(start + length..end, start);
    bytes[end - length..end].fill(0);
    Ok(true)
}

/// Returns the offset and the length of a value that is with the entries.
fn value_range(entry: &Entry<'_>) -> Option<(usize, usize)> {
    match entry.value {
        Value::Here([]) | Value::InInode { .. } => None,
        Value::Here(value) => Some((entry.value_start, value.len().next_multiple_of(ALIGNMENT))),
    }
}

fn entry_bytes(name_length: usize) -> usize {
    (size_of::<RawXattrEntry>() + name_length).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    /// Returns a body with these attributes. Values fill it from the end backwards.
    fn body(attributes: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
        let mut body = XATTR_MAGIC.to_le_bytes().to_vec();
        body.resize(MAGIC_BYTES + 2048, 0);
        let bytes = &mut body[MAGIC_BYTES..];
        let (mut at, mut top) = (0, bytes.len());
        for (name, value) in attributes {
            top -= value.len().next_multiple_of(ALIGNMENT);
            bytes[top..top + value.len()].copy_from_slice(value);
            let raw = RawXattrEntry {
                name_length: name.len() as u8,
                name_index: 7,
                value_offset: (if value.is_empty() { 0 } else { top as u16 }).into(),
                value_inode: 0.into(),
                value_size: (value.len() as u32).into(),
                hash: 0.into(),
            };
            bytes[at..at + 16].copy_from_slice(raw.as_bytes());
            bytes[at + 16..at + 16 + name.len()].copy_from_slice(name.as_bytes());
            at += entry_bytes(name.len());
        }
        body
    }

    proptest! {
        #[test]
        fn removing_an_attribute_leaves_the_bytes_that_the_others_alone_would_have(
            mut attributes in prop::collection::btree_map(
                "[a-z]{1,9}", prop::collection::vec(1_u8.., 0..60), 1..8,
            ),
            which: prop::sample::Index,
        ) {
            let name = attributes.keys().nth(which.index(attributes.len())).unwrap().clone();
            let mut bytes = body(&attributes);
            let key = (NameIndex::SYSTEM, name.as_bytes());
            prop_assert!(remove_from_inode(&mut bytes, key, false, Location::default()).unwrap());
            attributes.remove(&name);
            prop_assert_eq!(&bytes, &body(&attributes));
            prop_assert!(!remove_from_inode(&mut bytes, key, false, Location::default()).unwrap());
        }
    }
}
