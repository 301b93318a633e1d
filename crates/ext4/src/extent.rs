//! The extent tree: verifies nodes and finds what lies at a file block.
//! Not here: indirect blocks, and keeping what was found.

use std::ops::Range;

use base::checksum::crc32c;
use base::view::view_at;
use base::{Error, FileBlock, FsBlock, Place, Problem, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::block_validity::BlockValidity;
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

/// The runs of a leaf that are looked at together: enough to read on for a while, and no more for who is
/// here and there.
pub(crate) const RUNS_AT_ONCE: usize = 64;

/// What is known of the file around block `at`: some runs, or the gap between leaves.
pub(crate) fn load_span(volume: &Volume, record: &InodeRecord, at: FileBlock) -> Result<Span> {
    let validity = volume.block_validity(record.number);
    let (seed, place) = (record.checksum_seed, Place::inode(record.number));
    let root = Expected::of_root();
    verify_root(record, validity)?;
    let mut step = find(&record.block_area, validity, &root, place, at)?;
    // The depth falls by one with each step, and the root bounds the first.
    loop {
        let (block, expected) = match step {
            Step::Found(span) => return Ok(span),
            Step::Child { block, expected } => (block, expected),
        };
        let place = place.at_file_block(expected.range.start).at_block(block);
        let buffer = volume.read_metadata(block, STRUCTURE, place)?;
        buffer.verify_once(|bytes| verify_block(bytes, validity, &expected, seed, place))?;
        step = find(&buffer, validity, &expected, place, at)?;
    }
}

/// Verifies the root of a tree, which lies in its inode.
pub(crate) fn verify_root(record: &InodeRecord, validity: BlockValidity<'_>) -> Result<()> {
    let place = Place::inode(record.number);
    Node::verify(&record.block_area, validity, &Expected::of_root(), place).map(drop)
}

/// What the parent says of a node.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// Its depth; `None` for the root.
    pub depth: Option<u16>,
    /// The file blocks that it may speak of.
    pub range: Range<FileBlock>,
}

impl Expected {
    /// What is known of a root before it is read.
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

/// Where a node leads.
#[derive(Debug)]
pub(crate) enum Step {
    Found(Span),
    Child { block: FsBlock, expected: Expected },
}

/// Follows a node towards `at`, which lies in its range, looking at no more of its entries than that
/// takes. Those are verified, and that they lie where the search expects them; that the node is sound as
/// a whole says [`verify_block`].
pub(crate) fn find(
    bytes: &[u8],
    validity: BlockValidity<'_>,
    expected: &Expected,
    place: Place,
    at: FileBlock,
) -> Result<Step> {
    let (depth, table) = verify_header(bytes, expected, place)?;
    let after = entries_until(table, at);
    let first = after.saturating_sub(1);
    if depth == 0 {
        // Who looks here and there finds the same spans again.
        let first = first / RUNS_AT_ONCE * RUNS_AT_ONCE;
        let part = Part::new(table, first..first + RUNS_AT_ONCE, expected, place)?;
        part.check_contains(at)?;
        let mut runs = Vec::with_capacity(part.entries.len());
        part.verify_leaf(validity, |run| run.push_onto(&mut runs))?;
        return Ok(Step::Found(Span { start: part.range.start, end: part.range.end, runs }));
    }
    if after == 0 {
        let gap = Part::new(table, 0..0, expected, place)?;
        return Ok(Step::Found(Span::hole(gap.range.start, gap.range.end)));
    }
    let part = Part::new(table, first..after, expected, place)?;
    part.check_contains(at)?;
    let mut child = FsBlock(0);
    part.verify_index(validity, |(_, block)| child = block)?;
    // The first child speaks of nothing before it, too.
    let start = starts(part.table).first().map_or(part.range.start, start_of);
    let expected = Expected { depth: Some(depth - 1), range: start..part.range.end };
    Ok(Step::Child { block: child, expected })
}

/// The entries of a table. Those of leaves begin with the file block, too.
fn starts(table: &[u8]) -> &[RawExtentIndex] {
    <[RawExtentIndex]>::ref_from_bytes(table).unwrap_or_default()
}

fn start_of(entry: &RawExtentIndex) -> FileBlock {
    FileBlock(entry.block.get().into())
}

/// How many entries of a table begin at `at` or before.
pub(crate) fn entries_until(table: &[u8], at: FileBlock) -> usize {
    starts(table).partition_point(|entry| start_of(entry) <= at)
}

/// How many entries of a table begin before `at`.
pub(crate) fn entries_before(table: &[u8], at: FileBlock) -> usize {
    starts(table).partition_point(|entry| start_of(entry) < at)
}

/// Some neighbouring entries of a node.
pub(crate) struct Part<'t> {
    /// Which ones.
    pub entries: Range<usize>,
    /// What they may speak of: from where the first begins to where the one after the last does; on the
    /// outside, all that the node may speak of.
    pub range: Range<FileBlock>,
    table: &'t [u8],
    place: Place,
}

impl<'t> Part<'t> {
    /// Those of `entries` that a table has.
    pub(crate) fn new(
        table: &'t [u8],
        entries: Range<usize>,
        expected: &Expected,
        place: Place,
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
        let part = Self { entries, range: start..end, table, place };
        if whole.start <= start && start <= end && end <= whole.end {
            Ok(part)
        } else {
            Err(part.disorder(whole.start, end))
        }
    }

    /// Verifies that a search for `at` may end here.
    pub(crate) fn check_contains(&self, at: FileBlock) -> Result<()> {
        if self.range.contains(&at) { Ok(()) } else { Err(self.disorder(at, self.range.end)) }
    }

