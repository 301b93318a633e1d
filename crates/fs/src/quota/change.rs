//! Changes of what ids use, and new entries. Entries stay when their ids use nothing any more:
//! Linux removes them then.

use base::{Error, Problem, Result};
use zerocopy::{FromZeros, IntoBytes};

use super::layout::{BLOCK_BYTES, ENTRIES, LEVELS, ROOT, RawEntry, RawHeader, RawLeaf};
use super::tree::{QuotaFile, entry_at};
use super::{Place, QuotaBlock, UsageChange, WriteBlocks};

impl<B: WriteBlocks> QuotaFile<B> {
    /// Changes what an id uses. Returns the place of its entry.
    ///
    /// # Errors
    ///
    /// `Corrupt`, also if the id would use less than nothing, and those of the blocks. The file may
    /// have changed in part.
    pub fn charge(&mut self, id: u32, change: UsageChange) -> Result<Place> {
        let place = match self.place_of(id)? {
            Some(place) => place,
            None => self.insert(id)?,
        };
        self.change_entry(place, |entry| {
            // Of a new entry.
            entry.id.set(id);
            apply(entry, change)
        })?;
        Ok(place)
    }

    /// Changes the entry in a place.
    fn change_entry(
        &mut self,
        place: Place,
        change: impl FnOnce(&mut RawEntry) -> Option<()>,
    ) -> Result<()> {
        let mut leaf = self.blocks.read(place.block)?;
        let location = self.blocks.location();
        change_entry_in(&mut leaf, place, change).ok_or_else(|| {
            let problem = Problem::Missing("usage of an id that is charged less");
            Error::corrupt("quota file", location, problem)
        })?;
        self.blocks.write(place.block, &leaf)
    }

    /// Adds an entry for an id that has none. The caller fills it.
    fn insert(&mut self, id: u32) -> Result<Place> {
        let place = self.take_entry()?;
        let mut at = ROOT;
        for (level, index) in id.to_be_bytes().into_iter().enumerate() {
            let mut contents = self.blocks.read(at)?;
            let child = self.child(&contents, index.into())?;
            let next = match (level + 1 == LEVELS, child) {
                (true, _) => place.block,
                (false, 0) => self.new_block()?,
                (false, child) => child,
            };
            if next != child {
                let byte = usize::from(index) * size_of::<u32>();
                contents[byte..byte + size_of::<u32>()].copy_from_slice(&next.to_le_bytes());
                self.blocks.write(at, &contents)?;
            }
            at = next;
        }
        self.write_header()?;
        Ok(place)
    }

    /// Takes an entry that is not in use, of the first block that has one.
    fn take_entry(&mut self) -> Result<Place> {
        let block = match self.header.free_entry.get() {
            0 => self.new_block()?,
            block => block,
        };
        self.header.free_entry.set(block);
        let mut contents = self.blocks.read(block)?;
        let mut leaf = self.leaf(&contents)?;
        let mut free = None;
        for index in (0..ENTRIES).rev() {
            if !self.entry(&contents, index)?.is_used() {
                free = Some(index);
            }
        }
        let entries = usize::from(leaf.entries.get());
        let Some(index) = free.filter(|_| entries < ENTRIES) else {
            return Err(self.fault(Problem::Missing("free entry in a block of the list")));
        };
        leaf.entries.set(leaf.entries.get() + 1);
        if entries + 1 == ENTRIES {
            // The block was the first one of the list.
            let next = self.reference("next free block", leaf.next.get())?;
            if next != 0 {
                let mut contents = self.blocks.read(next)?;
                let mut second = self.leaf(&contents)?;
                second.previous.set(0);
                put_leaf(&mut contents, &second);
                self.blocks.write(next, &contents)?;
            }
            self.header.free_entry.set(next);
            (leaf.next, leaf.previous) = Default::default();
        }
        put_leaf(&mut contents, &leaf);
        self.blocks.write(block, &contents)?;
        Ok(Place { block, index })
    }

    /// Returns a block of zeroes that is not in use: one of the list, or a new one at the end.
    fn new_block(&mut self) -> Result<u32> {
        let block = match self.header.free_block.get() {
            0 => {
                let block = self.header.blocks.get();
                let next = block.checked_add(1).ok_or(Error::NoSpace)?;
                self.header.blocks.set(next);
                block
            }
            block => {
                let leaf = self.leaf(&self.blocks.read(block)?)?;
                let next = self.reference("next free block", leaf.next.get())?;
                self.header.free_block.set(next);
                block
            }
        };
        self.blocks.write(block, &[0; BLOCK_BYTES])?;
        Ok(block)
    }

