//! Lookups in the extent tree.
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
use crate::block_validity::BlockValidity;
use crate::core::Core;
use crate::inode::record::InodeRecord;

/// Returns the part of the tree around block `at`: some runs, or the gap between leaves.
pub(crate) fn load_span(core: &Core, record: &InodeRecord, at: FileBlock) -> Result<Span> {
    let validity = core.block_validity(record.number);
    let (seed, location) = (record.checksum_seed, Location::inode(record.number));
    let root = Expected::of_root();
    verify_root(record, validity)?;
    let mut search = find(&record.block_area, validity, &root, location, at)?;
    // The depth falls by one in each iteration, and is bounded in the root.
    loop {
        let (block, expected) = match search {
            NodeSearch::Found(span) => return Ok(span),
            NodeSearch::Child { block, expected } => (block, expected),
        };
        let location = location.at_file_block(expected.range.start).at_block(block);
        let buffer = core.read_metadata(block, STRUCTURE, location)?;
        buffer.verify_once(|bytes| verify_block(bytes, validity, &expected, seed, location))?;
        search = find(&buffer, validity, &expected, location, at)?;
    }
}

/// Verifies the root of a tree, which lies in its inode.
pub(crate) fn verify_root(record: &InodeRecord, validity: BlockValidity<'_>) -> Result<()> {
    let location = Location::inode(record.number);
    Node::verify(&record.block_area, validity, &Expected::of_root(), location).map(drop)
}

/// Outcome of a search in one node.
#[derive(Debug)]
pub(crate) enum NodeSearch {
    Found(Span),
    Child { block: FsBlock, expected: Expected },
}

/// Searches a node for `at`, which lies in the node's range. Verifies only the entries that the
/// search uses, and that they lie within their limits; [`verify_block`] verifies the whole node.
pub(crate) fn find(
    bytes: &[u8],
    validity: BlockValidity<'_>,
    expected: &Expected,
    location: Location,
    at: FileBlock,
) -> Result<NodeSearch> {
    let (depth, table) = verify_header(bytes, expected, location)?;
    let after = entries_until(table, at);
    let first = after.saturating_sub(1);
    if depth == 0 {
        // Aligned, so that random reads find the same spans again.
        let first = first / RUNS_AT_ONCE * RUNS_AT_ONCE;
        let part = Part::new(table, first..first + RUNS_AT_ONCE, expected, location)?;
        part.check_contains(at)?;
        let mut runs = Vec::with_capacity(part.entries.len());
        part.verify_leaf(validity, |run| run.push_onto(&mut runs))?;
        return Ok(NodeSearch::Found(Span { start: part.range.start, end: part.range.end, runs }));
    }
    if after == 0 {
        let gap = Part::new(table, 0..0, expected, location)?;
        return Ok(NodeSearch::Found(Span::hole(gap.range.start, gap.range.end)));
    }
    let part = Part::new(table, first..after, expected, location)?;
    part.check_contains(at)?;
    let mut child = FsBlock(0);
    part.verify_index(validity, |(_, block)| child = block)?;
    // The range of the first child begins with its first entry: nothing is mapped before it.
    let start = starts(part.table).first().map_or(part.range.start, start_of);
    let expected = Expected { depth: Some(depth - 1), range: start..part.range.end };
    Ok(NodeSearch::Child { block: child, expected })
}

#[cfg(test)]
mod tests;
