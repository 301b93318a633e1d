//! Verified nodes of extent trees, and their checksums.
//! Not here: the search in a tree.

use std::ops::Range;

use base::checksum::crc32c;
use base::view::view_at;
use base::{Error, FileBlock, FsBlock, Location, Problem, Result};
use fs::Run;
use zerocopy::{FromBytes, IntoBytes};

use crate::block_validity::BlockValidity;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::ondisk::extent::{
    MAGIC, RawExtent, RawExtentHeader, RawExtentIndex, RawExtentTail, WRITTEN_MAX,
};

pub(crate) const STRUCTURE: &str = "extent node";
pub(crate) const HEADER_BYTES: usize = size_of::<RawExtentHeader>();
pub(crate) const ENTRY_BYTES: usize = size_of::<RawExtent>();
/// Depth limit. With 2^32 blocks in a file, the kernel's trees never grow deeper.
pub const DEPTH_MAX: u16 = 5;

/// Values that a parent requires of a node.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// The node's depth; `None` for the root.
    pub depth: Option<u16>,
    /// The file blocks that the node may map.
    pub range: Range<FileBlock>,
}

impl Expected {
    /// Returns the requirements for a root.
    pub(crate) fn of_root() -> Self {
        Self { depth: None, range: FileBlock(0)..FileBlock(FILE_BLOCKS_MAX) }
    }
}

/// A verified node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub depth: u16,
    entries: Entries,
}

#[derive(Clone, Debug)]
enum Entries {
    Runs(Vec<Run>),
    Children(Vec<(FileBlock, FsBlock)>),
}

/// Returns the entries of a table. Entries of leaves are viewed as index entries: both begin with
/// the file block.
pub(super) fn starts(table: &[u8]) -> &[RawExtentIndex] {
    <[RawExtentIndex]>::ref_from_bytes(table).unwrap_or_default()
}

pub(super) fn start_of(entry: &RawExtentIndex) -> FileBlock {
    FileBlock(entry.block.get().into())
}

/// Returns the number of a table's entries that begin at or before `at`.
pub(crate) fn entries_until(table: &[u8], at: FileBlock) -> usize {
    starts(table).partition_point(|entry| start_of(entry) <= at)
}

/// Returns the number of a table's entries that begin before `at`.
pub(crate) fn entries_before(table: &[u8], at: FileBlock) -> usize {
    starts(table).partition_point(|entry| start_of(entry) < at)
}

/// A few neighbouring entries of a node.
pub(crate) struct Part<'t> {
    /// The entries' positions in the node.
    pub entries: Range<usize>,
    /// The file blocks that the entries cover: from the start of the first entry to the start of
    /// the entry after them. At the node's ends, the node's own limits.
    pub range: Range<FileBlock>,
    pub(super) table: &'t [u8],
    location: Location,
}

impl<'t> Part<'t> {
    /// Returns the part with those of `entries` that the table has. Errors: `Corrupt` if the part's
    /// range is not in order or exceeds the node's range.
    pub(crate) fn new(
        table: &'t [u8],
        entries: Range<usize>,
        expected: &Expected,
        location: Location,
    ) -> Result<Self> {
        let (all, whole) = (starts(table), &expected.range);
        let entries = entries.start.min(all.len())..entries.end.min(all.len());
        let start = match entries.start {
            0 => whole.start,
            index => all.get(index).map_or(whole.end, start_of),
        };
        let end = all.get(entries.end).map_or(whole.end, start_of);
        let bytes = entries.start * ENTRY_BYTES..entries.end * ENTRY_BYTES;
        let table = table.get(bytes).unwrap_or_default();
        let part = Self { entries, range: start..end, table, location };
        if whole.start <= start && start <= end && end <= whole.end {
            Ok(part)
        } else {
            Err(part.disorder(whole.start, end))
        }
    }

    /// Returns an error if the part does not cover `at`.
    pub(crate) fn check_contains(&self, at: FileBlock) -> Result<()> {
        if self.range.contains(&at) { Ok(()) } else { Err(self.disorder(at, self.range.end)) }
    }

    fn disorder(&self, previous: FileBlock, found: FileBlock) -> Error {
        let (previous, found) = (previous.0, found.0);
        let problem = Problem::Disorder { field: "file block", previous, found };
        Error::corrupt(STRUCTURE, self.location_of(0), problem)
    }

