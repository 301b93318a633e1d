//! The addresses of a cluster in a node.
//! Not here: the node, and the data (`decode.rs`).

use std::ops::Range;

use base::{Error, FileBlock, FsBlock, Location, Problem, Result};
use smallvec::SmallVec;

use crate::ondisk::cluster::{LOG_CLUSTER_SIZE_MAX, LOG_CLUSTER_SIZE_MIN};
use crate::ondisk::node::{COMPRESS_ADDRESS, NEW_ADDRESS, NULL_ADDRESS};

/// The number of blocks in each cluster of a file: a power of two from 4 to 256.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterSize {
    log: u8,
}

impl ClusterSize {
    /// Returns the size of 2^`log` blocks. Errors: `Corrupt` if the format has no such size.
    pub fn from_log(log: u8, location: Location) -> Result<Self> {
        let (min, max) = (LOG_CLUSTER_SIZE_MIN, LOG_CLUSTER_SIZE_MAX);
        if !(min..=max).contains(&log) {
            let (min, max) = (min.into(), max.into());
            let problem = Problem::Range { field: "cluster size", found: log.into(), min, max };
            return Err(Error::corrupt("inode", location, problem));
        }
        Ok(Self { log })
    }

    /// Returns the logarithm to the base 2 of the number of blocks.
    pub fn log(self) -> u8 {
        self.log
    }

    /// Returns the number of blocks.
    pub fn blocks(self) -> u32 {
        1 << self.log
    }

    /// Returns the first block of the cluster that contains `block`.
    pub fn first_block(self, block: FileBlock) -> FileBlock {
        FileBlock(block.0 >> self.log << self.log)
    }
}

/// The form in which a cluster is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cluster {
    /// No slot has an address: the cluster reads as zeroes.
    Hole,
    /// Each block has its own address, or is a hole.
    Plain,
    /// These blocks, in order, have the compressed data: at least one, and fewer than the cluster
    /// has.
    Compressed(SmallVec<[FsBlock; 4]>),
}

impl Cluster {
    /// Parses the addresses in the slots of one cluster, whose first block is `first`. The slots of
    /// a cluster at the end of a file may be fewer than others have. `main` are the blocks that may
    /// have data; `location` is the file's.
    ///
    /// Errors: `Corrupt` if the mark of a compressed cluster is not in the first slot, no
    /// compressed block follows it, these are not adjacent slots, or one is not in `main`.
    /// Addresses of a plain cluster are not checked.
    pub fn parse(
        slots: &[u32],
        first: FileBlock,
        main: &Range<FsBlock>,
        location: Location,
    ) -> Result<Self> {
        let corrupt = |slot: usize, problem| {
            let at = FileBlock(first.0.saturating_add(slot as u64));
            Error::corrupt("cluster", location.at_file_block(at), problem)
        };
        if let Some(slot) = slots.iter().skip(1).position(|slot| *slot == COMPRESS_ADDRESS) {
            let problem = Problem::Invalid { field: "address", found: COMPRESS_ADDRESS.into() };
            return Err(corrupt(slot + 1, problem));
        }
        let Some((_, slots)) = slots.split_first().filter(|(mark, _)| **mark == COMPRESS_ADDRESS)
        else {
            let is_hole = slots.iter().all(|slot| *slot == NULL_ADDRESS);
            return Ok(if is_hole { Self::Hole } else { Self::Plain });
        };
        let is_unused = |slot: &u32| matches!(*slot, NULL_ADDRESS | NEW_ADDRESS);
        let used = slots.iter().position(is_unused).unwrap_or(slots.len());
        let (compressed, saved) = slots.split_at(used);
        if let Some(slot) = saved.iter().position(|slot| !is_unused(slot)) {
            let found = saved[slot].into();
            let problem = Problem::Invalid { field: "address after the compressed data", found };
            return Err(corrupt(1 + used + slot, problem));
        }
        let mut blocks = SmallVec::with_capacity(used);
        for (slot, address) in compressed.iter().enumerate() {
            let block = FsBlock((*address).into());
            if !main.contains(&block) {
                let (found, min, max) = (block.0, main.start.0, main.end.0.saturating_sub(1));
                return Err(corrupt(
                    1 + slot,
                    Problem::Range { field: "address", found, min, max },
                ));
            }
            blocks.push(block);
        }
        if blocks.is_empty() {
            return Err(corrupt(0, Problem::Missing("compressed data")));
        }
        Ok(Self::Compressed(blocks))
    }
}

#[cfg(test)]
mod tests {
    use base::InodeNumber;

    use super::*;

    const C: u32 = COMPRESS_ADDRESS;
    const NEW: u32 = NEW_ADDRESS;
    const MAIN: Range<FsBlock> = FsBlock(100)..FsBlock(200);

    fn parse(slots: &[u32]) -> Result<Cluster> {
        Cluster::parse(slots, FileBlock(16), &MAIN, Location::inode(InodeNumber(5)))
    }

    fn compressed<const N: usize>(blocks: [u64; N]) -> Result<Cluster> {
        Ok(Cluster::Compressed(blocks.into_iter().map(FsBlock).collect()))
    }

    #[test]
    fn sizes_of_4_to_256_blocks_are_allowed() {
        for log in 0..=u8::MAX {
            let size = ClusterSize::from_log(log, Location::default());
            let blocks = (2..=8).contains(&log).then(|| 1 << log);
            assert_eq!(size.map(ClusterSize::blocks).ok(), blocks, "{log}");
        }
        let size = ClusterSize::from_log(3, Location::default()).unwrap();
        assert_eq!(size.first_block(FileBlock(23)), FileBlock(16));
    }

    #[test]
    fn the_first_slot_says_whether_a_cluster_is_compressed() {
        assert_eq!(parse(&[0, 0, 0, 0]), Ok(Cluster::Hole));
        assert_eq!(parse(&[]), Ok(Cluster::Hole));
        assert_eq!(parse(&[0, 0, 150, NEW]), Ok(Cluster::Plain));
        assert_eq!(parse(&[C, 150, 0, 0]), compressed([150]));
        assert_eq!(parse(&[C, 150, NEW, NEW]), compressed([150]));
        assert_eq!(parse(&[C, 199, 100, NEW]), compressed([199, 100]));
        // Space that could be reserved only in part.
        assert_eq!(parse(&[C, 150, 151, NEW, 0, NEW]), compressed([150, 151]));
        assert_eq!(parse(&[C, 150, 151, 152]), compressed([150, 151, 152]));
    }

    #[test]
    fn a_compressed_cluster_that_contradicts_itself_is_an_error_at_its_slot() {
        for (slots, at) in [
            (&[150, C, 0, 0][..], 17),
            (&[0, 0, 0, C], 19),
            (&[C, 150, C, 0], 18),
            (&[C, 150, 0, 151], 19),
            (&[C, NEW, 150, 0], 18),
            (&[C, 0, 0, 0], 16),
            (&[C, NEW, NEW, NEW], 16),
            (&[C], 16),
            (&[C, 99, 0, 0], 17),
            (&[C, 150, 200, 0], 18),
            (&[C, 150, 151, u32::MAX - 2], 19),
        ] {
            let Err(Error::Corrupt(corrupt)) = parse(slots) else { panic!("{slots:?}") };
            let expected = Location::inode(InodeNumber(5)).at_file_block(FileBlock(at));
            assert_eq!(corrupt.location, expected, "{slots:?}: {corrupt}");
        }
    }
}
