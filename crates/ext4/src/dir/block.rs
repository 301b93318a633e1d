//! Parsing of directory entries in a block, or in the parts of an inline directory: bounds,
//! checksum, names. Not here: which blocks a directory has, and the index.
//!
//! Source: kernel documentation, `filesystems/ext4/directory.rst`, "Linear Directories".

use base::attributes::FileType;
use base::checksum::crc32c;
use base::view::view_at;
use base::{BlockSize, Error, InodeNumber, Location, Problem, Result};

use crate::ondisk::dir::{RawDirEntryHeader, RawDirTail};

const STRUCTURE: &str = "directory entry";
/// Bytes of an entry before its name.
pub(crate) const HEADER_BYTES: usize = size_of::<RawDirEntryHeader>();
/// The shortest entry: a header and one byte of name, padded to a multiple of 4.
pub(crate) const ENTRY_BYTES_MIN: usize = entry_bytes(1);
/// The file type code that marks the checksum tail.
pub(crate) const TAIL_FILE_TYPE: u8 = 0xDE;

/// Returns the bytes that an entry with a name of this length needs.
pub(crate) const fn entry_bytes(name_length: usize) -> usize {
    (HEADER_BYTES + name_length).next_multiple_of(4)
}

/// Properties of a volume and a directory that the entries are parsed and verified by.
#[derive(Clone, Copy, Debug)]
pub struct DirFormat {
    /// The directory.
    pub inode: InodeNumber,
    /// The volume's block size.
    pub block_size: BlockSize,
    /// Whether entries hold a file type.
    pub has_file_types: bool,
    /// The volume's greatest inode number.
    pub inode_max: InodeNumber,
    /// The inode's checksum seed, if the volume has checksums.
    pub checksum_seed: Option<u32>,
    /// Whether names are encrypted, so that they can contain any bytes.
    pub is_encrypted: bool,
}

/// One entry, used or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot<'a> {
    /// Offset of the entry in the block.
    pub start: usize,
    /// Offset of the next entry.
    pub end: usize,
    /// The inode; `None` if the entry is unused.
    pub inode: Option<InodeNumber>,
    /// The name's bytes. They are not checked.
    pub name: &'a [u8],
    /// The raw file type code.
    pub file_type: u8,
}

impl Slot<'_> {
    /// Returns the name. Errors: `Corrupt` if it is empty, or contains a slash or a NUL.
    pub fn checked_name(&self, location: Location) -> Result<&[u8]> {
        let problem = if self.name.is_empty() {
            Problem::Missing("name")
        } else if let Some(&byte) = self.name.iter().find(|&&byte| byte == b'/' || byte == 0) {
            Problem::Invalid { field: "name byte", found: byte.into() }
        } else {
            return Ok(self.name);
        };
        Err(Error::corrupt(STRUCTURE, at_byte(location, self.start), problem))
    }
}

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

/// Returns the type that a directory entry's code stands for; `None` for 0 and for unknown codes.
pub fn file_type_from_code(code: u8) -> Option<FileType> {
    FILE_TYPES.get(usize::from(code).checked_sub(1)?).copied()
}

/// Returns the code of a type in a directory entry.
pub fn code_from_file_type(kind: FileType) -> u8 {
    FILE_TYPES.iter().zip(1..).find(|(known, _)| **known == kind).map_or(0, |(_, code)| code)
}

