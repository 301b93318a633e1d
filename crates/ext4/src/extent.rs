//! The extent tree: verifies nodes and finds what lies at a file block.
//! Not here: indirect blocks, and keeping what was found.

use base::checksum::crc32c;
use base::view::view_at;
use base::{Error, FileBlock, FsBlock, Place, Problem, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::geometry::Geometry;
use crate::inode_record::InodeRecord;
use crate::map::{FILE_BLOCKS_MAX, Run, Span};
use crate::ondisk::extent::{
    MAGIC, RawExtent, RawExtentHeader, RawExtentIndex, RawExtentTail, WRITTEN_MAX,
};
use crate::volume::Volume;

pub(crate) const STRUCTURE: &str = "extent node";
pub(crate) const HEADER_BYTES: usize = size_of::<RawExtentHeader>();
pub(crate) const ENTRY_BYTES: usize = size_of::<RawExtent>();
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
        buffer.verify_once(|bytes| verify_checksum(bytes, record.checksum_seed, place))?;
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
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub depth: u16,
    range: std::ops::Range<FileBlock>,
    entries: Entries,
}

#[derive(Clone, Debug)]
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
        let (depth, table) = verify_header(bytes, &expected, place)?;
        let count = table.len() / ENTRY_BYTES;
        let entries = if depth == 0 {
            let mut runs = Vec::with_capacity(count);
            verify_leaf(table, geometry, &expected.range, place, |run| run.push_onto(&mut runs))?;
            Entries::Runs(runs)
        } else {
            let mut children = Vec::with_capacity(count);
            let add = |child| children.push(child);
            verify_index(table, geometry, &expected.range, place, add)?;
            Entries::Children(children)
        };
        Ok(Self { depth, range: expected.range, entries })
    }

    /// Verifies the same; gives the depth, and the entries as they are.
    pub(crate) fn verify<'b>(
        bytes: &'b [u8],
        geometry: &Geometry,
        expected: &Expected,
        place: Place,
    ) -> Result<(u16, &'b [u8])> {
        let (depth, table) = verify_header(bytes, expected, place)?;
        match depth {
            0 => verify_leaf(table, geometry, &expected.range, place, |_| ())?,
            _ => verify_index(table, geometry, &expected.range, place, |_| ())?,
        }
        Ok((depth, table))
    }

    /// The children of an inner node: the first file block and the block of each.
    pub(crate) fn children(&self) -> &[(FileBlock, FsBlock)] {
        match &self.entries {
            Entries::Runs(_) => &[],
            Entries::Children(children) => children,
        }
    }

    /// The runs of a leaf.
    pub(crate) fn runs(&self) -> &[Run] {
        match &self.entries {
            Entries::Runs(runs) => runs,
            Entries::Children(_) => &[],
        }
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

/// Verifies the header of a node: its depth, and its entries.
fn verify_header<'b>(
    bytes: &'b [u8],
    expected: &Expected,
    place: Place,
) -> Result<(u16, &'b [u8])> {
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
    Ok((depth, &bytes[HEADER_BYTES..HEADER_BYTES + count * ENTRY_BYTES]))
}

/// Verifies the entries of a leaf, and emits them.
fn verify_leaf(
    table: &[u8],
    geometry: &Geometry,
    range: &std::ops::Range<FileBlock>,
    place: Place,
    mut emit: impl FnMut(Run),
) -> Result<()> {
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
        emit(Run { start, length, block, unwritten });
        next = end;
    }
    Ok(())
}

