//! The walk through a whole map: runs of data, and the blocks of the map itself.
//! Lookups of single blocks are in `extent/` and `indirect/`, changes in `map_write/`.
//! Not here: checks of runs and blocks.

use std::ops::Range;

use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem};
use fs::Run;

use crate::block_validity::BlockValidity;
use crate::core::Core;
use crate::extent::{self, Expected, Node};
use crate::indirect::DIRECT;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::layout::geometry::FILE_BLOCKS_MAX;

/// The root of a map.
pub(crate) struct MapRoot<'a> {
    pub inode: InodeNumber,
    pub block_area: &'a [u8; 60],
    pub has_extents: bool,
    pub checksum_seed: Option<u32>,
    /// The blocks that the map may refer to.
    pub validity: BlockValidity<'a>,
}

impl<'a> MapRoot<'a> {
    /// Returns the root of an inode's map, which may refer to any block of the volume: blocks with
    /// two owners are the visitor's concern.
    pub(crate) fn new(core: &'a Core, record: &'a InodeRecord) -> Self {
        Self {
            inode: record.number,
            block_area: &record.block_area,
            has_extents: record.flags.contains(InodeFlags::EXTENTS),
            checksum_seed: record.checksum_seed,
            validity: BlockValidity::of_any_block(core.geometry()),
        }
    }
}

/// A visitor of a map.
pub(crate) trait MapVisitor {
    /// Visits a block of the map itself. Returns whether to continue below it.
    fn node(&mut self, block: FsBlock) -> bool;

    /// Visits a run of data.
    fn run(&mut self, run: Run);

    /// Visits a valid leaf of an extent tree that is a block, with the range of the file that
    /// belongs to it.
    fn leaf(&mut self, range: Range<FileBlock>) {
        let _ = range;
    }

    /// Receives the error of a part of the map. The walk does not continue below this part.
    fn fault(&mut self, error: Error);
}

/// Visits all blocks and runs of a map, in the order of the file. If the visitor does not continue
/// below the same block twice, the walk reads each block once.
pub(crate) fn walk(core: &Core, root: &MapRoot<'_>, visitor: &mut dyn MapVisitor) {
    if root.has_extents {
        walk_extents(core, root, visitor);
    } else {
        walk_pointers(core, root, visitor);
    }
}

fn walk_extents(core: &Core, root: &MapRoot<'_>, visitor: &mut dyn MapVisitor) {
    let location = Location::inode(root.inode);
    let whole = FileBlock(0)..FileBlock(FILE_BLOCKS_MAX);
    let expected = Expected::of_root();
    // Children to visit, in reverse order, with the depth and the range that their parents state.
    let mut waiting: Vec<(FsBlock, u16, Range<FileBlock>)> = Vec::new();
    let add = |node: &Node, end: FileBlock, visitor: &mut dyn MapVisitor, waiting: &mut Vec<_>| {
        node.runs().iter().for_each(|run| visitor.run(*run));
        let mut end = end;
        for &(start, block) in node.children().iter().rev() {
            waiting.push((block, node.depth - 1, start..end));
            end = start;
        }
    };
    match Node::parse(root.block_area, root.validity, expected, location) {
        Ok(node) => add(&node, whole.end, visitor, &mut waiting),
        Err(error) => visitor.fault(error),
    }
    while let Some((block, depth, range)) = waiting.pop() {
        if !visitor.node(block) {
            continue;
        }
        let location = location.at_file_block(range.start).at_block(block);
        let parsed = core.read_metadata(block, "extent node", location).and_then(|buffer| {
            extent::verify_checksum(&buffer, root.checksum_seed, location)?;
            let expected = Expected { depth: Some(depth), range: range.clone() };
            Node::parse(&buffer, root.validity, expected, location)
        });
        match parsed {
            Ok(node) => {
                check_start(&node, range.start, location, visitor);
                if node.depth == 0 {
                    visitor.leaf(range.clone());
                }
                add(&node, range.end, visitor, &mut waiting);
            }
            Err(error) => visitor.fault(error),
        }
    }
}

