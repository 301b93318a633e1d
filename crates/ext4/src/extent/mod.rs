//! The extent tree: lookups of the extents at a file block.
//! Not here: indirect blocks, and caching the results.

mod node;

use base::{FileBlock, FsBlock, Location, Result};
use fs::{RUNS_AT_ONCE, Span};

pub use self::node::DEPTH_MAX;
pub(crate) use self::node::{
    ENTRY_BYTES, Expected, HEADER_BYTES, Node, Part, STRUCTURE, entries_before, entries_until,
    seal, verify_block, verify_checksum, verify_header,
};
use self::node::{start_of, starts};
use crate::inode::record::InodeRecord;
use crate::layout::block_validity::BlockValidity;
use crate::volume::Volume;

/// Returns the part of the tree around block `at`: some runs, or the gap between leaves.
pub(crate) fn load_span(volume: &Volume, record: &InodeRecord, at: FileBlock) -> Result<Span> {
    let validity = volume.block_validity(record.number);
    let (seed, location) = (record.checksum_seed, Location::inode(record.number));
    let root = Expected::of_root();
    verify_root(record, validity)?;
    let mut step = find(&record.block_area, validity, &root, location, at)?;
    // The depth falls by one with each step, and the root bounds the first.
    loop {
        let (block, expected) = match step {
            Step::Found(span) => return Ok(span),
            Step::Child { block, expected } => (block, expected),
        };
        let location = location.at_file_block(expected.range.start).at_block(block);
        let buffer = volume.read_metadata(block, STRUCTURE, location)?;
        buffer.verify_once(|bytes| verify_block(bytes, validity, &expected, seed, location))?;
        step = find(&buffer, validity, &expected, location, at)?;
    }
}

/// Verifies the root of a tree, which lies in its inode.
pub(crate) fn verify_root(record: &InodeRecord, validity: BlockValidity<'_>) -> Result<()> {
    let location = Location::inode(record.number);
    Node::verify(&record.block_area, validity, &Expected::of_root(), location).map(drop)
}

/// Where a node leads.
#[derive(Debug)]
pub(crate) enum Step {
    Found(Span),
    Child { block: FsBlock, expected: Expected },
}

/// Follows a node towards `at`, which lies in its range. Verifies the entries that this takes, and that they lie where
/// the search expects them, and no others; [`verify_block`] verifies the whole node.
pub(crate) fn find(
    bytes: &[u8],
    validity: BlockValidity<'_>,
    expected: &Expected,
    location: Location,
    at: FileBlock,
) -> Result<Step> {
    let (depth, table) = verify_header(bytes, expected, location)?;
    let after = entries_until(table, at);
    let first = after.saturating_sub(1);
    if depth == 0 {
        // Random reads find the same spans again.
        let first = first / RUNS_AT_ONCE * RUNS_AT_ONCE;
        let part = Part::new(table, first..first + RUNS_AT_ONCE, expected, location)?;
        part.check_contains(at)?;
        let mut runs = Vec::with_capacity(part.entries.len());
        part.verify_leaf(validity, |run| run.push_onto(&mut runs))?;
        return Ok(Step::Found(Span { start: part.range.start, end: part.range.end, runs }));
    }
    if after == 0 {
        let gap = Part::new(table, 0..0, expected, location)?;
        return Ok(Step::Found(Span::hole(gap.range.start, gap.range.end)));
    }
    let part = Part::new(table, first..after, expected, location)?;
    part.check_contains(at)?;
    let mut child = FsBlock(0);
    part.verify_index(validity, |(_, block)| child = block)?;
    // The first child speaks of nothing before it, too.
    let start = starts(part.table).first().map_or(part.range.start, start_of);
    let expected = Expected { depth: Some(depth - 1), range: start..part.range.end };
    Ok(Step::Child { block: child, expected })
}

#[cfg(test)]
mod tests;
