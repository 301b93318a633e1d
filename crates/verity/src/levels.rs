//! The levels of the Merkle tree: their sizes, and their positions in the tree.

use base::{Error, Location, Problem, Result};

use crate::descriptor::Descriptor;

/// The maximum number of levels.
pub(crate) const LEVELS_MAX: usize = 8;

/// The levels of a tree, which are stored from the root's down. A file of at most one block has
/// none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Levels {
    /// The first block of each level within the tree, from the level with the hashes of data up.
    starts: Vec<u64>,
    /// log2 of the number of hashes in a block.
    hashes_shift: u32,
}

/// The position of a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HashPosition {
    /// The block within the tree.
    pub(crate) block: u64,
    /// The number of the block within its level.
    pub(crate) index: u64,
    /// The number of the hash within the block.
    pub(crate) slot: usize,
}

impl Levels {
    /// Returns the levels of the tree of a file. Errors: `Corrupt` if there are too many.
    pub(crate) fn new(descriptor: &Descriptor, location: Location) -> Result<Self> {
        // Both are powers of two, and a block has at least 16 hashes.
        let hashes_shift = descriptor.block_shift - descriptor.algorithm.len().ilog2();
        let mut blocks = descriptor.data_blocks();
        let mut counts = Vec::new();
        while blocks > 1 {
            if counts.len() == LEVELS_MAX {
                let problem = Problem::Invalid { field: "data size", found: descriptor.data_size };
                return Err(Error::corrupt("verity descriptor", location, problem));
            }
            blocks = blocks.div_ceil(1 << hashes_shift);
            counts.push(blocks);
        }
        let mut start = 0_u64;
        let mut starts = vec![0; counts.len()];
        for (level, count) in counts.iter().enumerate().rev() {
            starts[level] = start;
            // No overflow: a file has fewer than 2^54 blocks, and its tree fewer still.
            start += count;
        }
        Ok(Self { starts, hashes_shift })
    }

    /// Returns the number of levels.
    pub(crate) fn count(&self) -> usize {
        self.starts.len()
    }

    /// Returns the position of the hash of block `index` of the level below `level`; of data for
    /// level 0. Panics if there is no such level.
    pub(crate) fn position(&self, level: usize, index: u64) -> HashPosition {
        let within = index >> self.hashes_shift;
        let slot = (index & ((1 << self.hashes_shift) - 1)) as usize;
        HashPosition { block: self.starts[level] + within, index: within, slot }
    }
}