    fn write_header(&mut self) -> Result<()> {
        let mut first = self.blocks.read(0)?;
        first[..size_of::<RawHeader>()].copy_from_slice(self.header.as_bytes());
        self.blocks.write(0, &first)
    }
}

/// Changes what an id uses, if its entry is in `place`, as [`QuotaFile::charge`] has returned it.
/// Returns false, and changes nothing, if the entry is not there, or if the id would use less than
/// nothing.
pub fn charge_at<B: WriteBlocks>(
    blocks: &mut B,
    place: Place,
    id: u32,
    change: UsageChange,
) -> Result<bool> {
    let mut leaf = blocks.read(place.block)?;
    let charged = change_entry_in(&mut leaf, place, |entry| {
        if entry.is_used() && entry.id.get() == id { apply(entry, change) } else { None }
    });
    match charged {
        Some(()) => blocks.write(place.block, &leaf).map(|()| true),
        None => Ok(false),
    }
}

fn change_entry_in(
    leaf: &mut QuotaBlock,
    place: Place,
    change: impl FnOnce(&mut RawEntry) -> Option<()>,
) -> Option<()> {
    let at = entry_at(place.index);
    let bytes = leaf.get_mut(at..at + size_of::<RawEntry>())?;
    let mut entry = RawEntry::new_zeroed();
    entry.as_mut_bytes().copy_from_slice(bytes);
    change(&mut entry)?;
    bytes.copy_from_slice(entry.as_bytes());
    Some(())
}

/// Changes an entry. `None` if a number would be less than zero, or too large.
fn apply(entry: &mut RawEntry, change: UsageChange) -> Option<()> {
    const PLACEHOLDER: u64 = 1;
    let bytes = entry.bytes.get().checked_add_signed(change.bytes)?;
    let inodes = entry.inodes.get().checked_add_signed(change.inodes)?;
    entry.bytes.set(bytes);
    entry.inodes.set(inodes);
    // The time of grace ends with the excess.
    if bytes <= entry.kib_soft.get().saturating_mul(1 << 10) {
        entry.bytes_time.set(0);
    }
    if inodes <= entry.inodes_soft.get() || entry.inodes_time.get() == PLACEHOLDER {
        entry.inodes_time.set(0);
    }
    if !entry.is_used() {
        entry.inodes_time.set(PLACEHOLDER);
    }
    Some(())
}

