//! The block maps of ext2 and ext3: twelve direct pointers, then trees of one, two and three
//! levels. Finds what lies at a file block. Not here: keeping what was found.

use base::{Error, FileBlock, FsBlock, Place, Problem, Result};

use crate::geometry::Geometry;
use crate::inode_record::InodeRecord;
use crate::map::{FILE_BLOCKS_MAX, Run, Span};
use crate::volume::Volume;

const STRUCTURE: &str = "indirect block";
const DIRECT: usize = 12;
const POINTER_BYTES: usize = 4;

/// What is known of the file around block `at`: the direct pointers or the block of pointers that
/// covers it, or the hole around it that missing blocks of pointers make.
pub(crate) fn load_span(volume: &Volume, record: &InodeRecord, at: FileBlock) -> Result<Span> {
    let geometry = volume.geometry();
    let place = Place::inode(record.number);
    let pointers = Pointers(&record.block_area);
    if at.0 < DIRECT as u64 {
        let direct = Pointers(&record.block_area[..DIRECT * POINTER_BYTES]);
        return leaf(direct, FileBlock(0), geometry, place);
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
    // The level falls with each step.
    loop {
        let place = place.at_file_block(range.start).at_block(block);
        geometry.check_run(STRUCTURE, place, block, 1)?;
        let buffer = volume.read_metadata(block, STRUCTURE, place)?;
        let pointers = Pointers(&buffer);
        if level == 1 {
            return leaf(pointers, range.start, geometry, place);
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

/// File blocks below one pointer of a tree's level; level 0 is a data block.
fn blocks_below(geometry: &Geometry, level: u32) -> u64 {
    // At most 2^14 pointers in a block: three levels give 2^42.
    let per_block = u64::from(geometry.block_size.bytes()) / POINTER_BYTES as u64;
    per_block.pow(level)
}

/// The levels of the tree that `at` (past the direct blocks) lies in, and what the tree covers.
/// Past the last tree, its level and an empty range at the end.
fn tree_of(geometry: &Geometry, at: FileBlock) -> (u32, std::ops::Range<FileBlock>) {
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

/// The end of what a block map can say.
pub(crate) fn end_of_map(geometry: &Geometry) -> FileBlock {
    tree_of(geometry, FileBlock(FILE_BLOCKS_MAX)).1.end
}

fn leaf(
    pointers: Pointers<'_>,
    start: FileBlock,
    geometry: &Geometry,
    place: Place,
) -> Result<Span> {
    let mut runs: Vec<Run> = Vec::new();
    let end = FileBlock((start.0 + pointers.len() as u64).min(FILE_BLOCKS_MAX));
    for slot in 0..(end.0 - start.0) as usize {
        let block = pointers.get(slot);
        if block.0 == 0 {
            continue;
        }
        let file_block = FileBlock(start.0 + slot as u64);
        if !geometry.contains_run(block, 1) {
            let place = place.at_file_block(file_block).at_byte((slot * POINTER_BYTES) as u64);
            let problem = Problem::Range {
                field: "block",
                found: block.0,
                min: geometry.first_data_block.0 + 1,
                max: geometry.block_count - 1,
            };
            return Err(Error::corrupt("block pointer", place, problem));
        }
        Run { start: file_block, length: 1, block, unwritten: false }.push_onto(&mut runs);
    }
    Ok(Span { start, end, runs })
}

/// Little-endian block numbers.
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

    /// How many zero pointers follow each other from `slot` on.
    fn absent_from(&self, slot: usize) -> usize {
        (slot..self.len()).take_while(|&slot| self.get(slot).0 == 0).count()
    }
}