    /// Returns the location of entry `index` of the part.
    fn location_of(&self, index: usize) -> Location {
        self.location.at_byte((HEADER_BYTES + (self.entries.start + index) * ENTRY_BYTES) as u64)
    }

    /// Verifies the entries of a leaf, and emits them.
    pub(crate) fn verify_leaf(
        &self,
        validity: BlockValidity<'_>,
        mut emit: impl FnMut(Run),
    ) -> Result<()> {
        let (mut next, mut blocks) = (self.range.start, validity.checker());
        for (index, entry) in self.table.chunks_exact(ENTRY_BYTES).enumerate() {
            let entry =
                RawExtent::ref_from_bytes(entry).expect("chunks have exactly the size of an entry");
            let location = self.location_of(index);
            let fault = |problem| Error::corrupt("extent", location, problem);
            let start = FileBlock(entry.block.get().into());
            if start < next {
                let (previous, found) = (next.0, start.0);
                return Err(fault(Problem::Disorder { field: "file block", previous, found }));
            }
            let (length, unwritten) = match entry.len.get() {
                0 => return Err(fault(Problem::Invalid { field: "length", found: 0 })),
                length @ 1..=WRITTEN_MAX => (u64::from(length), false),
                length => (u64::from(length - WRITTEN_MAX), true),
            };
            let end = FileBlock(start.0 + length);
            if end > self.range.end {
                let (found, min, max) = (end.0, start.0, self.range.end.0);
                return Err(fault(Problem::Range { field: "end of the extent", found, min, max }));
            }
            let block =
                FsBlock(u64::from(entry.start_hi.get()) << 32 | u64::from(entry.start_lo.get()));
            blocks.check("extent", location, block, length)?;
            emit(Run { start, length, block, unwritten });
            next = end;
        }
        Ok(())
    }

    /// Verifies the entries of an inner node, and emits them.
    pub(crate) fn verify_index(
        &self,
        validity: BlockValidity<'_>,
        mut emit: impl FnMut((FileBlock, FsBlock)),
    ) -> Result<()> {
        let (mut last, mut blocks) = (None::<FileBlock>, validity.checker());
        for (index, entry) in self.table.chunks_exact(ENTRY_BYTES).enumerate() {
            let entry = RawExtentIndex::ref_from_bytes(entry)
                .expect("chunks have exactly the size of an entry");
            let location = self.location_of(index);
            let fault = |problem| Error::corrupt("extent index", location, problem);
            let start = FileBlock(entry.block.get().into());
            if let Some(previous) = last.replace(start).filter(|previous| *previous >= start) {
                let (previous, found) = (previous.0, start.0);
                return Err(fault(Problem::Disorder { field: "file block", previous, found }));
            }
            if !self.range.contains(&start) {
                let (found, min, max) =
                    (start.0, self.range.start.0, self.range.end.0.saturating_sub(1));
                return Err(fault(Problem::Range { field: "file block", found, min, max }));
            }
            let block =
                FsBlock(u64::from(entry.leaf_hi.get()) << 32 | u64::from(entry.leaf_lo.get()));
            blocks.check("extent index", location, block, 1)?;
            emit((start, block));
        }
        Ok(())
    }
}

impl Node {
    /// Parses a node. Verifies the header, and that entries ascend, do not overlap, are within the
    /// limits that the parent gives, and refer to blocks of the volume.
    pub(crate) fn parse(
        bytes: &[u8],
        validity: BlockValidity<'_>,
        expected: Expected,
        location: Location,
    ) -> Result<Self> {
        let (depth, table) = verify_header(bytes, &expected, location)?;
        let all = Part::new(table, 0..usize::MAX, &expected, location)?;
        let entries = if depth == 0 {
            let mut runs = Vec::with_capacity(all.entries.len());
            all.verify_leaf(validity, |run| run.push_onto(&mut runs))?;
            Entries::Runs(runs)
        } else {
            let mut children = Vec::with_capacity(all.entries.len());
            all.verify_index(validity, |child| children.push(child))?;
            Entries::Children(children)
        };
        Ok(Self { depth, entries })
    }