fn put_leaf(contents: &mut QuotaBlock, leaf: &RawLeaf) {
    contents[..size_of::<RawLeaf>()].copy_from_slice(leaf.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::{InodeNumber, Location};
    use proptest::prelude::*;

    use super::super::{QuotaKind, ReadBlocks, Usage};
    use super::*;

    /// A file in memory.
    #[derive(Clone, Debug, Default)]
    struct Memory(Vec<QuotaBlock>);

    impl ReadBlocks for Memory {
        fn location(&self) -> Location {
            Location::inode(InodeNumber(4))
        }

        fn size(&self) -> u64 {
            (self.0.len() * BLOCK_BYTES) as u64
        }

        fn read(&self, block: u32) -> Result<QuotaBlock> {
            Ok(self.0.get(block as usize).copied().unwrap_or([0; BLOCK_BYTES]))
        }
    }

    impl WriteBlocks for Memory {
        fn write(&mut self, block: u32, contents: &QuotaBlock) -> Result<()> {
            let block = block as usize;
            self.0.resize(self.0.len().max(block + 1), [0; BLOCK_BYTES]);
            self.0[block] = *contents;
            Ok(())
        }
    }

    /// Returns a file without entries.
    fn empty() -> Memory {
        let mut first = [0; BLOCK_BYTES];
        let words = [0xD9C0_1F11, 1, 0, 0, 0, 2, 0, 0_u32];
        for (index, word) in words.iter().enumerate() {
            first[index * 4..index * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        Memory(vec![first, [0; BLOCK_BYTES]])
    }

    fn entries(memory: &Memory) -> Result<BTreeMap<u32, Usage>> {
        let mut found = BTreeMap::new();
        let file = QuotaFile::open(QuotaKind::User, memory.clone())?;
        file.for_each(&mut |id, usage| assert_eq!(found.insert(id, usage), None))?;
        assert!(found.keys().all(|id| file.place_of(*id).is_ok_and(|place| place.is_some())));
        Ok(found)
    }

    fn id() -> impl Strategy<Value = u32> {
        prop_oneof![0..40_u32, any::<u32>(), (0..8_u32).prop_map(|id| id << 8)]
    }

    proptest! {
        #[test]
        fn charges_equal_those_of_a_map(
            charges in proptest::collection::vec((id(), -2_i64..6, -1_i64..3), 1..150),
            remembers in any::<bool>(),
        ) {
            let (mut memory, mut expected) = (empty(), BTreeMap::<u32, Usage>::new());
            let mut places = BTreeMap::new();
            for (id, bytes, inodes) in charges {
                let change = UsageChange { bytes: bytes << 12, inodes };
                let before = expected.get(&id).copied().unwrap_or_default();
                let after = before.bytes.checked_add_signed(change.bytes)
                    .zip(before.inodes.checked_add_signed(change.inodes));
                let mut changed = memory.clone();
                if let Some(place) = places.get(&id).filter(|_| remembers) {
                    let is_charged = charge_at(&mut changed, *place, id, change).unwrap();
                    prop_assert_eq!(is_charged, after.is_some());
                    memory = changed;
                } else {
                    let mut file = QuotaFile::open(QuotaKind::User, changed).unwrap();
                    match file.charge(id, change) {
                        Ok(place) => drop((places.insert(id, place), memory = file.blocks)),
                        Err(_) => prop_assert!(after.is_none()),
                    }
                }
                if let Some((bytes, inodes)) = after {
                    expected.insert(id, Usage { bytes, inodes });
                }
            }
            prop_assert_eq!(entries(&memory).unwrap(), expected);
        }
    }

    #[test]
    fn blocks_of_the_free_list_are_used_first() {
        let mut memory = empty();
        // Two blocks that are not in use, with old contents.
        memory.0.extend([[0xFF; BLOCK_BYTES]; 2]);
        memory.0[0][20..28].copy_from_slice(&[4, 0, 0, 0, 3, 0, 0, 0]);
        memory.0[3][..16].copy_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        memory.0[2][..16].fill(0);
        let mut file = QuotaFile::open(QuotaKind::User, memory).unwrap();
        file.charge(7, UsageChange { bytes: 4096, inodes: 1 }).unwrap();
        // An entry and three levels.
        assert_eq!(file.blocks.0.len(), 6);
        let expected = BTreeMap::from([(7, Usage { bytes: 4096, inodes: 1 })]);
        assert_eq!(entries(&file.blocks), Ok(expected));
    }

    #[test]
    fn an_entry_is_not_at_a_place_of_another_id() {
        let mut file = QuotaFile::open(QuotaKind::User, empty()).unwrap();
        let change = UsageChange { bytes: 0, inodes: 1 };
        let place = file.charge(7, change).unwrap();
        for (id, place) in
            [(8, place), (7, Place { index: 1, ..place }), (0, Place { index: 1, ..place })]
        {
            assert_eq!(charge_at(&mut file.blocks, place, id, change), Ok(false));
        }
    }

    #[test]
    fn grace_ends_when_the_usage_is_at_the_soft_limit() {
        let mut entry = RawEntry::new_zeroed();
        entry.kib_soft.set(8);
        entry.bytes.set(16 << 10);
        entry.bytes_time.set(1_700_000_000);
        entry.inodes_soft.set(1);
        entry.inodes.set(3);
        entry.inodes_time.set(1_700_000_000);
        let less = UsageChange { bytes: -4096, inodes: -1 };
        apply(&mut entry, less).unwrap();
        assert!(entry.bytes_time.get() != 0 && entry.inodes_time.get() != 0);
        apply(&mut entry, less).unwrap();
        assert_eq!((entry.bytes_time.get(), entry.inodes_time.get()), (0, 0));
    }

    #[test]
    fn damaged_files_are_found() {
        let mut file = QuotaFile::open(QuotaKind::User, empty()).unwrap();
        for id in 0..20 {
            file.charge(id, UsageChange { bytes: 0, inodes: 1 }).unwrap();
        }
        let memory = file.blocks;
        assert_eq!(entries(&memory).unwrap().len(), 20);
        // The magic number, the number of blocks, the list, references at two levels, an id, and
        // the number of entries.
        for (block, byte) in [(0, 0), (0, 20), (0, 28), (1, 0), (3, 0), (2, 16), (2, 8)] {
            for value in [1, 0x77] {
                let mut damaged = memory.clone();
                damaged.0[block][byte] ^= value;
                let found = entries(&damaged);
                assert!(found.is_err(), "block {block}, byte {byte}: {found:?}");
            }
        }
    }
}
