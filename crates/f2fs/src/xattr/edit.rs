//! Changes of the list of extended attributes.
//! Not here: where the list lies (`live/xattrs.rs`).
//!
//! As in Linux, a new or changed attribute is the last one, and no gaps are left.

use base::attributes::XattrMode;
use base::{Error, Location, Result};
use fs::xattr::NameIndex;
use zerocopy::IntoBytes;

use super::entries::{ALIGNMENT, Entries, Entry, HEADER_BYTES};
use crate::ondisk::xattr::{RawXattrEntry, RawXattrHeader, XATTR_MAGIC};

/// A list in memory, without the zeroes behind its entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct List {
    bytes: Vec<u8>,
    /// The bytes that the list can have.
    room: usize,
}

impl List {
    /// Parses the list `list`, which lies at `location`, and can have `room` bytes. Errors:
    /// `Corrupt`.
    pub(crate) fn parse(list: &[u8], room: usize, location: Location) -> Result<Self> {
        let mut parsed = Self { bytes: Vec::with_capacity(list.len()), room };
        let header = RawXattrHeader {
            magic: XATTR_MAGIC.into(),
            refcount: 1.into(),
            reserved: Default::default(),
        };
        parsed.bytes.extend_from_slice(header.as_bytes());
        for entry in Entries::parse(list, location)?.iter() {
            parsed.push(&entry);
        }
        Ok(parsed)
    }

    /// Returns the list's bytes. Only zeroes follow them.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sets an attribute, as stored.
    ///
    /// # Errors
    ///
    /// `Exists` and `NoAttribute` as `mode` demands, and `NoSpace` if the list has no room. The
    /// list is unchanged then.
    pub(crate) fn set(
        &mut self,
        index: NameIndex,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let existing = self.entry_at(index, name);
        match (mode, &existing) {
            (XattrMode::Create, Some(_)) => return Err(Error::Exists),
            (XattrMode::Replace, None) => return Err(Error::NoAttribute),
            _ => {}
        }
        let freed = existing.as_ref().map_or(0, |bytes| bytes.len());
        if self.bytes.len() - freed + stored_bytes(name, value) > self.room {
            return Err(Error::NoSpace);
        }
        existing.map(|bytes| self.bytes.drain(bytes));
        self.push(&Entry { index, name, value });
        Ok(())
    }

    /// Removes an attribute. Errors: `NoAttribute`.
    pub(crate) fn remove(&mut self, index: NameIndex, name: &[u8]) -> Result<()> {
        let bytes = self.entry_at(index, name).ok_or(Error::NoAttribute)?;
        self.bytes.drain(bytes);
        Ok(())
    }

    /// Returns the bytes of an attribute's entry.
    fn entry_at(&self, index: NameIndex, name: &[u8]) -> Option<std::ops::Range<usize>> {
        let mut at = HEADER_BYTES;
        let entries = Entries::parse(&self.bytes, Location::default()).ok()?;
        for entry in entries.iter() {
            let end = at + stored_bytes(entry.name, entry.value);
            if entry.index == index && entry.name == name {
                return Some(at..end);
            }
            at = end;
        }
        None
    }

    fn push(&mut self, entry: &Entry<'_>) {
        let end = self.bytes.len() + stored_bytes(entry.name, entry.value);
        let raw = RawXattrEntry {
            name_index: entry.index.0,
            // Names have 255 bytes at most, and values less than a block.
            name_len: entry.name.len() as u8,
            value_size: (entry.value.len() as u16).into(),
        };
        self.bytes.extend_from_slice(raw.as_bytes());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.extend_from_slice(entry.value);
        self.bytes.resize(end, 0);
    }
}

/// Returns the bytes of an entry.
fn stored_bytes(name: &[u8], value: &[u8]) -> usize {
    (size_of::<RawXattrEntry>() + name.len() + value.len()).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const USER: NameIndex = NameIndex(1);

    fn list(room: usize) -> List {
        List::parse(&[], room, Location::default()).unwrap()
    }

    fn contents(list: &List) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entries = Entries::parse(list.bytes(), Location::default()).unwrap();
        entries.iter().map(|entry| (entry.name.to_vec(), entry.value.to_vec())).collect()
    }

    #[test]
    fn modes_demand_an_attribute_or_none() {
        let mut list = list(4096);
        assert_eq!(list.set(USER, b"a", b"1", XattrMode::Replace), Err(Error::NoAttribute));
        assert_eq!(list.set(USER, b"a", b"1", XattrMode::Create), Ok(()));
        assert_eq!(list.set(USER, b"a", b"2", XattrMode::Create), Err(Error::Exists));
        assert_eq!(list.set(NameIndex(6), b"a", b"3", XattrMode::Create), Ok(()));
        assert_eq!(list.set(USER, b"a", b"4", XattrMode::Replace), Ok(()));
        let expected = [(b"a".to_vec(), b"3".to_vec()), (b"a".to_vec(), b"4".to_vec())];
        assert_eq!(contents(&list), expected);
        assert_eq!(list.remove(USER, b"b"), Err(Error::NoAttribute));
    }

    #[test]
    fn a_full_list_stays_as_it_is() {
        let mut list = list(HEADER_BYTES + 100);
        list.set(USER, b"a", &[1; 50], XattrMode::Either).unwrap();
        let before = list.clone();
        assert_eq!(list.set(USER, b"b", &[2; 50], XattrMode::Either), Err(Error::NoSpace));
        assert_eq!(list.set(USER, b"a", &[2; 96], XattrMode::Either), Err(Error::NoSpace));
        assert_eq!(list, before);
        assert_eq!(list.set(USER, b"a", &[2; 95], XattrMode::Either), Ok(()));
        assert_eq!(list.bytes().len(), HEADER_BYTES + 100);
    }

    proptest! {
        #[test]
        fn lists_are_like_a_map(
            changes in prop::collection::vec((0_u8..12, prop::option::of(0_usize..400)), 0..60),
            room in 100_usize..4000,
        ) {
            let (mut list, mut model) = (list(room), BTreeMap::new());
            for (number, (name, length)) in changes.into_iter().enumerate() {
                let name = vec![b'n'; 1 + usize::from(name)];
                let before = list.clone();
                let changed = match length {
                    Some(length) => {
                        let value = vec![number as u8; length];
                        let changed = list.set(USER, &name, &value, XattrMode::Either);
                        changed.map(|()| drop(model.insert(name, value)))
                    }
                    None => {
                        let changed = list.remove(USER, &name);
                        prop_assert_eq!(changed.is_ok(), model.remove(&name).is_some());
                        changed
                    }
                };
                prop_assert!(changed.is_ok() || list == before);
                prop_assert!(list.bytes().len() <= room);
                let mut found = contents(&list);
                found.sort();
                prop_assert_eq!(&found, &model.clone().into_iter().collect::<Vec<_>>());
                let mut stored = list.bytes().to_vec();
                stored.resize(room, 0);
                prop_assert_eq!(&List::parse(&stored, room, Location::default()).unwrap(), &list);
            }
        }
    }
}
