//! Lookups in the block maps of ext2 and ext3: twelve direct pointers, then trees of one, two and
//! three levels. Not here: caching the results.
//!
//! A block of pointers is identified by its level, which is 1 if it points to data, and by its
//! number among the blocks of that level, in the order of the file and whichever tree they are in.

pub(crate) mod pointer_blocks;

use std::ops::Range;

use base::{FileBlock, FsBlock, Location, Result};
use fs::{Run, Span};

use crate::block_validity::BlockValidity;
use crate::core::Core;
use crate::inode::record::InodeRecord;
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::layout::geometry::Geometry;

const STRUCTURE: &str = "indirect block";
/// The number of pointers to data in an inode; those to trees follow.
pub(crate) const DIRECT: usize = 12;
/// The number of levels of the tallest tree.
pub(crate) const LEVELS: u32 = 3;
const POINTER_BYTES: usize = 4;

/// Returns the part of the map around block `at`: the direct pointers, or the block of pointers
/// that covers `at`, or the hole that a missing block of pointers leaves.
pub(crate) fn load_span(core: &Core, record: &InodeRecord, at: FileBlock) -> Result<Span> {
    let validity = core.block_validity(record.number);
    let geometry = validity.geometry;
    let location = Location::inode(record.number);
    let pointers = Pointers(&record.block_area);
    if at.0 < DIRECT as u64 {
        let direct = Pointers(&record.block_area[..DIRECT * POINTER_BYTES]);
        return leaf(direct, FileBlock(0), validity, location);
    }
    let (mut level, mut range) = tree_of(geometry, at);
    // Slots 12, 13 and 14 for levels 1, 2 and 3.
    let slot = DIRECT + level as usize - 1;
    if pointers.get(slot).0 == 0 {
        let absent = (slot + 1..DIRECT + 3).take_while(|&slot| pointers.get(slot).0 == 0).count();
        let mut end = range.end;
        for _ in 0..absent {
            end = tree_of(geometry, end).1.end;
        }
        return Ok(Span::hole(range.start, end));
    }
    let mut block = pointers.get(slot);
    // The level falls in each iteration.
    loop {
        let location = location.at_file_block(range.start).at_block(block);
        validity.check(STRUCTURE, location, block, 1)?;
        let buffer = core.read_metadata(block, STRUCTURE, location)?;
        let pointers = Pointers(&buffer);
        if level == 1 {
            return leaf(pointers, range.start, validity, location);
        }
        level -= 1;
        let child_blocks = blocks_below(geometry, level);
        // `at` lies in `range`, so the slot lies in the block.
        let slot = ((at.0 - range.start.0) / child_blocks) as usize;
        let start = FileBlock(range.start.0 + slot as u64 * child_blocks);
        block = pointers.get(slot);
        if block.0 == 0 {
            let absent = pointers.absent_from(slot) as u64;
            let end = (start.0 + absent * child_blocks).min(FILE_BLOCKS_MAX);
            return Ok(Span::hole(start, FileBlock(end)));
        }
        range = start..FileBlock((start.0 + child_blocks).min(FILE_BLOCKS_MAX));
    }
}

/// Verifies the pointers in an inode.
pub(crate) fn verify_root(record: &InodeRecord, validity: BlockValidity<'_>) -> Result<()> {
    let pointers = Pointers(&record.block_area);
    let mut blocks = validity.checker();
    let location = Location::inode(record.number);
    for (slot, block) in (0..pointers.len()).map(|slot| (slot, pointers.get(slot))) {
        if block.0 != 0 {
            let location = location.at_byte((slot * POINTER_BYTES) as u64);
            blocks.check("block pointer", location, block, 1)?;
        }
    }
    Ok(())
}

/// Returns the number of file blocks below one pointer in a block of `level`. Level 0 is a data
/// block.
fn blocks_below(geometry: &Geometry, level: u32) -> u64 {
    // At most 2^14 pointers in a block: three levels give 2^42.
    let per_block = u64::from(geometry.block_size.bytes()) / POINTER_BYTES as u64;
    per_block.pow(level)
}

