//! Tests that set and remove random attributes, in areas and blocks of all sizes, and compare with
//! a map.

use std::collections::BTreeMap;

use base::{Error, FsBlock, InodeNumber, Location};
use proptest::prelude::*;

use super::body::{self, Attribute, Stored};
use super::entries::{
    Entries, NameBytes, Value, block_header, entry_hash, padded_entry_bytes, verify_block,
};
use super::name::INLINE_DATA_NAME;
use super::set::{Attributes, Room};
use fs::xattr::NameIndex;

type Key = (NameIndex, Vec<u8>);

/// The attributes of one inode as bytes, and the values in inodes.
struct Stand {
    room: Room,
    area: Box<[u8]>,
    block: Vec<u8>,
    /// Value `n` is in inode `n + 1`.
    values: Vec<Vec<u8>>,
}

const BLOCK: FsBlock = FsBlock(77);
const SEED: u32 = 12;

impl Stand {
    fn new(room: Room) -> Self {
        let area = body::area(&[], room.area);
        let mut stand = Self { room, area, block: Vec::new(), values: Vec::new() };
        stand.store(Attributes::default());
        stand
    }

    fn entries(&self) -> (Entries<'_>, Entries<'_>) {
        let location = Location::default();
        verify_block(&self.block, BLOCK, SEED, location).unwrap();
        let has_value_inodes = self.room.has_value_inodes;
        (
            Entries::in_inode(&self.area, has_value_inodes, location).unwrap(),
            Entries::in_block(&self.block, has_value_inodes, location).unwrap(),
        )
    }

    fn load(&self) -> Attributes {
        let all = |entries: Entries<'_>| entries.iter().map(|it| Attribute::of(&it)).collect();
        let (area, block) = self.entries();
        Attributes { area: all(area), block: all(block) }
    }

    fn store(&mut self, mut attributes: Attributes) {
        for attribute in attributes.area.iter_mut().chain(&mut attributes.block) {
            if let Stored::ToInode(value) = &attribute.value {
                self.values.push(value.clone());
                let size = value.len() as u32;
                let inode = InodeNumber(self.values.len() as u64);
                attribute.value = Stored::InInode { inode, size };
                attribute.hash = 7;
            }
        }
        self.area = body::area(&attributes.area, self.room.area);
        self.block = body::block(attributes.block, self.room.block);
        body::seal_block(&mut self.block, BLOCK, Some(SEED));
    }

    /// Returns the stored values by name.
    fn map(&self) -> BTreeMap<Key, Vec<u8>> {
        let (area, block) = self.entries();
        let mut map = BTreeMap::new();
        for entry in area.iter().chain(block.iter()) {
            let value = match entry.value {
                Value::Here(value) => value.to_vec(),
                Value::InInode { inode, .. } => self.values[inode.0 as usize - 1].clone(),
            };
            let known = map.insert((entry.index, entry.name.to_vec()), value);
            assert_eq!(known, None, "a name twice");
        }
        map
    }

    /// Checks what the kernel and e2fsck require of the bytes, beyond what parsing requires.
    fn check(&self) {
        let (area, block) = self.entries();
        let mut hash = 0_u32;
        let mut last = None;
        for entry in block.iter() {
            let key = (entry.index, entry.name.len(), entry.name.to_vec());
            assert!(last < Some(key.clone()), "out of order");
            last = Some(key);
            if let Value::Here(value) = entry.value {
                assert_eq!(entry.hash, entry_hash(entry.name, value, NameBytes::Unsigned));
            }
            hash = if entry.hash == 0 { 0 } else { hash.rotate_left(16) ^ entry.hash };
        }
        if block.iter().all(|entry| entry.hash != 0) {
            assert_eq!(block_header(&self.block, Location::default()).unwrap().hash.get(), hash);
        }
        for (entries, length) in [(area, self.area.len()), (block, self.block.len())] {
            let mut values: Vec<_> = entries
                .iter()
                .filter_map(|entry| match entry.value {
                    Value::Here(value) if !value.is_empty() => {
                        Some((entry.value_start, entry.value_start + value.len()))
                    }
                    _ => None,
                })
                .collect();
            values.sort_unstable();
            assert!(values.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{values:?}");
            assert!(values.iter().all(|value| value.0 % 4 == 0 && value.1 <= length));
        }
    }
}

fn room() -> impl Strategy<Value = Room> {
    let area = prop_oneof![Just(0_usize), (0_usize..30).prop_map(|n| 4 * n), Just(96), Just(864)];
    let block = prop_oneof![Just(1024_usize), Just(4096), Just(65536)];
    (area, block, any::<bool>(), any::<bool>()).prop_map(
        |(area, block, has_value_inodes, is_link)| Room { area, block, has_value_inodes, is_link },
    )
}

fn operation() -> impl Strategy<Value = (Key, Option<Vec<u8>>)> {
    let name = prop_oneof![
        4 => "[ab]{1,3}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(1_u8..=255, 1..256),
    ];
    let index = prop_oneof![Just(1_u8), Just(4), Just(6)];
    let length = prop_oneof![0_usize..40, 0_usize..1100, Just(4040), 60_000_usize..=65_536];
    let value = proptest::option::weighted(0.7, (any::<u8>(), length));
    let value = value.prop_map(|value| value.map(|(byte, length)| vec![byte; length]));
    ((index.prop_map(NameIndex), name), value)
}

proptest! {
    #[test]
    fn an_attribute_is_stored_until_it_is_removed(
        room in room(),
        operations in proptest::collection::vec(operation(), 1..40),
    ) {
        let mut stand = Stand::new(room);
        let mut expected = BTreeMap::new();
        for ((index, name), value) in operations {
            let mut attributes = stand.load();
            let there = attributes.contains(index, &name);
            prop_assert_eq!(there, expected.contains_key(&(index, name.clone())));
            match value {
                None => {
                    prop_assert_eq!(attributes.remove(index, &name), there);
                    expected.remove(&(index, name));
                }
                Some(value) => match attributes.set(&room, index, &name, &value) {
                    Ok(()) => {
                        expected.insert((index, name), value);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, Error::NoSpace);
                        prop_assert_eq!(&attributes, &stand.load());
                        // An empty block has room, unless the value by itself is too large for it.
                        let alone = padded_entry_bytes(name.len()) + 36 + value.len();
                        prop_assert!(!attributes.block.is_empty() || alone + 3 > room.block);
                    }
                },
            }
            stand.store(attributes);
            stand.check();
            prop_assert_eq!(stand.map(), expected.clone());
        }
        for (index, name) in expected.into_keys() {
            let mut attributes = stand.load();
            prop_assert!(attributes.remove(index, &name));
            stand.store(attributes);
        }
        // The bytes are as if no attribute had ever been set.
        prop_assert_eq!(&stand.area, &vec![0; room.area].into_boxed_slice());
        prop_assert_eq!(stand.entries().1.iter().count(), 0);
    }
}

