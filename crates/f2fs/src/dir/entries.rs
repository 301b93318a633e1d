//! Parsing of the entries in a dentry area: bounds, the bitmap, names, inode numbers.
//! Not here: which blocks a directory has, and hashes.
//!
//! Source: kernel documentation, `filesystems/f2fs.rst`, "Directory Structure".

use base::attributes::FileType;
use base::{Error, InodeNumber, Location, Problem, Result};
use zerocopy::FromBytes;

use super::NAME_BYTES_MAX;
use crate::ondisk::dentry::{DentryLayout, RawDentry, SLOT_NAME_BYTES};

const STRUCTURE: &str = "directory entry";
/// The least inode number that an entry can have: that of the root directory.
const INODE_MIN: u64 = 3;

/// File types in the order of their codes, which begin at 1.
const FILE_TYPES: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::CharacterDevice,
    FileType::BlockDevice,
    FileType::Fifo,
    FileType::Socket,
    FileType::Symlink,
];

/// Returns the type that an entry's code stands for; `None` for 0 and for unknown codes.
pub fn file_type_from_code(code: u8) -> Option<FileType> {
    FILE_TYPES.get(usize::from(code).checked_sub(1)?).copied()
}

/// Returns the code of a type in an entry.
pub fn code_of_file_type(kind: FileType) -> u8 {
    let number = FILE_TYPES.iter().position(|other| *other == kind);
    number.map_or(0, |number| number as u8 + 1)
}

/// Properties of a volume and a directory that entries are checked by.
#[derive(Clone, Copy, Debug)]
pub struct EntryFormat {
    /// The directory.
    pub inode: InodeNumber,
    /// The volume's greatest inode number.
    pub inode_max: InodeNumber,
    /// Whether names are stored encrypted, except "." and "..". Then they can have any bytes.
    pub encrypted: bool,
}

/// One entry, which lies inside its area. Its name and inode number are not checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The entry's first slot.
    pub slot: usize,
    /// The slot after the entry's last one.
    pub end: usize,
    /// The stored hash of the name.
    pub hash: u32,
    /// The inode.
    pub inode: InodeNumber,
    /// The name's bytes, as stored; 1 to 255.
    pub name: &'a [u8],
    /// The type, if the entry has a known one.
    pub kind: Option<FileType>,
    /// Offset of the entry in the area.
    byte: usize,
}

impl Entry<'_> {
    /// Checks the name and the inode number.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the inode number is not one of the volume, or the name has a slash or
    /// a NUL, or the directory itself has a name other than "." and "..", or "." is another inode.
    pub fn check(&self, format: &EntryFormat, location: Location) -> Result<()> {
        let max = format.inode_max.0;
        let problem = if !(INODE_MIN..=max).contains(&self.inode.0) {
            Problem::Range { field: "inode", found: self.inode.0, min: INODE_MIN, max }
        } else if self.name == b"." && self.inode != format.inode {
            let (found, expected) = (self.inode.0, format.inode.0);
            Problem::Mismatch { field: "inode of \".\"", found, expected }
        } else if !matches!(self.name, b"." | b"..") && self.inode == format.inode {
            Problem::Invalid { field: "inode", found: self.inode.0 }
        } else if let Some(&byte) = self.forbidden_byte().filter(|_| !format.encrypted) {
            Problem::Invalid { field: "name byte", found: byte.into() }
        } else {
            return Ok(());
        };
        Err(corrupt(location, self.byte, problem))
    }

    /// Returns the location of the entry in an area at `location`.
    pub(crate) fn location(&self, area: Location) -> Location {
        area.at_byte(area.byte.unwrap_or(0) + self.byte as u64)
    }

    fn forbidden_byte(&self) -> Option<&u8> {
        self.name.iter().find(|&&byte| byte == b'/' || byte == 0)
    }
}

/// Iterates over the entries of a dentry area, which can be a block or part of an inode. Ends after
/// an error.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    bitmap: &'a [u8],
    entries: &'a [RawDentry],
    names: &'a [u8],
    entries_at: usize,
    location: Location,
    /// The next slot to look at.
    slot: usize,
    /// The slot after that of the entry that ended the iteration by an error.
    resume_at: usize,
}

