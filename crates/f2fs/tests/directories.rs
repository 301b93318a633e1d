//! Directories that a small writer lays out as the format says: lookup, listing, damage.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use base::attributes::{DirCursor, FileType};
use base::{BlockSize, Error, FileBlock, FsBlock, InodeNumber, Location, Result};
use f2fs::dir::hash::name_hash;
use f2fs::dir::{Blocks, Casefold, Directory, DirectoryShape, InlineDirectory, WantedName};
use fscrypt::{Context, IvRule, KeyId, Keys, Mode, Names, NoKeyName, Owner, Policy, ShownNames};
use proptest::prelude::*;

const INODE: u32 = 9;

/// A dentry area, with its sizes as the format's description gives them.
#[derive(Clone, Copy)]
struct Area {
    bytes: usize,
    slots: usize,
    reserved: usize,
}

const BLOCK_4K: Area = Area { bytes: 4096, slots: 214, reserved: 3 };
const BLOCK_16K: Area = Area { bytes: 16_384, slots: 856, reserved: 13 };
const INLINE: Area = Area { bytes: 3488, slots: 182, reserved: 7 };

impl Area {
    fn entries_at(self) -> usize {
        self.slots.div_ceil(8) + self.reserved
    }

    /// Adds an entry to the first gap that is large enough. Returns whether there is one.
    fn insert(self, bytes: &mut [u8], name: &[u8], hash: u32, inode: u32) -> bool {
        let needed = name.len().div_ceil(8);
        let is_free = |bytes: &[u8], slot: usize| bytes[slot / 8] & 1 << (slot % 8) == 0;
        let gap = (0..(self.slots + 1).saturating_sub(needed))
            .find(|&start| (start..start + needed).all(|slot| is_free(bytes, slot)));
        let Some(start) = gap else { return false };
        for slot in start..start + needed {
            bytes[slot / 8] |= 1 << (slot % 8);
        }
        let at = self.entries_at() + start * 11;
        bytes[at..at + 4].copy_from_slice(&hash.to_le_bytes());
        bytes[at + 4..at + 8].copy_from_slice(&inode.to_le_bytes());
        bytes[at + 8..at + 10].copy_from_slice(&(name.len() as u16).to_le_bytes());
        bytes[at + 10] = 1;
        let at = self.entries_at() + self.slots * 11 + start * 8;
        bytes[at..at + name.len()].copy_from_slice(name);
        true
    }
}

/// A directory with blocks, as a writer leaves it.
struct Written {
    area: Area,
    shape: DirectoryShape,
    blocks: BTreeMap<u64, Vec<u8>>,
    blocks_read: Cell<u64>,
}

impl Written {
    fn new(area: Area, dir_level: u8) -> Self {
        let shape = DirectoryShape {
            inode: InodeNumber(INODE.into()),
            inode_max: InodeNumber(1 << 20),
            block_size: BlockSize::from_bytes(area.bytes as u64).unwrap(),
            block_count: 0,
            depth: 1,
            dir_level,
            casefold: None,
            encrypted: false,
        };
        let mut written = Self { area, shape, blocks: BTreeMap::new(), blocks_read: Cell::new(0) };
        written.insert(b".", INODE);
        written.insert(b"..", 3);
        written
    }

    fn insert(&mut self, name: &[u8], inode: u32) {
        self.insert_hashed(name, name_hash(name), inode);
    }