const PLAIN: Room = Room { area: 96, block: 1024, has_value_inodes: false, is_link: false };

/// Returns where the attribute of this name is: 'a' in the area, 'b' in the block; capitals if its
/// value will get an inode.
fn position_of(attributes: &Attributes, name: &[u8]) -> String {
    let positions = [(&attributes.area, ["a", "A"]), (&attributes.block, ["b", "B"])];
    let found = positions.into_iter().flat_map(|(list, names)| {
        list.iter().filter(|it| *it.name == *name).map(move |it| match it.value {
            Stored::Here(_) => names[0],
            _ => names[1],
        })
    });
    found.collect()
}

#[track_caller]
fn set(attributes: &mut Attributes, room: &Room, name: &[u8], bytes: usize) -> String {
    attributes.set(room, NameIndex::USER, name, &vec![7; bytes]).unwrap();
    position_of(attributes, name)
}

#[test]
fn values_are_stored_in_the_inode_first_and_then_in_the_block() {
    let mut it = Attributes::default();
    // 96 bytes less the magic number, the terminator and an entry.
    assert_eq!(set(&mut it, &PLAIN, b"one", 69), "b");
    assert_eq!(set(&mut it, &PLAIN, b"one", 68), "a");
    assert_eq!(set(&mut it, &PLAIN, b"two", 1), "b");
    assert_eq!(set(&mut it, &PLAIN, b"one", 30), "a");
    assert_eq!(set(&mut it, &PLAIN, b"two", 1), "a");
    assert_eq!(set(&mut it, &PLAIN, b"two", 50), "b");
    let before = it.clone();
    assert_eq!(it.set(&PLAIN, NameIndex::USER, b"two", &[1; 969]), Err(Error::NoSpace));
    assert_eq!(it, before);
    assert_eq!(set(&mut it, &PLAIN, b"two", 968), "b");
}

#[test]
fn large_values_get_inodes_if_the_volume_has_the_feature() {
    let room = Room { has_value_inodes: true, ..PLAIN };
    let mut it = Attributes::default();
    // More than fits in a block with a short name.
    assert_eq!(set(&mut it, &room, b"one", 969), "A");
    // Less, but too little room would remain for entries.
    assert_eq!(set(&mut it, &room, b"two", 900), "A");
    assert_eq!(set(&mut it, &room, b"two", 896), "b");
    assert_eq!(set(&mut it, &room, b"six", 896), "A");
    assert_eq!(set(&mut it, &room, b"ten", 896), "A");
    // The inode has no room for more entries.
    assert_eq!(set(&mut it, &room, b"red", 896), "A");
    assert_eq!(set(&mut it, &room, b"tan", 896), "B");
    // The value that is in the block leaves less than an eighth of it.
    assert_eq!(set(&mut it, &room, b"tan", 1), "B");
    assert_eq!(set(&mut it, &room, b"tan", 0), "b");
}

#[test]
fn a_link_with_a_value_in_an_inode_has_a_block() {
    let room = Room { has_value_inodes: true, is_link: true, ..PLAIN };
    let mut it = Attributes::default();
    assert_eq!(set(&mut it, &room, b"one", 8), "a");
    assert_eq!(set(&mut it, &room, b"two", 5000), "B");
    assert_eq!(set(&mut it, &room, b"one", 5000), "B");
}

#[test]
fn inline_data_stays_in_the_inode() {
    let value = Stored::Here(vec![1; 40]);
    let index = NameIndex::SYSTEM;
    let inline = Attribute { index, name: INLINE_DATA_NAME.into(), value, hash: 0 };
    let mut it = Attributes { area: vec![inline.clone()], block: Vec::new() };
    assert_eq!(set(&mut it, &PLAIN, b"one", 30), "b");
    assert_eq!(set(&mut it, &PLAIN, b"two", 4), "a");
    assert!(it.remove(NameIndex::USER, b"two"));
    assert_eq!(it.area, [inline]);
}
