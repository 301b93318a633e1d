//! The extent tree: verifies nodes and finds what lies at a file block.
//! Not here: indirect blocks, and keeping what was found.

use base::checksum::crc32c;
use base::view::view_at;
use base::{Error, FileBlock, FsBlock, Place, Problem, Result};
use zerocopy::FromBytes;

use crate::geometry::Geometry;
use crate::inode_record::InodeRecord;
use crate::map::{FILE_BLOCKS_MAX, Run, Span};
use crate::ondisk::extent::{
    MAGIC, RawExtent, RawExtentHeader, RawExtentIndex, RawExtentTail, WRITTEN_MAX,
};
use crate::volume::Volume;

const STRUCTURE: &str = "extent node";
const HEADER_BYTES: usize = size_of::<RawExtentHeader>();
const ENTRY_BYTES: usize = size_of::<RawExtent>();
/// With 2^32 blocks in a file, the kernel's trees never grow deeper.
pub const DEPTH_MAX: u16 = 5;

/// What is known of the file around block `at`: the leaf that covers it, or the gap between
/// leaves.
pub(crate) fn load_span(volume: &Volume, record: &InodeRecord, at: FileBlock) -> Result<Span> {
    let geometry = volume.geometry();
    let whole = FileBlock(0)..FileBlock(FILE_BLOCKS_MAX);
    let root = Node::parse(
        &record.block_area,
        geometry,
        Expected { depth: None, range: whole.clone() },
        Place::inode(record.number),
    )?;
    let mut depth = root.depth;
    let mut step = root.find(at);
    // The depth falls by one with each step, and `Node::parse` bounds the first.
    loop {
        let (block, range) = match step {
            Step::Found(span) => return Ok(span),
            Step::Child { block, range } => (block, range),
        };
        depth -= 1;
        let place = Place::inode(record.number).at_file_block(range.start).at_block(block);
        let buffer = volume.read_metadata(block, STRUCTURE, place)?;
        verify_checksum(&buffer, record.checksum_seed, place)?;
        let expected = Expected { depth: Some(depth), range };
        step = Node::parse(&buffer, geometry, expected, place)?.find(at);
    }
}

/// What the parent says of a node.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// Its depth; `None` for the root.
    pub depth: Option<u16>,
    /// The file blocks that it may speak of.
    pub range: std::ops::Range<FileBlock>,
}

/// A verified node.
#[derive(Debug)]
pub(crate) struct Node {
    pub depth: u16,
    range: std::ops::Range<FileBlock>,
    entries: Entries,
}

#[derive(Debug)]
enum Entries {
    Runs(Vec<Run>),
    Children(Vec<(FileBlock, FsBlock)>),
}

/// Where a node leads.
#[derive(Debug)]
pub(crate) enum Step {
    Found(Span),
    Child { block: FsBlock, range: std::ops::Range<FileBlock> },
}

impl Node {
    /// Verifies the header, and that entries ascend, do not overlap, stay within what the parent
    /// promised, and point into the volume.
    pub(crate) fn parse(
        bytes: &[u8],
        geometry: &Geometry,
        expected: Expected,
        place: Place,
    ) -> Result<Self> {
        let header: &RawExtentHeader = view_at(bytes, 0, STRUCTURE, place)?;
        let fault = |problem| Error::corrupt(STRUCTURE, place, problem);
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
        let table = &bytes[HEADER_BYTES..HEADER_BYTES + count * ENTRY_BYTES];
        let entries = if depth == 0 {
            Entries::Runs(parse_leaf(table, geometry, &expected.range, place)?)
        } else {
            Entries::Children(parse_index(table, geometry, &expected.range, place)?)
        };
        Ok(Self { depth, range: expected.range, entries })
    }