    /// Verifies a node as `parse` does. Returns the depth, and the entries in their raw form.
    pub(crate) fn verify<'b>(
        bytes: &'b [u8],
        validity: BlockValidity<'_>,
        expected: &Expected,
        location: Location,
    ) -> Result<(u16, &'b [u8])> {
        let (depth, table) = verify_header(bytes, expected, location)?;
        let all = Part::new(table, 0..usize::MAX, expected, location)?;
        match depth {
            0 => all.verify_leaf(validity, |_| ())?,
            _ => all.verify_index(validity, |_| ())?,
        }
        Ok((depth, table))
    }

    /// Returns the children of an inner node: the first file block and the block of each.
    pub(crate) fn children(&self) -> &[(FileBlock, FsBlock)] {
        match &self.entries {
            Entries::Runs(_) => &[],
            Entries::Children(children) => children,
        }
    }

    /// Returns the runs of a leaf.
    pub(crate) fn runs(&self) -> &[Run] {
        match &self.entries {
            Entries::Runs(runs) => runs,
            Entries::Children(_) => &[],
        }
    }
}

/// Verifies a node's header. Returns the depth, and the bytes of the entries.
pub(crate) fn verify_header<'b>(
    bytes: &'b [u8],
    expected: &Expected,
    location: Location,
) -> Result<(u16, &'b [u8])> {
    let header: &RawExtentHeader = view_at(bytes, 0, STRUCTURE, location)?;
    let fault = |problem| Error::corrupt(STRUCTURE, location, problem);
    if header.magic.get() != MAGIC {
        let found = header.magic.get().into();
        return Err(fault(Problem::Magic { found, expected: MAGIC.into() }));
    }
    let depth = header.depth.get();
    match expected.depth {
        Some(expected) if depth != expected => {
            let (found, expected) = (depth.into(), expected.into());
            return Err(fault(Problem::Mismatch { field: "depth", found, expected }));
        }
        None if depth > DEPTH_MAX => {
            let (found, max) = (depth.into(), DEPTH_MAX.into());
            return Err(fault(Problem::Range { field: "depth", found, min: 0, max }));
        }
        _ => {}
    }
    let room = (bytes.len() - HEADER_BYTES) / ENTRY_BYTES;
    let max = usize::from(header.max.get());
    if max == 0 || max > room {
        let (found, max) = (max as u64, room as u64);
        return Err(fault(Problem::Range { field: "room for entries", found, min: 1, max }));
    }
    let count = usize::from(header.entries.get());
    let min = usize::from(depth > 0);
    if count < min || count > max {
        let (found, min, max) = (count as u64, min as u64, max as u64);
        return Err(fault(Problem::Range { field: "entries", found, min, max }));
    }
    Ok((depth, &bytes[HEADER_BYTES..HEADER_BYTES + count * ENTRY_BYTES]))
}

/// Verifies the checksum and the entries of a node that is a block.
pub(crate) fn verify_block(
    bytes: &[u8],
    validity: BlockValidity<'_>,
    expected: &Expected,
    seed: Option<u32>,
    location: Location,
) -> Result<()> {
    verify_checksum(bytes, seed, location)?;
    Node::verify(bytes, validity, expected, location).map(drop)
}

/// Verifies the checksum. It lies behind the room for entries that the header claims.
pub(crate) fn verify_checksum(bytes: &[u8], seed: Option<u32>, location: Location) -> Result<()> {
    let Some(seed) = seed else { return Ok(()) };
    let header: &RawExtentHeader = view_at(bytes, 0, STRUCTURE, location)?;
    let tail_at = HEADER_BYTES + usize::from(header.max.get()) * ENTRY_BYTES;
    let tail: &RawExtentTail = view_at(bytes, tail_at, STRUCTURE, location)?;
    let covered = bytes.get(..tail_at).unwrap_or_default();
    let (stored, computed) = (tail.checksum.get(), crc32c(seed, covered));
    if stored != computed {
        return Err(Error::corrupt(STRUCTURE, location, Problem::Checksum { stored, computed }));
    }
    Ok(())
}

/// Writes the checksum of a node that is a block.
pub(crate) fn seal(bytes: &mut [u8], seed: Option<u32>) {
    let Some(seed) = seed else { return };
    let room = match RawExtentHeader::ref_from_prefix(bytes) {
        Ok((header, _)) => usize::from(header.max.get()),
        Err(_) => return,
    };
    let tail_at = HEADER_BYTES + room * ENTRY_BYTES;
    let checksum = crc32c(seed, bytes.get(..tail_at).unwrap_or_default());
    let tail = RawExtentTail { checksum: checksum.into() };
    if let Some(field) = bytes.get_mut(tail_at..tail_at + size_of_val(&tail)) {
        field.copy_from_slice(tail.as_bytes());
    }
}
