//! Changes of the entries in one directory block, or in a part of an inline directory: bytes in,
//! bytes out. Not here: which block, and the index.
//!
//! An entry extends to the start of the next one. The bytes that it does not need are room for new
//! entries. No change moves an entry that stays, except [`DirFormat::pack`].

use std::ops::Range;

use base::attributes::FileType;
use base::checksum::crc32c;
use base::{Error, InodeNumber, Location, Problem, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::block::{
    DirFormat, ENTRY_BYTES_MIN, HEADER_BYTES, Slot, TAIL_FILE_TYPE, code_from_file_type,
    entry_bytes,
};
use crate::ondisk::dir::{RawDirEntryHeader, RawDirTail};

const TAIL_BYTES: usize = size_of::<RawDirTail>();

/// An entry to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewEntry<'a> {
    /// The name; at most [`NAME_BYTES_MAX`](super::NAME_BYTES_MAX) bytes.
    pub name: &'a [u8],
    /// The inode.
    pub inode: InodeNumber,
    /// The type's code in the entry; 0 on volumes without types.
    pub code: u8,
}

impl NewEntry<'_> {
    /// Returns the bytes that the entry needs.
    pub(crate) fn bytes(&self) -> usize {
        entry_bytes(self.name.len())
    }
}

/// Room for a new entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Offset of the entry that has the room.
    start: usize,
    /// Bytes that this entry needs itself; 0 if it is unused.
    taken: usize,
    end: usize,
}

/// An existing name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// Offset of the entry before it; `None` for the first entry.
    pub previous: Option<usize>,
    /// Start and end of the entry.
    pub range: (usize, usize),
    /// The name's inode.
    pub inode: InodeNumber,
}

/// The entries "." and "..".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dots<'a> {
    pub entries: [NewEntry<'a>; 2],
    /// Offset of "..".
    pub parent_start: usize,
    /// Offset of the entry after "..".
    pub end: usize,
}