/// Checks that a node begins at the file block that its parent states.
fn check_start(node: &Node, expected: FileBlock, location: Location, visitor: &mut dyn MapVisitor) {
    let of_run = node.runs().first().map(|run| run.start);
    let start = of_run.or_else(|| node.children().first().map(|&(start, _)| start));
    if let Some(start) = start.filter(|start| *start != expected) {
        let problem =
            Problem::Mismatch { field: "first file block", found: start.0, expected: expected.0 };
        visitor.fault(Error::corrupt("extent node", location, problem));
    }
}

const POINTER_BYTES: usize = 4;

fn walk_pointers(core: &Core, root: &MapRoot<'_>, visitor: &mut dyn MapVisitor) {
    let per_block = u64::from(core.geometry().block_size.bytes()) / POINTER_BYTES as u64;
    let location = Location::inode(root.inode);
    let mut walk = PointerWalk { core, location, visitor, run: None };
    let (direct, trees) = root.block_area.split_at(DIRECT * POINTER_BYTES);
    walk.leaf(direct, FileBlock(0), location);
    let mut start = DIRECT as u64;
    for (tree, level) in trees.chunks_exact(POINTER_BYTES).zip(1..) {
        walk.tree(pointer(tree), level, FileBlock(start));
        // At most (2^14)^3 blocks, and fewer before them: no overflow.
        start += per_block.pow(level);
    }
    walk.end_run();
}

fn pointer(bytes: &[u8]) -> FsBlock {
    FsBlock(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

struct PointerWalk<'a> {
    core: &'a Core,
    location: Location,
    visitor: &'a mut dyn MapVisitor,
    /// The run of the last pointers, which may continue.
    run: Option<Run>,
}

impl PointerWalk<'_> {
    /// Visits a block of pointers of `level`, and all blocks below it. Blocks of level 1 point to
    /// data.
    fn tree(&mut self, root: FsBlock, level: u32, start: FileBlock) {
        let geometry = self.core.geometry();
        let per_block = u64::from(geometry.block_size.bytes()) / POINTER_BYTES as u64;
        // Blocks to visit, in reverse order.
        let mut waiting = vec![(root, level, start)];
        while let Some((block, level, start)) = waiting.pop() {
            if block.0 == 0 {
                continue;
            }
            let location = self.location.at_file_block(start).at_block(block);
            if let Err(error) = geometry.check_run("indirect block", location, block, 1) {
                self.visitor.fault(error);
                continue;
            }
            self.end_run();
            if !self.visitor.node(block) {
                continue;
            }
            let buffer = match self.core.read_metadata(block, "indirect block", location) {
                Ok(buffer) => buffer,
                Err(error) => {
                    self.visitor.fault(error);
                    continue;
                }
            };
            if level == 1 {
                self.leaf(&buffer, start, location);
                continue;
            }
            let below = per_block.pow(level - 1);
            let children = buffer.chunks_exact(POINTER_BYTES).map(pointer).zip(0..);
            let first = waiting.len();
            waiting.extend(
                children
                    .filter(|(block, _)| block.0 != 0)
                    .map(|(block, slot)| (block, level - 1, FileBlock(start.0 + slot * below))),
            );
            if let Some(added) = waiting.get_mut(first..) {
                added.reverse();
            }
        }
    }

    /// Visits pointers to data.
    fn leaf(&mut self, pointers: &[u8], start: FileBlock, location: Location) {
        for (block, slot) in pointers.chunks_exact(POINTER_BYTES).map(pointer).zip(0..) {
            if block.0 == 0 {
                continue;
            }
            let at = FileBlock(start.0 + slot);
            let location = location.at_file_block(at);
            let checked = self.core.geometry().check_run("block pointer", location, block, 1);
            match checked {
                Ok(()) => self.data(Run { start: at, length: 1, block, unwritten: false }),
                Err(error) => self.visitor.fault(error),
            }
        }
    }

    fn data(&mut self, next: Run) {
        match &mut self.run {
            Some(run) if run.is_followed_by(&next) => run.length += next.length,
            _ => {
                self.end_run();
                self.run = Some(next);
            }
        }
    }

    fn end_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.visitor.run(run);
        }
    }
}
