//! A directory's hash index: what each block of the directory is, and which hashes a leaf may have.

use std::collections::BTreeMap;

use base::{Error, FileBlock, Location, Problem, Result};

use super::Report;
use crate::dir::Directory;
use crate::dir::hash::NameHasher;
use crate::dir::index::IndexNode;

const STRUCTURE: &str = "directory index";

/// What the index says of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockRole {
    /// It is part of the index.
    Index,
    /// It holds the names of these hashes.
    Leaf(HashRange),
}

/// From `low` to below `high`, or to `high` itself where names of that hash go on in the next
/// leaf: the lowest bit of that leaf's least hash says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HashRange {
    low: u32,
    high: Option<u32>,
}

impl HashRange {
    pub(crate) fn contains(&self, hash: u32) -> bool {
        hash >= self.low & !1
            && self.high.is_none_or(|high| match high & 1 {
                0 => hash < high,
                _ => hash <= high & !1,
            })
    }
}

/// A hashed directory's index.
pub(crate) struct Index {
    pub hasher: NameHasher,
    /// Every block but the root that the index names.
    pub blocks: BTreeMap<FileBlock, BlockRole>,
}

/// A block that the index names, still to be looked at.
struct Waiting {
    block: FileBlock,
    /// Index levels from this block on, or 0 for a leaf.
    levels: u8,
    range: HashRange,
    named_by: Location,
}

impl Index {
    /// Walks the index; nothing is given when its root makes no sense.
    pub(crate) fn walk(directory: &Directory<'_>, report: &mut Report<'_>) -> Option<Self> {
        let (buffer, location) = report.take(directory.block(FileBlock(0)))??;
        let root = report.take(directory.format().parse_root(&buffer, location))?;
        let mut index = Self { hasher: root.hasher, blocks: BTreeMap::new() };
        let mut waiting = Vec::new();
        let all = HashRange { low: 0, high: None };
        push(&mut waiting, &root.node, root.levels, all, location, report);
        while let Some(next) = waiting.pop() {
            // What the index names twice is looked at once.
            let is_leaf = next.levels == 0;
            let role = if is_leaf { BlockRole::Leaf(next.range) } else { BlockRole::Index };
            let is_known = next.block == FileBlock(0) || index.blocks.contains_key(&next.block);
            let location = next.named_by;
            if is_known {
                let problem = Problem::Repeated("the block");
                report.corrupt(STRUCTURE, location.at_file_block(next.block), problem);
                continue;
            }
            let Some(found) = report.take(require(directory, next.block, location)) else {
                continue;
            };
            index.blocks.insert(next.block, role);
            if is_leaf {
                continue;
            }
            let (buffer, location) = found;
            if let Some(node) = report.take(directory.format().parse_node(&buffer, location)) {
                push(&mut waiting, &node, next.levels - 1, next.range, location, report);
            }
        }
        Some(index)
    }
}

/// A block that must be there.
fn require(
    directory: &Directory<'_>,
    block: FileBlock,
    location: Location,
) -> Result<(iomap::MetadataBuffer, Location)> {
    directory.block(block)?.ok_or_else(|| {
        Error::corrupt(STRUCTURE, location.at_file_block(block), Problem::Missing("block"))
    })
}

fn push(
    waiting: &mut Vec<Waiting>,
    node: &IndexNode<'_>,
    levels: u8,
    range: HashRange,
    location: Location,
    report: &mut Report<'_>,
) {
    let mut low = range.low;
    for slot in 0..node.len() {
        let high = node.hash(slot + 1).or(range.high);
        if let Some(found) = node.hash(slot) {
            if found < low {
                let (previous, found) = (low.into(), found.into());
                let problem = Problem::Disorder { field: "hash", previous, found };
                report.corrupt(STRUCTURE, location, problem);
            }
            low = found;
        }
        if let Some(block) = node.block(slot) {
            waiting.push(Waiting {
                block,
                levels,
                range: HashRange { low, high },
                named_by: location,
            });
        }
    }
    if let (Some(previous), Some(last)) = (range.high, node.hash(node.len() - 1)) {
        if last > previous {
            let (previous, found) = (last.into(), previous.into());
            report.corrupt(
                STRUCTURE,
                location,
                Problem::Disorder { field: "hash", previous, found },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_ends_where_the_next_begins_or_with_a_hash_that_goes_on() {
        let range = HashRange { low: 10, high: Some(20) };
        assert!(range.contains(10) && range.contains(18));
        assert!(!range.contains(8) && !range.contains(20));
        let continued = HashRange { low: 11, high: Some(21) };
        assert!(continued.contains(10) && continued.contains(20) && !continued.contains(22));
        assert!(HashRange { low: 0, high: None }.contains(0xFFFF_FFFC));
    }
}