impl DirFormat {
    /// Returns an entry that names an inode.
    pub(crate) fn new_entry<'a>(
        &self,
        name: &'a [u8],
        inode: InodeNumber,
        kind: FileType,
    ) -> NewEntry<'a> {
        let code = if self.has_file_types { code_from_file_type(kind) } else { 0 };
        NewEntry { name, inode, code }
    }

    /// Returns the bytes of a leaf that can hold entries: all but the checksum tail.
    pub(crate) fn entries_bytes(&self) -> usize {
        let tail = if self.checksum_seed.is_some() { TAIL_BYTES } else { 0 };
        self.block_size.len() - tail
    }

    /// Returns the entries of a leaf, without its tail.
    pub(crate) fn entries<'b>(&self, leaf: &'b [u8]) -> &'b [u8] {
        leaf.get(..self.entries_bytes()).unwrap_or_default()
    }

    /// Returns the entry of a name.
    pub(crate) fn find(
        &self,
        bytes: &[u8],
        location: Location,
        name: &[u8],
    ) -> Result<Option<Found>> {
        let mut previous = None;
        for slot in self.slots(bytes, location) {
            let slot = slot?;
            if let Some(inode) = slot.inode.filter(|_| slot.name == name) {
                return Ok(Some(Found { previous, range: (slot.start, slot.end), inode }));
            }
            previous = Some(slot.start);
        }
        Ok(None)
    }

    /// Returns the first room for an entry of `needed` bytes among `entries`.
    pub(crate) fn find_room(
        &self,
        entries: &[u8],
        location: Location,
        needed: usize,
    ) -> Result<Option<Room>> {
        for slot in self.slots(entries, location) {
            let slot = slot?;
            let room = room_of(&slot);
            if room.end - room.start - room.taken >= needed {
                return Ok(Some(room));
            }
        }
        Ok(None)
    }

    /// Writes an entry to room that [`find_room`](Self::find_room) returned.
    pub(crate) fn insert(&self, bytes: &mut [u8], room: Room, entry: &NewEntry<'_>) {
        if room.taken > 0 {
            self.set_length(bytes, room.start, room.taken);
        }
        self.write_entry(bytes, room.start + room.taken..room.end, entry);
    }

    /// Removes an entry. Its bytes become room of the entry before it. If it is the first, it
    /// becomes unused.
    pub(crate) fn remove(&self, bytes: &mut [u8], found: &Found) {
        let (start, end) = found.range;
        bytes[start..end].fill(0);
        match found.previous {
            Some(previous) => self.set_length(bytes, previous, end - previous),
            None => self.set_length(bytes, start, end - start),
        }
    }

    /// Sets the inode and type code of an entry.
    pub(crate) fn set_inode(&self, bytes: &mut [u8], start: usize, inode: InodeNumber, code: u8) {
        let header = header_at(bytes, start);
        header.inode = raw_inode(inode);
        header.file_type = code;
    }

    /// Fills `bytes` with these entries, which fit. The last entry extends to the end.
    pub(crate) fn pack<'a>(
        &self,
        bytes: &mut [u8],
        entries: impl IntoIterator<Item = NewEntry<'a>>,
    ) {
        bytes.fill(0);
        self.set_length(bytes, 0, bytes.len());
        let (mut last, mut at) = (0, 0);
        for entry in entries {
            self.set_length(bytes, last, at - last);
            let end = bytes.len();
            self.write_entry(bytes, at..end, &entry);
            (last, at) = (at, at + entry.bytes());
        }
    }

    /// Returns a leaf with these entries, which fit.
    pub(crate) fn new_leaf<'a>(
        &self,
        entries: impl IntoIterator<Item = NewEntry<'a>>,
    ) -> Box<[u8]> {
        let mut leaf = vec![0; self.block_size.len()].into_boxed_slice();
        let room = self.entries_bytes();
        self.pack(&mut leaf[..room], entries);
        self.seal_leaf(&mut leaf);
        leaf
    }

    /// Writes a leaf's tail with its checksum, if the volume has checksums.
    pub(crate) fn seal_leaf(&self, leaf: &mut [u8]) {
        let Some(seed) = self.checksum_seed else { return };
        let (entries, tail) = leaf.split_at_mut(self.entries_bytes());
        let raw = RawDirTail {
            inode: 0.into(),
            record_length: (TAIL_BYTES as u16).into(),
            name_length: 0,
            file_type: TAIL_FILE_TYPE,
            checksum: crc32c(seed, entries).into(),
        };
        tail.copy_from_slice(raw.as_bytes());
    }

    /// Writes an entry that covers all of `range`.
    fn write_entry(&self, bytes: &mut [u8], range: Range<usize>, entry: &NewEntry<'_>) {
        let header = RawDirEntryHeader {
            inode: raw_inode(entry.inode),
            record_length: self.raw_length(range.len()).into(),
            name_length: u8::try_from(entry.name.len()).expect("names are checked before"),
            file_type: entry.code,
        };
        let bytes = &mut bytes[range];
        bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        let (name, rest) = bytes[HEADER_BYTES..].split_at_mut(entry.name.len());
        name.copy_from_slice(entry.name);
        let padding = entry.bytes() - HEADER_BYTES - entry.name.len();
        rest[..padding].fill(0);
    }

    pub(crate) fn set_length(&self, bytes: &mut [u8], start: usize, length: usize) {
        header_at(bytes, start).record_length = self.raw_length(length).into();
    }

    /// Returns the raw form of an entry's length: the inverse of [`DirFormat`]'s `record_length`.
    fn raw_length(&self, length: usize) -> u16 {
        debug_assert!((ENTRY_BYTES_MIN..=self.block_size.len()).contains(&length) || length == 0);
        u16::try_from(length).unwrap_or(u16::MAX)
    }

    /// Returns the used entries of `bytes`, with their names checked.
    pub(crate) fn used<'a>(
        &self,
        bytes: &'a [u8],
        location: Location,
    ) -> impl Iterator<Item = Result<NewEntry<'a>>> + use<'a> {
        self.slots(bytes, location).filter_map(move |slot| match slot {
            Ok(Slot { inode: None, .. }) => None,
            Ok(slot @ Slot { inode: Some(inode), .. }) => {
                Some(slot.checked_name(location).map(|_| NewEntry {
                    name: slot.name,
                    inode,
                    code: slot.file_type,
                }))
            }
            Err(error) => Some(Err(error)),
        })
    }

    /// Returns the entries "." and "..".
    pub(crate) fn dot_entries(&self, parent: InodeNumber) -> [NewEntry<'static>; 2] {
        [(&b"."[..], self.inode), (b"..", parent)]
            .map(|(name, inode)| self.new_entry(name, inode, FileType::Directory))
    }

    /// Returns the first two entries of a block. Errors: `Corrupt` if they are not "." and "..".
    pub(crate) fn dots<'a>(&self, block: &'a [u8], location: Location) -> Result<Dots<'a>> {
        let mut slots = self.slots(block, location);
        let mut next = |name: &[u8]| -> Result<(NewEntry<'a>, usize)> {
            if let Some(slot) = slots.next().transpose()? {
                if let Some(inode) = slot.inode.filter(|_| slot.name == name) {
                    let entry = NewEntry { name: slot.name, inode, code: slot.file_type };
                    return Ok((entry, slot.end));
                }
            }
            let problem = Problem::Missing("the entries \".\" and \"..\"");
            Err(Error::corrupt("directory block", location, problem))
        };
        let ((own, parent_start), (parent, end)) = (next(b".")?, next(b"..")?);
        Ok(Dots { entries: [own, parent], parent_start, end })
    }
}