    /// Follows the node towards `at`, which lies in its range.
    pub(crate) fn find(self, at: FileBlock) -> Step {
        let children = match self.entries {
            Entries::Runs(runs) => {
                return Step::Found(Span { start: self.range.start, end: self.range.end, runs });
            }
            Entries::Children(children) => children,
        };
        let after = children.partition_point(|&(start, _)| start <= at);
        let end = children.get(after).map_or(self.range.end, |&(start, _)| start);
        match after.checked_sub(1).and_then(|index| children.get(index)) {
            Some(&(start, block)) => Step::Child { block, range: start..end },
            None => Step::Found(Span { start: self.range.start, end, runs: Vec::new() }),
        }
    }
}

fn parse_leaf(
    table: &[u8],
    geometry: &Geometry,
    range: &std::ops::Range<FileBlock>,
    place: Place,
) -> Result<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::with_capacity(table.len() / ENTRY_BYTES);
    let mut next = range.start;
    for (index, entry) in table.chunks_exact(ENTRY_BYTES).enumerate() {
        let entry =
            RawExtent::ref_from_bytes(entry).expect("chunks have exactly the size of an entry");
        let place = place.at_byte((HEADER_BYTES + index * ENTRY_BYTES) as u64);
        let fault = |problem| Error::corrupt("extent", place, problem);
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
        if end > range.end {
            let (found, min, max) = (end.0, start.0, range.end.0);
            return Err(fault(Problem::Range { field: "end of the extent", found, min, max }));
        }
        let block =
            FsBlock(u64::from(entry.start_hi.get()) << 32 | u64::from(entry.start_lo.get()));
        geometry.check_run("extent", place, block, length)?;
        Run { start, length, block, unwritten }.push_onto(&mut runs);
        next = end;
    }
    Ok(runs)
}

fn parse_index(
    table: &[u8],
    geometry: &Geometry,
    range: &std::ops::Range<FileBlock>,
    place: Place,
) -> Result<Vec<(FileBlock, FsBlock)>> {
    let mut children: Vec<(FileBlock, FsBlock)> = Vec::with_capacity(table.len() / ENTRY_BYTES);
    for (index, entry) in table.chunks_exact(ENTRY_BYTES).enumerate() {
        let entry = RawExtentIndex::ref_from_bytes(entry)
            .expect("chunks have exactly the size of an entry");
        let place = place.at_byte((HEADER_BYTES + index * ENTRY_BYTES) as u64);
        let fault = |problem| Error::corrupt("extent index", place, problem);
        let start = FileBlock(entry.block.get().into());
        if let Some(&(previous, _)) = children.last().filter(|(previous, _)| *previous >= start) {
            let (previous, found) = (previous.0, start.0);
            return Err(fault(Problem::Disorder { field: "file block", previous, found }));
        }
        if !range.contains(&start) {
            let (found, min, max) = (start.0, range.start.0, range.end.0.saturating_sub(1));
            return Err(fault(Problem::Range { field: "file block", found, min, max }));
        }
        let block = FsBlock(u64::from(entry.leaf_hi.get()) << 32 | u64::from(entry.leaf_lo.get()));
        geometry.check_run("extent index", place, block, 1)?;
        children.push((start, block));
    }
    Ok(children)
}

/// The checksum lies behind the room for entries that the header claims.
pub(crate) fn verify_checksum(bytes: &[u8], seed: Option<u32>, place: Place) -> Result<()> {
    let Some(seed) = seed else { return Ok(()) };
    let header: &RawExtentHeader = view_at(bytes, 0, STRUCTURE, place)?;
    let tail_at = HEADER_BYTES + usize::from(header.max.get()) * ENTRY_BYTES;
    let tail: &RawExtentTail = view_at(bytes, tail_at, STRUCTURE, place)?;
    let covered = bytes.get(..tail_at).unwrap_or_default();
    let (stored, computed) = (tail.checksum.get(), crc32c(seed, covered));
    if stored != computed {
        return Err(Error::corrupt(STRUCTURE, place, Problem::Checksum { stored, computed }));
    }
    Ok(())
}