/// Returns the number of levels of the tree that maps `at`, and the file blocks that the tree maps.
/// `at` lies past the direct blocks. Past the last tree, returns its level, and an empty range at
/// its end.
fn tree_of(geometry: &Geometry, at: FileBlock) -> (u32, Range<FileBlock>) {
    let mut start = DIRECT as u64;
    let mut level = 1;
    loop {
        let end = (start + blocks_below(geometry, level)).min(FILE_BLOCKS_MAX);
        if at.0 < end || level == 3 {
            return (level, FileBlock(start)..FileBlock(end));
        }
        start = end;
        level += 1;
    }
}

/// Returns the first file block with at least `level` blocks of pointers on the path to it.
fn start_of_level(geometry: &Geometry, level: u32) -> u64 {
    (1..level).fold(DIRECT as u64, |start, level| start + blocks_below(geometry, level))
}

/// Returns the numbers of the blocks of pointers of a level that are on the paths to `blocks`.
pub(crate) fn pointer_blocks(
    geometry: &Geometry,
    level: u32,
    blocks: &Range<FileBlock>,
) -> Range<u64> {
    let (first, below) = (start_of_level(geometry, level), blocks_below(geometry, level));
    let start = blocks.start.0.max(first);
    if start >= blocks.end.0 {
        return 0..0;
    }
    // Each tree begins at a multiple of what a block of each of its levels covers.
    (start - first) / below..(blocks.end.0 - 1 - first) / below + 1
}

/// Returns the file blocks below a block of pointers.
pub(crate) fn below_pointer_block(
    geometry: &Geometry,
    level: u32,
    number: u64,
) -> Range<FileBlock> {
    let below = blocks_below(geometry, level);
    let start = start_of_level(geometry, level) + number * below;
    FileBlock(start)..FileBlock(start + below)
}

fn common(one: &Range<FileBlock>, other: &Range<FileBlock>) -> Range<FileBlock> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// Returns the file blocks of the direct pointers, of each block of pointers in the first two
/// trees, and of each branch of the third tree. Damage in one of these ranges does not hide the
/// other ranges.
pub(crate) fn branches(geometry: &Geometry) -> Vec<Range<FileBlock>> {
    let mut branches = vec![FileBlock(0)..FileBlock(DIRECT as u64)];
    for (level, below) in [(1, 1), (2, 1), (3, 2)] {
        let mut start = branches.last().map_or(0, |last| last.end.0);
        let end = (start + blocks_below(geometry, level)).min(FILE_BLOCKS_MAX);
        while start < end {
            let next = (start + blocks_below(geometry, below)).min(end);
            branches.push(FileBlock(start)..FileBlock(next));
            start = next;
        }
    }
    branches
}

/// Returns the end of the file blocks that a block map can map.
pub(crate) fn end_of_map(geometry: &Geometry) -> FileBlock {
    tree_of(geometry, FileBlock(FILE_BLOCKS_MAX)).1.end
}

/// Verifies the pointers of a leaf that begins at file block `start`, and returns them as runs.
fn leaf(
    pointers: Pointers<'_>,
    start: FileBlock,
    validity: BlockValidity<'_>,
    location: Location,
) -> Result<Span> {
    let mut runs: Vec<Run> = Vec::new();
    let mut blocks = validity.checker();
    let end = FileBlock((start.0 + pointers.len() as u64).min(FILE_BLOCKS_MAX));
    for slot in 0..(end.0 - start.0) as usize {
        let block = pointers.get(slot);
        if block.0 == 0 {
            continue;
        }
        let file_block = FileBlock(start.0 + slot as u64);
        let location = location.at_file_block(file_block).at_byte((slot * POINTER_BYTES) as u64);
        blocks.check("block pointer", location, block, 1)?;
        Run { start: file_block, length: 1, block, unwritten: false }.push_onto(&mut runs);
    }
    Ok(Span { start, end, runs })
}

/// A view of little-endian block numbers.
struct Pointers<'a>(&'a [u8]);

impl Pointers<'_> {
    fn len(&self) -> usize {
        self.0.len() / POINTER_BYTES
    }

    fn get(&self, slot: usize) -> FsBlock {
        let at = slot * POINTER_BYTES;
        let bytes = self.0[at..at + POINTER_BYTES].try_into().expect("the range has four bytes");
        FsBlock(u32::from_le_bytes(bytes).into())
    }

    /// Returns the number of adjacent zero pointers from `slot` on.
    fn absent_from(&self, slot: usize) -> usize {
        (slot..self.len()).take_while(|&slot| self.get(slot).0 == 0).count()
    }
}