/// Verifies the entries of an inner node, and emits them.
fn verify_index(
    table: &[u8],
    geometry: &Geometry,
    range: &std::ops::Range<FileBlock>,
    place: Place,
    mut emit: impl FnMut((FileBlock, FsBlock)),
) -> Result<()> {
    let mut last: Option<FileBlock> = None;
    for (index, entry) in table.chunks_exact(ENTRY_BYTES).enumerate() {
        let entry = RawExtentIndex::ref_from_bytes(entry)
            .expect("chunks have exactly the size of an entry");
        let place = place.at_byte((HEADER_BYTES + index * ENTRY_BYTES) as u64);
        let fault = |problem| Error::corrupt("extent index", place, problem);
        let start = FileBlock(entry.block.get().into());
        if let Some(previous) = last.replace(start).filter(|previous| *previous >= start) {
            let (previous, found) = (previous.0, start.0);
            return Err(fault(Problem::Disorder { field: "file block", previous, found }));
        }
        if !range.contains(&start) {
            let (found, min, max) = (start.0, range.start.0, range.end.0.saturating_sub(1));
            return Err(fault(Problem::Range { field: "file block", found, min, max }));
        }
        let block = FsBlock(u64::from(entry.leaf_hi.get()) << 32 | u64::from(entry.leaf_lo.get()));
        geometry.check_run("extent index", place, block, 1)?;
        emit((start, block));
    }
    Ok(())
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

/// Makes the checksum of a node that is a block.
pub(crate) fn seal(bytes: &mut [u8], seed: Option<u32>) {
    let Some(seed) = seed else { return };
    let room = match RawExtentHeader::ref_from_prefix(bytes) {
        Ok((header, _)) => usize::from(header.max.get()),
        Err(_) => return,
    };
    let tail_at = HEADER_BYTES + room * ENTRY_BYTES;
    let checksum = crc32c(seed, bytes.get(..tail_at).unwrap_or_default());
    let tail = RawExtentTail { checksum: checksum.into() };
    if let Some(place) = bytes.get_mut(tail_at..tail_at + size_of_val(&tail)) {
        place.copy_from_slice(tail.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::tests::plain;
    use proptest::prelude::*;

    fn header(entries: u16, max: u16, depth: u16) -> Vec<u8> {
        let words = [MAGIC, entries, max, depth, 0, 0];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn entry(block: u32, length: u16, start: u64) -> Vec<u8> {
        let mut bytes = block.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(((start >> 32) as u16).to_le_bytes());
        bytes.extend((start as u32).to_le_bytes());
        bytes
    }

    fn index(block: u32, leaf: u64) -> Vec<u8> {
        let mut bytes = block.to_le_bytes().to_vec();
        bytes.extend((leaf as u32).to_le_bytes());
        bytes.extend(((leaf >> 32) as u16).to_le_bytes());
        bytes.extend([0; 2]);
        bytes
    }

    fn node(header: Vec<u8>, entries: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = [header, entries.concat()].concat();
        bytes.resize(60, 0);
        bytes
    }

    fn parse(bytes: &[u8], depth: Option<u16>, range: std::ops::Range<u64>) -> Result<Node> {
        let range = FileBlock(range.start)..FileBlock(range.end);
        Node::parse(bytes, &plain(), Expected { depth, range }, Place::default())
    }

    fn root(bytes: &[u8]) -> Result<Node> {
        parse(bytes, None, 0..FILE_BLOCKS_MAX)
    }

    /// The text of the error says what is wrong.
    fn refuses(result: Result<Node>, text: &str) {
        let error = result.expect_err(text).to_string();
        assert!(error.contains(text), "{error} should say {text}");
    }

    #[test]
    fn extents_that_continue_each_other_are_one_run() {
        let bytes = node(
            header(3, 4, 0),
            &[entry(0, 32768, 1), entry(32768, 100, 32769), entry(32868, 32768 + 5, 32869)],
        );
        let Step::Found(span) = root(&bytes).unwrap().find(FileBlock(0)) else { panic!() };
        let lengths: Vec<_> = span.runs.iter().map(|run| (run.length, run.unwritten)).collect();
        assert_eq!(lengths, [(32868, false), (5, true)]);
    }

    #[test]
    fn lies_in_leaves_are_refused() {
        let leaf = |entries: &[Vec<u8>]| root(&node(header(entries.len() as u16, 4, 0), entries));
        refuses(leaf(&[entry(5, 0, 100)]), "length");
        refuses(leaf(&[entry(5, 2, 100), entry(6, 1, 200)]), "does not follow");
        refuses(leaf(&[entry(5, 2, 100), entry(1, 1, 200)]), "does not follow");
        refuses(leaf(&[entry(u32::MAX - 1, 2, 100)]), "end of the extent");
        refuses(leaf(&[entry(5, 2, 0)]), "block is 0");
        refuses(leaf(&[entry(5, 2, 39_999)]), "block is 39999");
        refuses(leaf(&[entry(5, 2, 1 << 40)]), "block is");
        let bytes = node(header(1, 4, 0), &[entry(7, 1, 100)]);
        refuses(parse(&bytes, Some(0), 8..100), "does not follow");
        refuses(parse(&bytes, Some(0), 0..7), "end of the extent");
    }

    #[test]
    fn lies_in_inner_nodes_are_refused() {
        let inner = |entries: &[Vec<u8>]| root(&node(header(entries.len() as u16, 4, 1), entries));
        refuses(inner(&[]), "entries is 0");
        refuses(inner(&[index(5, 100), index(5, 101)]), "does not follow");
        refuses(inner(&[index(0, 40_000)]), "block is 40000");
        refuses(inner(&[index(u32::MAX, 100)]), "file block is");
        let bytes = node(header(1, 4, 1), &[index(50, 100)]);
        refuses(parse(&bytes, Some(1), 0..50), "file block is 50");
        // A block that leads to itself has the wrong depth the second time.
        refuses(parse(&bytes, Some(0), 0..100), "depth is 1");
    }

    #[test]
    fn lies_in_headers_are_refused() {
        let bytes = |header| root(&node(header, &[]));
        refuses(bytes(vec![0; 12]), "magic");
        refuses(bytes(header(0, 5, 0)), "room for entries");
        refuses(bytes(header(0, 0, 0)), "room for entries");
        refuses(bytes(header(5, 4, 0)), "entries is 5");
        refuses(bytes(header(1, 4, 6)), "depth is 6");
        refuses(root(&[]), "needs 12 bytes");
    }

    #[test]
    fn gaps_reach_to_the_next_child() {
        let bytes = node(header(2, 4, 1), &[index(10, 100), index(50, 200)]);
        let step = |at| root(&bytes).unwrap().find(FileBlock(at));
        let Step::Found(gap) = step(9) else { panic!() };
        assert_eq!(gap, Span::hole(FileBlock(0), FileBlock(10)));
        let Step::Child { block, range } = step(49) else { panic!() };
        assert_eq!((block, range), (FsBlock(100), FileBlock(10)..FileBlock(50)));
        let Step::Child { block, range } = step(50) else { panic!() };
        assert_eq!((block, range), (FsBlock(200), FileBlock(50)..FileBlock(FILE_BLOCKS_MAX)));
    }

    proptest! {
        #[test]
        fn noise_gives_errors_or_a_sound_node(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            with_header in any::<bool>(),
            start in 0..1000_u64,
            length in 1..1000_u64,
        ) {
            if with_header && bytes.len() >= 60 {
                let count = u16::from(bytes[0] % 5);
                let header = header(count, 4, u16::from(bytes[1] % 3));
                bytes[..12].copy_from_slice(&header);
            }
            let Ok(node) = parse(&bytes, None, start..start + length) else { return Ok(()) };
            for at in start..start + length {
                match node.clone().find(FileBlock(at)) {
                    Step::Found(span) => prop_assert!(span.contains(FileBlock(at))),
                    Step::Child { range, .. } => prop_assert!(range.contains(&FileBlock(at))),
                }
            }
        }
    }
}