    fn disorder(&self, previous: FileBlock, found: FileBlock) -> Error {
        let (place, (previous, found)) = (self.place_of(0), (previous.0, found.0));
        Error::corrupt(STRUCTURE, place, Problem::Disorder { field: "file block", previous, found })
    }

    /// Where the entry `index` of these lies.
    fn place_of(&self, index: usize) -> Place {
        self.place.at_byte((HEADER_BYTES + (self.entries.start + index) * ENTRY_BYTES) as u64)
    }

    /// Verifies the entries, of a leaf, and emits them.
    pub(crate) fn verify_leaf(
        &self,
        validity: BlockValidity<'_>,
        mut emit: impl FnMut(Run),
    ) -> Result<()> {
        let (mut next, mut blocks) = (self.range.start, validity.checker());
        for (index, entry) in self.table.chunks_exact(ENTRY_BYTES).enumerate() {
            let entry =
                RawExtent::ref_from_bytes(entry).expect("chunks have exactly the size of an entry");
            let place = self.place_of(index);
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
            if end > self.range.end {
                let (found, min, max) = (end.0, start.0, self.range.end.0);
                return Err(fault(Problem::Range { field: "end of the extent", found, min, max }));
            }
            let block =
                FsBlock(u64::from(entry.start_hi.get()) << 32 | u64::from(entry.start_lo.get()));
            blocks.check("extent", place, block, length)?;
            emit(Run { start, length, block, unwritten });
            next = end;
        }
        Ok(())
    }

    /// Verifies the entries, of an inner node, and emits them.
    pub(crate) fn verify_index(
        &self,
        validity: BlockValidity<'_>,
        mut emit: impl FnMut((FileBlock, FsBlock)),
    ) -> Result<()> {
        let (mut last, mut blocks) = (None::<FileBlock>, validity.checker());
        for (index, entry) in self.table.chunks_exact(ENTRY_BYTES).enumerate() {
            let entry = RawExtentIndex::ref_from_bytes(entry)
                .expect("chunks have exactly the size of an entry");
            let place = self.place_of(index);
            let fault = |problem| Error::corrupt("extent index", place, problem);
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
            blocks.check("extent index", place, block, 1)?;
            emit((start, block));
        }
        Ok(())
    }
}

impl Node {
    /// Verifies the header, and that entries ascend, do not overlap, stay within what the parent
    /// promised, and point into the volume.
    pub(crate) fn parse(
        bytes: &[u8],
        validity: BlockValidity<'_>,
        expected: Expected,
        place: Place,
    ) -> Result<Self> {
        let (depth, table) = verify_header(bytes, &expected, place)?;
        let all = Part::new(table, 0..usize::MAX, &expected, place)?;
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

    /// Verifies the same; gives the depth, and the entries as they are.
    pub(crate) fn verify<'b>(
        bytes: &'b [u8],
        validity: BlockValidity<'_>,
        expected: &Expected,
        place: Place,
    ) -> Result<(u16, &'b [u8])> {
        let (depth, table) = verify_header(bytes, expected, place)?;
        let all = Part::new(table, 0..usize::MAX, expected, place)?;
        match depth {
            0 => all.verify_leaf(validity, |_| ())?,
            _ => all.verify_index(validity, |_| ())?,
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
}

/// Verifies the header of a node: its depth, and its entries.
pub(crate) fn verify_header<'b>(
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

/// Verifies all of a node that is a block.
pub(crate) fn verify_block(
    bytes: &[u8],
    validity: BlockValidity<'_>,
    expected: &Expected,
    seed: Option<u32>,
    place: Place,
) -> Result<()> {
    verify_checksum(bytes, seed, place)?;
    Node::verify(bytes, validity, expected, place).map(drop)
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
        Node::parse(
            bytes,
            BlockValidity::of_any_block(&plain()),
            Expected { depth, range },
            Place::default(),
        )
    }

    fn find(bytes: &[u8], at: u64) -> Step {
        let (geometry, root) = (plain(), Expected::of_root());
        let validity = BlockValidity::of_any_block(&geometry);
        super::find(bytes, validity, &root, Place::default(), FileBlock(at)).unwrap()
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
        let Step::Found(span) = find(&bytes, 0) else { panic!() };
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
        let step = |at| find(&bytes, at);
        let Step::Found(gap) = step(9) else { panic!() };
        assert_eq!(gap, Span::hole(FileBlock(0), FileBlock(10)));
        let Step::Child { block, expected } = step(49) else { panic!() };
        assert_eq!((block, expected.range), (FsBlock(100), FileBlock(10)..FileBlock(50)));
        let Step::Child { block, expected } = step(50) else { panic!() };
        assert_eq!(
            (block, expected.range),
            (FsBlock(200), FileBlock(50)..FileBlock(FILE_BLOCKS_MAX))
        );
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
            let is_sound = parse(&bytes, None, start..start + length).is_ok();
            let range = FileBlock(start)..FileBlock(start + length);
            for at in start..start + length {
                let (at, expected) = (FileBlock(at), Expected { depth: None, range: range.clone() });
                let geometry = plain();
                let validity = BlockValidity::of_any_block(&geometry);
                match super::find(&bytes, validity, &expected, Place::default(), at) {
                    Ok(Step::Found(span)) => {
                        prop_assert!(span.contains(at));
                        prop_assert!(range.start <= span.start && span.end <= range.end);
                        let blocks = |run: &Run| run.block.0 > 0 && run.block.0 + run.length <= 40_000;
                        prop_assert!(span.runs.iter().all(blocks));
                    }
                    Ok(Step::Child { expected, .. }) => prop_assert!(expected.range.contains(&at)),
                    Err(error) => prop_assert!(!is_sound, "{error}"),
                }
            }
        }
    }
}