    /// Adds an entry to the first level that has room in the bucket of `hash`.
    fn insert_hashed(&mut self, name: &[u8], hash: u32, inode: u32) {
        let mut level_start = 0;
        for level in 0.. {
            let buckets = 1_u64 << (level + u32::from(self.shape.dir_level));
            let first = level_start + 2 * (u64::from(hash) % buckets);
            for at in [first, first + 1] {
                let empty = || vec![0; self.area.bytes];
                let block = self.blocks.entry(at).or_insert_with(empty);
                if self.area.insert(block, name, hash, inode) {
                    self.shape.depth = self.shape.depth.max(level + 1);
                    self.shape.block_count = self.shape.block_count.max(at + 1);
                    return;
                }
            }
            level_start += 2 * buckets;
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<u64>> {
        let wanted = WantedName::new(name, &self.shape)?;
        let found = Directory::new(&self.shape, self).lookup(&wanted)?;
        Ok(found.map(|found| found.inode.0))
    }

    fn list(&self) -> Result<Vec<(Vec<u8>, u64, u64)>> {
        let mut found = Vec::new();
        Directory::new(&self.shape, self).read_dir(
            DirCursor(0),
            ShownNames::Plain,
            &mut |entry| {
                found.push((entry.name.to_vec(), entry.inode.0, entry.next.0));
                ControlFlow::Continue(())
            },
        )?;
        Ok(found)
    }
}

impl Blocks for Written {
    type Bytes = Vec<u8>;

    fn block(&self, at: FileBlock) -> Result<Option<(Vec<u8>, FsBlock)>> {
        self.blocks_read.set(self.blocks_read.get() + 1);
        Ok(self.blocks.get(&at.0).map(|block| (block.clone(), FsBlock(1000 + at.0))))
    }

    fn next_mapped(&self, from: FileBlock) -> Result<Option<FileBlock>> {
        Ok(self.blocks.range(from.0..).next().map(|(&at, _)| FileBlock(at)))
    }
}

/// Returns different names of all lengths, with their inode numbers.
fn names(count: u32) -> impl Iterator<Item = (Vec<u8>, u32)> {
    (0..count).map(|number| {
        let mut name = format!("{number}-").into_bytes();
        let length = name.len().max(number as usize * 7 % 256);
        name.resize(length, b'a' + (number % 26) as u8);
        (name, 10 + number)
    })
}

#[track_caller]
fn check_directory(area: Area, dir_level: u8, count: u32) {
    let mut written = Written::new(area, dir_level);
    names(count).for_each(|(name, inode)| written.insert(&name, inode));
    assert!(written.shape.depth >= 4, "the directory has several levels");
    for (name, inode) in names(count) {
        assert_eq!(written.lookup(&name).unwrap(), Some(inode.into()));
    }
    let mut expected: BTreeSet<_> = names(count).collect();
    expected.extend([(b".".to_vec(), INODE), (b"..".to_vec(), 3)]);
    let listed = written.list().unwrap();
    assert_eq!(listed.len(), expected.len(), "no entry is listed twice");
    let listed: BTreeSet<_> =
        listed.into_iter().map(|(name, inode, _)| (name, inode as u32)).collect();
    assert_eq!(listed, expected);
}

#[test]
fn every_name_of_large_directories_is_found_and_listed_once() {
    check_directory(BLOCK_4K, 0, 6000);
    check_directory(BLOCK_4K, 3, 6000);
    check_directory(BLOCK_16K, 0, 6000);
}

#[test]
fn a_missing_name_costs_two_blocks_per_level() {
    let mut written = Written::new(BLOCK_4K, 0);
    names(6000).for_each(|(name, inode)| written.insert(&name, inode));
    for (name, _) in names(100) {
        written.blocks_read.set(0);
        assert_eq!(written.lookup(&[&name[..name.len().min(250)], b"!"].concat()), Ok(None));
        assert!(written.blocks_read.get() <= 2 * u64::from(written.shape.depth));
    }
    assert_eq!(written.lookup(&[b'n'; 256]), Err(Error::NameTooLong));
}

#[test]
fn the_depth_is_bounded_whatever_the_inode_says() {
    let mut written = Written::new(BLOCK_4K, 0);
    written.shape.depth = u32::MAX;
    written.shape.dir_level = u8::MAX;
    written.shape.block_count = u64::MAX;
    assert_eq!(written.lookup(b"none"), Ok(None));
    assert!(written.blocks_read.get() <= 4 * 63);
}

#[test]
fn a_listing_resumes_at_each_cursor() {
    let mut written = Written::new(BLOCK_4K, 1);
    names(700).for_each(|(name, inode)| written.insert(&name, inode));
    let all = written.list().unwrap();
    let directory = Directory::new(&written.shape, &written);
    let mut cursor = DirCursor(0);
    for (name, inode, next) in &all {
        let mut found = None;
        let mut take_one = |entry: base::attributes::DirEntry<'_>| {
            found = Some((entry.name.to_vec(), entry.inode.0, entry.next.0));
            ControlFlow::Break(())
        };
        // A number inside the entry before stands for this entry, too.
        directory.read_dir(cursor, ShownNames::Plain, &mut take_one).unwrap();
        assert_eq!(found, Some((name.clone(), *inode, *next)));
        cursor = DirCursor(*next);
    }
    for end in [cursor, DirCursor(u64::MAX)] {
        directory
            .read_dir(end, ShownNames::Plain, &mut |entry| panic!("{entry:?} after the end"))
            .unwrap();
    }
}

#[test]
fn a_listing_of_a_huge_sparse_directory_reads_its_few_blocks() {
    let mut written = Written::new(BLOCK_4K, 0);
    let far = (1 << 37) + 5;
    let mut block = vec![0; 4096];
    assert!(BLOCK_4K.insert(&mut block, b"far", name_hash(b"far"), 77));
    written.blocks.insert(far, block);
    written.shape.block_count = 1 << 40;
    let listed = written.list().unwrap();
    assert_eq!(listed.last().unwrap(), &(b"far".to_vec(), 77, far * 214 + 1));
    assert_eq!(written.blocks_read.get(), 2);
    // Blocks past the directory's size are no part of it.
    written.shape.block_count = far;
    assert_eq!(written.list().unwrap().len(), 2);
}

#[test]
fn entries_of_unknown_type_have_none() {
    let mut written = Written::new(BLOCK_4K, 0);
    written.insert(b"name", 10);
    let wanted = WantedName::new(b"name", &written.shape).unwrap();
    let kind = |written: &Written| {
        Directory::new(&written.shape, written).lookup(&wanted).unwrap().unwrap().kind
    };
    assert_eq!(kind(&written), Some(FileType::Regular));
    written.blocks.get_mut(&0).unwrap()[30 + 2 * 11 + 10] = 99;
    assert_eq!(kind(&written), None);
}

/// Returns the cipher of the names of the directory, under a policy of version 2 or 1.
fn cipher(version: u8) -> Names {
    let mut keys = Keys::default();
    let key = match version {
        1 => keys.add_with_descriptor([5; 8], &[9; 64]).map(|_| KeyId::Descriptor([5; 8])),
        _ => keys.add(&[9; 64]),
    };
    let policy = Policy {
        key: key.unwrap(),
        contents: Mode::Aes256Xts,
        names: Mode::Aes256Cts,
        iv: IvRule::PerFileKey,
        name_padding: 16,
        log2_data_unit_size: None,
    };
    let block_size = BlockSize::from_bytes(4096).unwrap();
    let owner = Owner { inode: InodeNumber(INODE.into()), uuid: [1; 16], block_size };
    let names = keys.names(&Context { policy, nonce: [7; 16] }, &owner);
    names.unwrap().expect("the key")
}

impl Written {
    /// Looks a name up that is shown as `name` in this encrypted directory.
    fn lookup_shown(&self, name: &[u8], names: Option<&Names>) -> Result<Option<u64>> {
        let wanted = WantedName::encrypted(name, names, &self.shape)?;
        let found = Directory::new(&self.shape, self).lookup(&wanted)?;
        Ok(found.map(|found| found.inode.0))
    }