impl DirFormat {
    /// Iterates over the entries of a block (or of a part of an inline directory). Ends after an
    /// error, since the start of the next entry is unknown.
    pub fn slots<'a>(&self, bytes: &'a [u8], location: Location) -> Slots<'a> {
        Slots { format: *self, bytes, location, at: 0 }
    }

    /// Returns the name in an entry, as it is stored. Errors: `Corrupt` as [`Slot::checked_name`],
    /// but only if it is empty for encrypted names.
    pub(super) fn stored_name<'a>(
        &self,
        slot: &'a Slot<'_>,
        location: Location,
    ) -> Result<&'a [u8]> {
        if self.is_encrypted && !slot.name.is_empty() {
            return Ok(slot.name);
        }
        slot.checked_name(location)
    }

    /// Returns the type in an entry; `None` if the volume's entries have no types.
    #[inline]
    pub fn file_type(&self, slot: &Slot<'_>) -> Option<FileType> {
        self.file_type_of(slot.file_type)
    }

    /// Returns the type that a code stands for; `None` if the volume's entries have no types.
    #[inline]
    pub(super) fn file_type_of(&self, code: u8) -> Option<FileType> {
        file_type_from_code(code).filter(|_| self.has_file_types)
    }

    /// Verifies a leaf's checksum, if the volume has checksums.
    pub fn verify_leaf(&self, block: &[u8], location: Location) -> Result<()> {
        const STRUCTURE: &str = "directory block tail";
        let Some(seed) = self.checksum_seed else { return Ok(()) };
        let start = block.len().saturating_sub(size_of::<RawDirTail>());
        let tail: &RawDirTail = view_at(block, start, STRUCTURE, location)?;
        let found = (tail.inode.get(), tail.record_length.get(), tail.name_length, tail.file_type);
        if found != (0, size_of::<RawDirTail>() as u16, 0, TAIL_FILE_TYPE) {
            let problem = Problem::Missing("checksum");
            return Err(Error::corrupt(STRUCTURE, location.at_byte(start as u64), problem));
        }
        let computed = crc32c(seed, block.get(..start).unwrap_or_default());
        match tail.checksum.get() {
            stored if stored == computed => Ok(()),
            stored => {
                Err(Error::corrupt(STRUCTURE, location, Problem::Checksum { stored, computed }))
            }
        }
    }

    /// Returns the length in bytes that an entry's `record_length` stands for. 65536 does not fit
    /// in 16 bits. In blocks of that size, 65535 and 0 stand for it, and bits 16 and 17 of a length
    /// are stored in the two low bits, which are otherwise clear.
    #[inline]
    fn record_length(&self, raw: u16) -> usize {
        let raw = usize::from(raw);
        match (self.block_size.bytes(), raw) {
            (65536, 0 | 65535) => 65536,
            (65536, raw) => (raw & 0xFFFC) | (raw & 3) << 16,
            (_, raw) => raw,
        }
    }

    /// Returns whether the block looks like an index node: a single unused entry that fills the
    /// block. With checksums, no leaf looks like this, because its tail is an entry, too.
    pub(crate) fn is_index_node(&self, block: &[u8]) -> bool {
        RawDirEntryHeader::ref_from(block).is_some_and(|entry| {
            entry.inode.get() == 0 && self.record_length(entry.record_length.get()) == block.len()
        })
    }
}

/// Returns `location`, moved by `byte` bytes.
fn at_byte(location: Location, byte: usize) -> Location {
    location.at_byte(location.byte.unwrap_or(0) + byte as u64)
}

impl RawDirEntryHeader {
    fn ref_from(bytes: &[u8]) -> Option<&Self> {
        zerocopy::FromBytes::ref_from_prefix(bytes).ok().map(|(header, _)| header)
    }
}

/// Iterates over the entries of a block; see [`DirFormat::slots`].
#[derive(Clone, Debug)]
pub struct Slots<'a> {
    format: DirFormat,
    bytes: &'a [u8],
    location: Location,
    at: usize,
}

impl<'a> Slots<'a> {
    /// Parses the entry at `self.at`, with the same checks as the kernel.
    #[inline]
    fn parse(&self) -> Result<Slot<'a>> {
        let start = self.at;
        let rest = self.bytes.get(start..).unwrap_or_default();
        let Some(header) = RawDirEntryHeader::ref_from(rest) else {
            let needed = HEADER_BYTES as u64;
            return Err(self.fault(Problem::Truncated { needed, available: rest.len() as u64 }));
        };
        let length = self.format.record_length(header.record_length.get());
        let name_length = usize::from(header.name_length);
        let remains = rest.len().checked_sub(length);
        // The tail and unused entries may have no name, but are at least as long as an entry with
        // one byte of name.
        if length < entry_bytes(name_length.max(1))
            || length % 4 != 0
            || !remains.is_some_and(|after| after == 0 || after >= ENTRY_BYTES_MIN)
        {
            return Err(self.bad_length(length, name_length, rest.len()));
        }
        let number = InodeNumber(header.inode.get().into());
        if number > self.format.inode_max {
            let (found, max) = (number.0, self.format.inode_max.0);
            return Err(self.fault(Problem::Range { field: "inode", found, min: 1, max }));
        }
        Ok(Slot {
            start,
            end: start + length,
            inode: (number.0 != 0).then_some(number),
            name: rest.get(HEADER_BYTES..HEADER_BYTES + name_length).unwrap_or_default(),
            file_type: header.file_type,
        })
    }

    #[cold]
    fn bad_length(&self, length: usize, name_length: usize, available: usize) -> Error {
        let problem = if length > available {
            Problem::Truncated { needed: length as u64, available: available as u64 }
        } else {
            let min = entry_bytes(name_length.max(1)) as u64;
            let (found, max) = (length as u64, available as u64);
            Problem::Range { field: "record length", found, min, max }
        };
        self.fault(problem)
    }

    #[cold]
    fn fault(&self, problem: Problem) -> Error {
        Error::corrupt(STRUCTURE, at_byte(self.location, self.at), problem)
    }
}

impl<'a> Iterator for Slots<'a> {
    type Item = Result<Slot<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let slot = self.parse();
        self.at = slot.as_ref().map_or(self.bytes.len(), |slot| slot.end);
        Some(slot)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn format(block_bytes: u64) -> DirFormat {
        DirFormat {
            inode: InodeNumber(12),
            block_size: BlockSize::from_bytes(block_bytes).unwrap(),
            has_file_types: true,
            inode_max: InodeNumber(1000),
            checksum_seed: None,
            is_encrypted: false,
        }
    }

