//! The check of a directory's hash index. It yields the role of each block, and the hashes that a
//! leaf may have.

use std::collections::BTreeMap;

use base::{Error, FileBlock, Location, Problem, Result};

use super::Report;
use crate::dir::Directory;
use crate::dir::hash::NameHasher;
use crate::dir::index::IndexNode;

const STRUCTURE: &str = "directory index";

/// The role of a block in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockRole {
    /// A part of the index.
    Index,
    /// A block with the names of these hashes.
    Leaf(HashRange),
}

/// The hashes from `low` to below `high`. If the lowest bit of `high` is set, names with this hash
/// continue in the next leaf, and the range includes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HashRange {
    low: u32,
    high: Option<u32>,
}

impl HashRange {
    pub(crate) fn contains(&self, hash: u32) -> bool {
        hash >= self.low & !1
            && self
                .high
                .is_none_or(|high| if high & 1 == 0 { hash < high } else { hash <= high & !1 })
    }
}

/// A hashed directory's index.
pub(crate) struct Index {
    pub hasher: NameHasher,
    /// The blocks that the index names, without the root.
    pub blocks: BTreeMap<FileBlock, BlockRole>,
}

/// A block that the index names, and that is not checked yet.
struct Waiting {
    block: FileBlock,
    /// The number of index levels from this block on, or 0 for a leaf.
    levels: u8,
    range: HashRange,
    named_by: Location,
}

impl Index {
    /// Checks all nodes of the index. Returns `None` if its root is invalid.
    pub(crate) fn walk(directory: &Directory<'_>, report: &mut Report<'_>) -> Option<Self> {
        let (buffer, location) = report.ok(directory.block(FileBlock(0)))??;
        let root = report.ok(directory.format().parse_root(&buffer, location))?;
        let mut index = Self { hasher: root.hasher, blocks: BTreeMap::new() };
        let mut waiting = Vec::new();
        let all = HashRange { low: 0, high: None };
        push(&mut waiting, &root.node, root.levels, all, location, report);
        while let Some(next) = waiting.pop() {
            // A block that the index names twice is checked once.
            let is_leaf = next.levels == 0;
            let role = if is_leaf { BlockRole::Leaf(next.range) } else { BlockRole::Index };
            let is_known = next.block == FileBlock(0) || index.blocks.contains_key(&next.block);
            let location = next.named_by;
            if is_known {
                let problem = Problem::Repeated("the block");
                report.corrupt(STRUCTURE, location.at_file_block(next.block), problem);
                continue;
            }
            let Some(found) = report.ok(require(directory, next.block, location)) else {
                continue;
            };
            index.blocks.insert(next.block, role);
            if is_leaf {
                continue;
            }
            let (buffer, location) = found;
            if let Some(node) = report.ok(directory.format().parse_node(&buffer, location)) {
                push(&mut waiting, &node, next.levels - 1, next.range, location, report);
            }
        }
        Some(index)
    }
}

/// Returns a block. Errors: `Corrupt` if the directory has no such block.
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
    fn a_leaf_ends_before_the_next_ones_first_hash_unless_this_hash_continues() {
        let range = HashRange { low: 10, high: Some(20) };
        assert!(range.contains(10) && range.contains(18));
        assert!(!range.contains(8) && !range.contains(20));
        let continued = HashRange { low: 11, high: Some(21) };
        assert!(continued.contains(10) && continued.contains(20) && !continued.contains(22));
        assert!(HashRange { low: 0, high: None }.contains(0xFFFF_FFFC));
    }
}