    /// Lists the names in the form `shown`, with their inodes.
    fn list_shown(&self, shown: ShownNames<'_>) -> Result<BTreeMap<Vec<u8>, u64>> {
        let mut found = BTreeMap::new();
        Directory::new(&self.shape, self).read_dir(DirCursor(0), shown, &mut |entry| {
            found.insert(entry.name.to_vec(), entry.inode.0);
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}

#[test]
fn names_of_an_encrypted_directory_are_found_with_the_key_and_without() {
    let names = cipher(2);
    let mut written = Written::new(BLOCK_4K, 0);
    written.shape.encrypted = true;
    let plain: BTreeMap<Vec<u8>, u64> = (10..400)
        .map(|inode| (format!("{inode} {}", "n".repeat(inode % 250)).into_bytes(), inode as u64))
        .collect();
    for (name, inode) in &plain {
        written.insert(&names.encrypt(name).unwrap(), *inode as u32);
    }
    for (cipher, shown) in
        [(Some(&names), ShownNames::Decrypted(&names)), (None, ShownNames::NoKey)]
    {
        let listed = written.list_shown(shown).unwrap();
        assert_eq!(listed.len(), plain.len() + 2, "with . and ..");
        for (name, inode) in &listed {
            assert_eq!(written.lookup_shown(name, cipher), Ok(Some(*inode)));
        }
        assert_eq!(
            cipher.is_some(),
            plain.iter().all(|(name, inode)| listed.get(name) == Some(inode))
        );
    }
    assert_eq!(written.lookup_shown(b"none", Some(&names)), Ok(None));
    assert_eq!(written.lookup_shown(b"10 nnnnnnnnnn", None), Err(Error::NotFound));
    assert_eq!(written.lookup_shown(&[b'n'; 256], Some(&names)), Err(Error::NameTooLong));

    // A name without the key has the hash that is stored, and not another one.
    let stored = names.encrypt(b"10 nnnnnnnnnn").unwrap();
    let no_key = |hash| NoKeyName::new([hash, 0], &stored).encode().into_bytes();
    assert_eq!(written.lookup_shown(&no_key(name_hash(&stored)), None), Ok(Some(10)));
    assert_eq!(written.lookup_shown(&no_key(name_hash(&stored) ^ 1), None), Ok(None));
}

#[test]
fn an_encrypted_directory_that_ignores_case_has_hashes_with_its_key() {
    let names = cipher(2);
    let mut written = Written::new(BLOCK_4K, 0);
    written.shape.encrypted = true;
    written.shape.casefold = Some(Casefold { strict: false, linear_fallback: false });
    let hash = |folded: &[u8]| names.dirhash(folded).unwrap() as u32;
    for (name, folded, inode) in [
        ("Straße.TXT".as_bytes(), &b"strasse.txt"[..], 10),
        (b"bytes\xFF", b"bytes\xFF", 11),
        ("A\u{200D}B".as_bytes(), b"another", 12),
    ] {
        written.insert_hashed(&names.encrypt(name).unwrap(), hash(folded), inode);
    }
    let find = |written: &Written, name: &str| written.lookup_shown(name.as_bytes(), Some(&names));
    assert_eq!(find(&written, "STRASSE.txt"), Ok(Some(10)));
    assert_eq!(find(&written, "straße.txt"), Ok(Some(10)));
    assert_eq!(find(&written, ".."), Ok(Some(3)));
    assert_eq!(find(&written, "AB"), Ok(None), "another hash");
    assert_eq!(written.lookup_shown(b"bytes\xFF", Some(&names)), Ok(Some(11)));
    assert_eq!(written.lookup_shown(b"Bytes\xFF", Some(&names)), Ok(None));
    for name in written.list_shown(ShownNames::NoKey).unwrap().into_keys() {
        assert!(written.lookup_shown(&name, None).unwrap().is_some());
    }
    written.shape.casefold = Some(Casefold { strict: true, linear_fallback: true });
    assert_eq!(find(&written, "AB"), Ok(Some(12)));
    let refused = written.lookup_shown(b"bytes\xFF", Some(&names));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    let refused = written.lookup_shown(b"AB", Some(&cipher(1)));
    assert!(matches!(refused, Err(Error::Unsupported(_))));
}

#[test]
fn encrypted_names_of_any_bytes_are_shown_or_refused() {
    let names = cipher(2);
    let mut written = Written::new(BLOCK_4K, 0);
    let stored = b"\x00/\xFFciphertext16";
    written.insert(stored, 10);
    assert!(matches!(written.lookup(stored), Err(Error::Corrupt(_))), "not encrypted");
    written.shape.encrypted = true;
    let listed = written.list_shown(ShownNames::NoKey).unwrap();
    assert_eq!(listed.values().copied().collect::<BTreeSet<_>>(), [3, INODE.into(), 10].into());
    // Too short to be decrypted.
    written.insert(b"short", 11);
    let refused = written.list_shown(ShownNames::Decrypted(&names));
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
}

#[test]
fn a_directory_that_ignores_case_finds_folded_names_by_their_hash() {
    let mut written = Written::new(BLOCK_4K, 0);
    written.shape.casefold = Some(Casefold { strict: false, linear_fallback: false });
    written.insert_hashed("Straße.TXT".as_bytes(), name_hash(b"strasse.txt"), 10);
    written.insert_hashed(b"bytes\xFF", name_hash(b"bytes\xFF"), 11);
    // Hashed by another version of the tables.
    written.insert_hashed("A\u{200D}B".as_bytes(), name_hash("a\u{200D}b".as_bytes()), 12);
    names(3000).for_each(|(name, inode)| written.insert(&name, inode + 100));
    assert_eq!(written.lookup("STRASSE.txt".as_bytes()), Ok(Some(10)));
    assert_eq!(written.lookup("straße.txt".as_bytes()), Ok(Some(10)));
    assert_eq!(written.lookup(b"bytes\xFF"), Ok(Some(11)));
    assert_eq!(written.lookup(b"Bytes\xFF"), Ok(None));
    assert_eq!(written.lookup(b".."), Ok(Some(3)));
    assert_eq!(written.lookup("A\u{200D}B".as_bytes()), Ok(None));
    written.shape.casefold = Some(Casefold { strict: true, linear_fallback: true });
    assert_eq!(written.lookup("A\u{200D}B".as_bytes()), Ok(Some(12)));
    assert_eq!(written.lookup(b"AB"), Ok(Some(12)));
    assert!(matches!(written.lookup(b"bytes\xFF"), Err(Error::InvalidArgument(_))));
}

#[test]
fn an_inline_directory_is_searched_and_listed() {
    let mut area = vec![0; INLINE.bytes];
    assert!(INLINE.insert(&mut area, b".", 0, INODE) && INLINE.insert(&mut area, b"..", 0, 3));
    let inserted: Vec<_> = names(60)
        .filter(|(name, inode)| INLINE.insert(&mut area, name, name_hash(name), *inode))
        .collect();
    let mut shape = Written::new(BLOCK_4K, 0).shape;
    let directory = InlineDirectory::new(&shape, &area, Location::default());
    for (name, inode) in &inserted {
        let wanted = WantedName::new(name, &shape).unwrap();
        let found = directory.lookup(&wanted).unwrap().unwrap();
        assert_eq!(found.inode.0, u64::from(*inode));
    }
    let wanted = WantedName::new(b"none", &shape).unwrap();
    assert_eq!(directory.lookup(&wanted), Ok(None));
    let mut cursor = DirCursor(0);
    let mut listed = 0;
    loop {
        let before = listed;
        let from = cursor;
        let mut take_one = |entry: base::attributes::DirEntry<'_>| {
            cursor = entry.next;
            listed += 1;
            ControlFlow::Break(())
        };
        directory.read_dir(from, ShownNames::Plain, &mut take_one).unwrap();
        if listed == before {
            break;
        }
    }
    assert_eq!(listed, inserted.len() + 2);
    shape.casefold = Some(Casefold { strict: false, linear_fallback: true });
    assert!(INLINE.insert(&mut area, b"Name", 1234, 99));
    let directory = InlineDirectory::new(&shape, &area, Location::default());
    let found = directory.lookup(&WantedName::new(b"NAME", &shape).unwrap()).unwrap();
    assert_eq!(found.unwrap().inode, InodeNumber(99));
}

/// Searches and lists; the only error is `Corrupt`.
fn use_damaged(written: &Written) {
    for (name, _) in names(30) {
        let found = written.lookup(&name);
        assert!(matches!(found, Ok(_) | Err(Error::Corrupt(_))), "{found:?}");
    }
    let listed = written.list();
    assert!(matches!(listed, Ok(_) | Err(Error::Corrupt(_))), "{listed:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_gives_located_errors_only(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        at_most: prop::sample::Index,
        casefold: bool,
    ) {
        let mut written = Written::new(BLOCK_4K, 0);
        names(400).for_each(|(name, inode)| written.insert(&name, inode));
        if casefold {
            written.shape.casefold = Some(Casefold { strict: false, linear_fallback: true });
        }
        // Most damage is close together: in one block, in its bitmap and entries.
        let at = *at_most.get(&written.blocks.keys().copied().collect::<Vec<_>>());
        let block = written.blocks.get_mut(&at).unwrap();
        for (index, byte) in changes {
            let at = index.index(2 * 2400) % 2400;
            block[at] = byte;
        }
        use_damaged(&written);
    }

    #[test]
    fn random_areas_of_any_size_give_located_errors_only(
        area in proptest::collection::vec(any::<u8>(), 0..5000),
    ) {
        let shape = Written::new(BLOCK_4K, 0).shape;
        let directory = InlineDirectory::new(&shape, &area, Location::default());
        let _ = directory.lookup(&WantedName::new(b"name", &shape).unwrap());
        let mut cursor = DirCursor(0);
        let _ = directory.read_dir(DirCursor(0), ShownNames::Plain, &mut |entry| {
            assert!(entry.next.0 > cursor.0);
            cursor = entry.next;
            ControlFlow::Continue(())
        });
    }
}
