//! The orphan file as a whole. Not here: its blocks (`block.rs`), and the inodes that they list.

use std::collections::HashSet;

use base::{Error, FileBlock, Location, Problem, Result};

use crate::inode::Inode;
use crate::orphans::block::{BLOCK, ORPHAN_FILE, OrphanBlock};

/// The maximum size of the orphan file, in bytes: 512 blocks of 64 KiB, the largest file that
/// e2fsprogs creates by default.
const BYTES_MAX: u64 = 32 << 20;

/// Returns the blocks of the file, in order. Each is verified, or an error. A block that the file
/// has twice is an error, too: otherwise a small hostile image could have millions of orphans.
pub(crate) fn blocks(file: &Inode) -> Result<impl Iterator<Item = Result<OrphanBlock>>> {
    let (found, max) = (file.size(), BYTES_MAX);
    if found > max {
        let problem = Problem::Range { field: "size", found, min: 0, max };
        return Err(Error::corrupt(ORPHAN_FILE, Location::inode(file.number()), problem));
    }
    let count = file.volume().geometry().block_size.blocks_for(file.size());
    let mut known = HashSet::new();
    let mut once = move |block: OrphanBlock| {
        if known.insert(block.block()) {
            return Ok(block);
        }
        Err(Error::corrupt(BLOCK, block.location, Problem::Shared { blocks: 1 }))
    };
    Ok((0..count).map(|at| read(file, FileBlock(at))).map(move |read| read.and_then(&mut once)))
}

fn read(file: &Inode, at: FileBlock) -> Result<OrphanBlock> {
    let location = Location::inode(file.number()).at_file_block(at);
    let Some(buffer) = file.read_block(at, BLOCK)? else {
        return Err(Error::corrupt(BLOCK, location, Problem::Missing("block")));
    };
    OrphanBlock::new(buffer, file.record().checksum_seed, location)
}