impl<'a> Entries<'a> {
    /// Returns the entries of the area `bytes`, which lies at `location`.
    pub fn new(bytes: &'a [u8], location: Location) -> Self {
        let layout = DentryLayout::of(bytes.len());
        let (head, names) = bytes.split_at_checked(layout.names_at).unwrap_or_default();
        let (bitmap, entries) = head.split_at_checked(layout.entries_at).unwrap_or_default();
        let entries = <[RawDentry]>::ref_from_bytes(entries).unwrap_or_default();
        Self {
            bitmap,
            entries,
            names,
            entries_at: layout.entries_at,
            location,
            slot: 0,
            resume_at: usize::MAX,
        }
    }

    /// Continues after an error, at the slot after the damaged entry's first one.
    pub(crate) fn skip_damaged(&mut self) {
        self.slot = self.slot.min(self.resume_at);
    }

    fn is_used(&self, slot: usize) -> bool {
        self.bitmap.get(slot / 8).is_some_and(|byte| byte >> (slot % 8) & 1 != 0)
    }

    /// Parses the entry of the used slot `slot`.
    fn parse(&self, slot: usize, raw: &RawDentry) -> Result<Entry<'a>> {
        let byte = self.entries_at + slot * size_of::<RawDentry>();
        let length = usize::from(raw.name_len.get());
        if !(1..=NAME_BYTES_MAX).contains(&length) {
            let (found, max) = (length as u64, NAME_BYTES_MAX as u64);
            let problem = Problem::Range { field: "name length", found, min: 1, max };
            return Err(corrupt(self.location, byte, problem));
        }
        let start = slot * SLOT_NAME_BYTES;
        let Some(name) = self.names.get(start..start + length) else {
            let available = self.names.len().saturating_sub(start) as u64;
            let problem = Problem::Truncated { needed: length as u64, available };
            return Err(corrupt(self.location, byte, problem));
        };
        let end = slot + length.div_ceil(SLOT_NAME_BYTES);
        if !(slot..end).all(|slot| self.is_used(slot)) {
            let problem = Problem::Missing("bit of the name's last slots");
            return Err(corrupt(self.location, byte, problem));
        }
        Ok(Entry {
            slot,
            end,
            hash: raw.hash_code.get(),
            inode: InodeNumber(raw.ino.get().into()),
            name,
            kind: file_type_from_code(raw.file_type),
            byte,
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let slot = self.slot;
            let raw = self.entries.get(slot)?;
            if !self.is_used(slot) {
                self.slot += 1;
                continue;
            }
            let entry = self.parse(slot, raw);
            self.resume_at = slot + 1;
            self.slot = entry.as_ref().map_or(self.entries.len(), |entry| entry.end);
            return Some(entry);
        }
    }
}

/// Returns the error for the entry at byte `byte` of the area at `location`.
#[cold]
fn corrupt(location: Location, byte: usize, problem: Problem) -> Error {
    let byte = location.byte.unwrap_or(0) + byte as u64;
    Error::corrupt(STRUCTURE, location.at_byte(byte), problem)
}

#[cfg(test)]
mod tests {
    use base::FileBlock;

    use super::*;

    const FORMAT: EntryFormat =
        EntryFormat { inode: InodeNumber(9), inode_max: InodeNumber(1000), encrypted: false };

    /// Writes an entry into a block.
    fn put(block: &mut [u8], slot: usize, inode: u32, length: u16, name: &[u8]) {
        let layout = DentryLayout::of(block.len());
        for slot in slot..slot + usize::from(length).div_ceil(8).max(1) {
            block[slot / 8] |= 1 << (slot % 8);
        }
        let at = layout.entries_at + slot * 11;
        block[at..at + 4].copy_from_slice(&7_u32.to_le_bytes());
        block[at + 4..at + 8].copy_from_slice(&inode.to_le_bytes());
        block[at + 8..at + 10].copy_from_slice(&length.to_le_bytes());
        block[at + 10] = 2;
        let at = layout.names_at + slot * 8;
        block[at..at + name.len()].copy_from_slice(name);
    }

    fn location() -> Location {
        Location::inode(InodeNumber(9)).at_file_block(FileBlock(3))
    }