    /// Returns a block with these entries: inode, raw record length, name.
    pub(crate) fn block(bytes: usize, entries: &[(u32, u16, &[u8])]) -> Vec<u8> {
        let mut block = Vec::new();
        for &(inode, length, name) in entries {
            let start = block.len();
            block.extend(inode.to_le_bytes());
            block.extend(length.to_le_bytes());
            block.extend([name.len() as u8, 1]);
            block.extend(name);
            block.resize((start + usize::from(length)).max(block.len()), 0);
        }
        block.resize(bytes, 0);
        block
    }

    fn names(format: DirFormat, block: &[u8]) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut names = Vec::new();
        for slot in format.slots(block, Location::default()) {
            let slot = slot?;
            if let Some(inode) = slot.inode {
                names.push((inode.0, slot.checked_name(Location::default())?.to_vec()));
            }
        }
        Ok(names)
    }

    #[track_caller]
    fn check_refused(entries: &[(u32, u16, &[u8])], problem: &Problem) {
        match names(format(1024), &block(1024, entries)) {
            Err(Error::Corrupt(corrupt)) => assert_eq!(corrupt.problem, *problem),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unused_entries_are_skipped() {
        let block =
            block(1024, &[(12, 12, b"."), (2, 12, b".."), (0, 16, b"gone"), (15, 984, b"file")]);
        let expected = [(12, b".".to_vec()), (2, b"..".to_vec()), (15, b"file".to_vec())];
        assert_eq!(names(format(1024), &block).unwrap(), expected);
    }

    #[test]
    fn an_entry_that_exceeds_the_block_or_is_too_short_is_refused() {
        check_refused(&[(5, 1028, b"a")], &Problem::Truncated { needed: 1028, available: 1024 });
        let range = |found, min, max| Problem::Range { field: "record length", found, min, max };
        check_refused(&[(5, 8, b"a")], &range(8, 12, 1024));
        check_refused(&[(5, 0, b"")], &range(0, 12, 1024));
        check_refused(&[(5, 12, b"five5")], &range(12, 16, 1024));
        check_refused(&[(5, 14, b"a")], &range(14, 12, 1024));
        // The rest must be long enough for another entry.
        check_refused(&[(5, 1016, b"a")], &range(1016, 12, 1024));
        let range = Problem::Range { field: "inode", found: 1001, min: 1, max: 1000 };
        check_refused(&[(1001, 1024, b"a")], &range);
    }

    #[test]
    fn names_that_are_invalid_in_paths_are_refused() {
        check_refused(&[(5, 1024, b"")], &Problem::Missing("name"));
        let bad = |found| Problem::Invalid { field: "name byte", found };
        check_refused(&[(5, 1024, b"a/b")], &bad(0x2F));
        check_refused(&[(5, 1024, b"a\0")], &bad(0));
    }

    #[test]
    fn blocks_of_64_kib_encode_lengths_of_more_than_16_bits() {
        let format = format(65536);
        for raw in [0, 65535] {
            assert_eq!(format.record_length(raw), 65536);
        }
        assert_eq!(format.record_length(65532), 65532);
        assert_eq!(format.record_length(1), 65536);
        let whole = block(65536, &[(7, 65535, b"only")]);
        assert_eq!(names(format, &whole).unwrap(), [(7, b"only".to_vec())]);
    }

    #[test]
    fn a_leaf_checksum_is_required_and_verified() {
        let format = DirFormat { checksum_seed: Some(77), ..format(1024) };
        let mut leaf = block(1024, &[(5, 1012, b"a"), (0, 12, b"")]);
        assert!(format.verify_leaf(&leaf, Location::default()).is_err());
        leaf[1019] = TAIL_FILE_TYPE;
        let sum = crc32c(77, &leaf[..1012]);
        leaf[1020..].copy_from_slice(&sum.to_le_bytes());
        format.verify_leaf(&leaf, Location::default()).unwrap();
        let tail = format.slots(&leaf, Location::default()).last().unwrap().unwrap();
        assert_eq!((tail.start, tail.inode, tail.name), (1012, None, &b""[..]));
        leaf[8] = b'b';
        assert!(format.verify_leaf(&leaf, Location::default()).is_err());
    }

    proptest! {
        #[test]
        fn random_bytes_end_within_the_block(
            bytes in proptest::collection::vec(any::<u8>(), 0..4096),
            shift in 10_u32..=16,
        ) {
            let format = format(1 << shift);
            let mut end = 0;
            for slot in format.slots(&bytes, Location::default()) {
                let Ok(slot) = slot else { break };
                prop_assert!(slot.start == end && slot.end > slot.start && slot.end <= bytes.len());
                let _ = slot.checked_name(Location::default());
                end = slot.end;
            }
            let format = DirFormat { checksum_seed: Some(1), ..format };
            let _ = format.verify_leaf(&bytes, Location::default());
            let _ = format.is_index_node(&bytes);
        }
    }
}
