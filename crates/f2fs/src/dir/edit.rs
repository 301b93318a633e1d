//! Changes of a dentry area: adding and removing an entry. The area can be a block or part of an
//! inode. Not here: the choice of the block (`levels`), and the inodes.

use base::InodeNumber;
use zerocopy::FromBytes;

use crate::ondisk::dentry::{DentryLayout, RawDentry, SLOT_NAME_BYTES};

/// An entry to add.
#[derive(Clone, Copy, Debug)]
pub struct NewEntry<'n> {
    /// The name, as stored; 1 to 255 bytes.
    pub name: &'n [u8],
    /// The hash of the name.
    pub hash: u32,
    /// The inode.
    pub inode: InodeNumber,
    /// The code of the inode's type.
    pub kind: u8,
}

impl NewEntry<'_> {
    fn slots(&self) -> usize {
        self.name.len().div_ceil(SLOT_NAME_BYTES)
    }
}

/// Adds an entry to the first free slots that are enough. Returns whether there was room.
pub fn add(area: &mut [u8], entry: &NewEntry<'_>) -> bool {
    let layout = DentryLayout::of(area.len());
    let slots = entry.slots();
    let Some(slot) = free_slots(area, &layout, slots) else { return false };
    for index in slot..slot + slots {
        set_used(area, index, true);
        let is_first = index == slot;
        let raw = raw_entry(area, &layout, index);
        // Linux reads only the first slot's entry, and expects no name in the others.
        raw.name_len.set(if is_first { entry.name.len() as u16 } else { 0 });
        if is_first {
            raw.hash_code.set(entry.hash);
            raw.ino.set(entry.inode.0 as u32);
            raw.file_type = entry.kind;
        }
    }
    let at = layout.names_at + slot * SLOT_NAME_BYTES;
    area[at..at + entry.name.len()].copy_from_slice(entry.name);
    true
}

/// Removes the entry in the slots from `slot` to `end`, which exist. The name stays in unused
/// slots.
pub fn remove(area: &mut [u8], slot: usize, end: usize) {
    for index in slot..end {
        set_used(area, index, false);
    }
}

/// Lets the entry in `slot`, which exists, name another inode.
pub fn set_inode(area: &mut [u8], slot: usize, inode: InodeNumber, kind: u8) {
    let layout = DentryLayout::of(area.len());
    let raw = raw_entry(area, &layout, slot);
    raw.ino.set(inode.0 as u32);
    raw.file_type = kind;
}

/// Returns whether an area has no entries.
pub fn is_empty(area: &[u8]) -> bool {
    let layout = DentryLayout::of(area.len());
    (0..layout.slots).all(|slot| !is_used(area, slot))
}

/// Copies the entries of `area`, which has fewer slots than a block, to the same slots of a new
/// block.
pub fn copy_to_block(area: &[u8], block_bytes: usize) -> Vec<u8> {
    let mut block = vec![0; block_bytes];
    let (from, to) = (DentryLayout::of(area.len()), DentryLayout::of(block_bytes));
    block[..from.bitmap_bytes].copy_from_slice(&area[..from.bitmap_bytes]);
    let entries = &area[from.entries_at..from.names_at];
    block[to.entries_at..to.entries_at + entries.len()].copy_from_slice(entries);
    let names = &area[from.names_at..];
    block[to.names_at..to.names_at + names.len()].copy_from_slice(names);
    block
}

/// Returns the first of `count` free slots in a row.
fn free_slots(area: &[u8], layout: &DentryLayout, count: usize) -> Option<usize> {
    let mut free = 0;
    for slot in 0..layout.slots {
        free = if is_used(area, slot) { 0 } else { free + 1 };
        if free == count {
            return Some(slot + 1 - count);
        }
    }
    None
}

fn is_used(area: &[u8], slot: usize) -> bool {
    area[slot / 8] >> (slot % 8) & 1 != 0
}

fn set_used(area: &mut [u8], slot: usize, used: bool) {
    let bit = 1 << (slot % 8);
    let byte = &mut area[slot / 8];
    *byte = *byte & !bit | if used { bit } else { 0 };
}

fn raw_entry<'a>(area: &'a mut [u8], layout: &DentryLayout, slot: usize) -> &'a mut RawDentry {
    let at = layout.entries_at + slot * size_of::<RawDentry>();
    RawDentry::mut_from_bytes(&mut area[at..at + size_of::<RawDentry>()]).expect("of this size")
}

#[cfg(test)]
mod tests {
    use base::{InodeNumber, Location};

    use super::super::entries::Entries;
    use super::*;

    fn entry(name: &[u8], inode: u64) -> NewEntry<'_> {
        NewEntry { name, hash: 5, inode: InodeNumber(inode), kind: 1 }
    }

    #[track_caller]
    fn check(area: &[u8], expected: &[(usize, &[u8], u64)]) {
        let entries = Entries::new(area, Location::default()).map(Result::unwrap);
        let found: Vec<_> = entries.map(|entry| (entry.slot, entry.name, entry.inode.0)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn entries_take_the_first_free_slots_that_are_enough() {
        let mut area = vec![0; 4096];
        assert!(is_empty(&area));
        assert!(add(&mut area, &entry(b"eight by", 10)));
        assert!(add(&mut area, &entry(b"nine byte", 11)));
        assert!(add(&mut area, &entry(b"c", 12)));
        check(&area, &[(0, b"eight by", 10), (1, b"nine byte", 11), (3, b"c", 12)]);
        remove(&mut area, 0, 1);
        assert!(add(&mut area, &entry(b"nine more", 13)));
        assert!(add(&mut area, &entry(b"short", 14)));
        let expected: [(usize, &[u8], u64); 4] =
            [(0, b"short", 14), (1, b"nine byte", 11), (3, b"c", 12), (4, b"nine more", 13)];
        check(&area, &expected);
    }

    #[test]
    fn an_area_takes_as_many_entries_as_it_has_slots() {
        for bytes in [4096, 3488, 3452, 16_384] {
            let mut area = vec![0; bytes];
            let slots = DentryLayout::of(bytes).slots;
            for number in 0..slots {
                assert!(
                    add(&mut area, &entry(b"one slot", 10 + number as u64)),
                    "{bytes} {number}"
                );
            }
            assert!(!add(&mut area, &entry(b"x", 9)));
            remove(&mut area, slots - 1, slots);
            assert!(!add(&mut area, &entry(b"two slots", 9)), "there is one slot");
            assert!(add(&mut area, &entry(b"x", 9)));
            remove(&mut area, 0, slots);
            assert!(is_empty(&area));
        }
    }

    #[test]
    fn entries_keep_their_slots_in_a_block() {
        let mut area = vec![0; 3488];
        for name in [&b"a"[..], b"a name of several slots", b"b"] {
            assert!(add(&mut area, &entry(name, 7)));
        }
        remove(&mut area, 0, 1);
        let block = copy_to_block(&area, 4096);
        check(&block, &[(1, b"a name of several slots", 7), (4, b"b", 7)]);
    }
}