    fn one(inode: u32, name: &[u8]) -> Vec<u8> {
        let mut block = vec![0; 4096];
        put(&mut block, 2, inode, name.len() as u16, name);
        block
    }

    #[test]
    fn an_entry_takes_the_slots_of_its_name() {
        let mut block = one(10, b"nine byte");
        put(&mut block, 213, 11, 8, b"the last");
        let found: Vec<_> = Entries::new(&block, location()).map(Result::unwrap).collect();
        let first = Entry {
            slot: 2,
            end: 4,
            hash: 7,
            inode: InodeNumber(10),
            name: b"nine byte",
            kind: Some(FileType::Directory),
            byte: 30 + 2 * 11,
        };
        assert_eq!(found[0], first);
        assert_eq!((found[1].slot, found[1].end, found[1].name), (213, 214, &b"the last"[..]));
        assert_eq!(found.len(), 2);
    }

    #[track_caller]
    fn check_refused(block: &[u8], message: &str) {
        let mut entries = Entries::new(block, location());
        let error = entries.next().unwrap().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert!(entries.next().is_none(), "the start of the next entry is unknown");
    }

    #[test]
    fn names_of_wrong_length_or_across_the_end_are_refused() {
        let mut block = vec![0; 4096];
        put(&mut block, 2, 10, 0, b"");
        let at = "inode 9, file block 3, byte 52: ";
        check_refused(&block, &format!("{at}name length is 0, outside 1 to 255"));
        put(&mut block, 2, 10, 256, b"");
        check_refused(&block, "name length is 256");
        let mut block = vec![0; 4096];
        put(&mut block, 213, 10, 8, b"");
        block[30 + 213 * 11 + 8] = 9;
        check_refused(&block, "needs 9 bytes, but has only 8");
    }

    #[test]
    fn a_name_in_slots_that_are_marked_free_is_refused() {
        let mut block = one(10, b"nine byte");
        block[0] = 1 << 2;
        check_refused(&block, "bit of the name's last slots is missing");
    }

    #[track_caller]
    fn check_entry(inode: u32, name: &[u8], expected: Option<&str>) {
        let block = one(inode, name);
        let entry = Entries::new(&block, location()).next().unwrap().unwrap();
        let problem = entry.check(&FORMAT, location()).err().map(|error| error.to_string());
        let expected = expected.map(|text| {
            format!("corrupt directory entry at inode 9, file block 3, byte 52: {text}")
        });
        assert_eq!(problem, expected);
    }

    #[test]
    fn inode_numbers_and_names_are_checked() {
        check_entry(10, b"name", None);
        check_entry(9, b".", None);
        check_entry(9, b"..", None);
        check_entry(1000, b"...", None);
        check_entry(2, b"name", Some("inode is 2, outside 3 to 1000"));
        check_entry(1001, b"name", Some("inode is 1001, outside 3 to 1000"));
        check_entry(10, b".", Some("inode of \".\" is 10, but must be 9"));
        check_entry(9, b"name", Some("inode is invalid: 0x9"));
        check_entry(10, b"a/b", Some("name byte is invalid: 0x2f"));
        check_entry(10, b"a\0b", Some("name byte is invalid: 0x0"));
        let block = one(10, b"a/\0");
        let entry = Entries::new(&block, location()).next().unwrap().unwrap();
        entry.check(&EntryFormat { encrypted: true, ..FORMAT }, location()).unwrap();
    }

    #[test]
    fn areas_of_any_size_are_parsed() {
        for bytes in 0..4200 {
            let layout = DentryLayout::of(bytes);
            assert!(layout.bitmap_bytes <= layout.entries_at, "{bytes}");
            let area = vec![0; bytes];
            assert_eq!(Entries::new(&area, location()).entries.len(), layout.slots, "{bytes}");
        }
    }

    #[test]
    fn unknown_types_are_none() {
        assert_eq!(file_type_from_code(0), None);
        assert_eq!(file_type_from_code(1), Some(FileType::Regular));
        assert_eq!(file_type_from_code(7), Some(FileType::Symlink));
        assert_eq!(file_type_from_code(8), None);
    }
}