/// Returns the bytes of an entry that another entry could use.
fn room_of(slot: &Slot<'_>) -> Room {
    // An entry without a name is corrupt, but has the minimum length, too.
    let taken = slot.inode.map_or(0, |_| entry_bytes(slot.name.len().max(1)));
    Room { start: slot.start, taken, end: slot.end }
}

/// Returns an inode number as its 32 bits on disk.
fn raw_inode(inode: InodeNumber) -> zerocopy::little_endian::U32 {
    u32::try_from(inode.0).expect("an inode of the volume").into()
}

fn header_at(bytes: &mut [u8], start: usize) -> &mut RawDirEntryHeader {
    match RawDirEntryHeader::mut_from_prefix(&mut bytes[start..]) {
        Ok((header, _)) => header,
        Err(_) => unreachable!("an entry begins where one was found"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::block::tests::format;
    use super::*;

    const LOCATION: Location =
        Location { group: None, inode: None, file_block: None, block: None, byte: None };

    fn entries(format: &DirFormat, leaf: &[u8]) -> BTreeMap<Vec<u8>, u64> {
        format.verify_leaf(leaf, LOCATION).unwrap();
        let used = format.used(leaf, LOCATION).map(Result::unwrap);
        let names: Vec<_> = used.map(|entry| (entry.name.to_vec(), entry.inode.0)).collect();
        let map: BTreeMap<_, _> = names.iter().cloned().collect();
        assert_eq!(map.len(), names.len(), "a name occurs twice");
        map
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(Vec<u8>),
        Remove(prop::sample::Index),
        Set(prop::sample::Index, u64),
        Pack,
    }

    fn change() -> impl Strategy<Value = Change> {
        let name = prop_oneof![
            "[a-z]{1,12}".prop_map(String::into_bytes),
            prop::collection::vec(b'a'..b'd', 1..=255),
        ];
        prop_oneof![
            6 => name.prop_map(Change::Insert),
            3 => any::<prop::sample::Index>().prop_map(Change::Remove),
            1 => (any::<prop::sample::Index>(), 1_u64..1000).prop_map(|(i, n)| Change::Set(i, n)),
            1 => Just(Change::Pack),
        ]
    }

    proptest! {
        #[test]
        fn a_leaf_has_the_entries_that_were_inserted_and_not_removed(
            changes in prop::collection::vec(change(), 0..200),
            shift in 10_u32..=16,
            checksum_seed in prop::option::of(any::<u32>()),
            has_file_types: bool,
        ) {
            let format = DirFormat { checksum_seed, has_file_types, ..format(1 << shift) };
            let mut leaf = format.new_leaf([]);
            let mut model = BTreeMap::new();
            for (number, change) in (1..).zip(changes) {
                let nth = |index: prop::sample::Index, model: &BTreeMap<Vec<u8>, u64>| {
                    let index = index.index(model.len().max(1));
                    model.keys().nth(index).cloned()
                };
                match change {
                    Change::Insert(name) => {
                        let entry =
                            format.new_entry(&name, InodeNumber(number), FileType::Directory);
                        let room =
                            format.find_room(format.entries(&leaf), LOCATION, entry.bytes()).unwrap();
                        match room {
                            Some(room) if !model.contains_key(&name) => {
                                format.insert(&mut leaf, room, &entry);
                                model.insert(name, number);
                            }
                            Some(_) => {}
                            None => {
                                let used: usize = model.keys().map(|n| entry_bytes(n.len())).sum();
                                // No entry of this size fits into the gaps.
                                let gaps = (model.len() + 1) * entry.bytes();
                                prop_assert!(used + gaps > format.entries_bytes());
                            }
                        }
                    }
                    Change::Remove(index) => {
                        let Some(name) = nth(index, &model) else { continue };
                        let found = format.find(&leaf, LOCATION, &name).unwrap().unwrap();
                        prop_assert_eq!(Some(found.inode.0), model.remove(&name));
                        format.remove(&mut leaf, &found);
                    }
                    Change::Set(index, inode) => {
                        let Some(name) = nth(index, &model) else { continue };
                        let found = format.find(&leaf, LOCATION, &name).unwrap().unwrap();
                        format.set_inode(&mut leaf, found.range.0, InodeNumber(inode), 1);
                        model.insert(name, inode);
                    }
                    Change::Pack => {
                        let before = leaf.clone();
                        let used: Vec<_> = format.used(&before, LOCATION).map(Result::unwrap).collect();
                        let room = format.entries_bytes();
                        format.pack(&mut leaf[..room], used);
                    }
                }
                format.seal_leaf(&mut leaf);
                prop_assert_eq!(&entries(&format, &leaf), &model);
            }
        }
    }

    #[test]
    fn the_single_entry_of_an_empty_leaf_fills_blocks_of_every_size() {
        for shift in 10..=16 {
            let format = format(1 << shift);
            let leaf = format.new_leaf([]);
            let slots: Vec<_> = format.slots(&leaf, LOCATION).map(Result::unwrap).collect();
            assert_eq!(slots.len(), 1);
            assert_eq!((slots[0].end, slots[0].inode), (1 << shift, None));
        }
    }

    #[test]
    fn a_directory_must_begin_with_dots() {
        let format = DirFormat { checksum_seed: Some(3), ..format(1024) };
        let [own, parent] = [&b"."[..], b".."]
            .map(|name| format.new_entry(name, InodeNumber(12), FileType::Directory));
        let other = format.new_entry(b"name", InodeNumber(13), FileType::Regular);
        let leaf = format.new_leaf([own, parent, other]);
        let dots = Dots { entries: [own, parent], parent_start: 12, end: 24 };
        assert_eq!(format.dots(&leaf, LOCATION).unwrap(), dots);
        for wrong in [vec![parent, own], vec![own, other], vec![own]] {
            assert!(format.dots(&format.new_leaf(wrong), LOCATION).is_err());
        }
    }
}
