//! The room of a checkpoint: the blocks that it writes, and the free blocks that it can use. Not here: allocation.
//!
//! A checkpoint always has room for what was accepted, and afterwards files can always be removed, since:
//!
//! - A change is refused if the next checkpoint would have no room for it (`Writer::make_room`). One that adds nodes also
//!   leaves room for as many as cleaning a section takes, so that there is always room for changes that add none: the
//!   checkpoint that they need frees the old versions of all nodes that it writes.
//! - Data leaves free segments to nodes (`Logs::begin_segment`), and cleaning moves no more than what fits.
//! - Each log of nodes uses the segments of the others when it finds no other blocks, so that no free block is lost.

use std::ops::Add;

use crate::geometry::SEGMENT_BLOCKS;

/// The number of blocks that a checkpoint writes to the main area, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Wanted {
    pub(super) nodes: u64,
    pub(super) directory_blocks: u64,
}

impl Wanted {
    /// Returns the wanted blocks with more nodes.
    pub(super) fn and_nodes(self, nodes: u64) -> Self {
        self + Self { nodes, directory_blocks: 0 }
    }

    /// Returns the number of all blocks.
    pub(super) fn blocks(self) -> u64 {
        self.nodes + self.directory_blocks
    }
}

impl Add for Wanted {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            nodes: self.nodes + other.nodes,
            directory_blocks: self.directory_blocks + other.directory_blocks,
        }
    }
}

/// What a change does to the next checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Demand {
    /// It adds nodes, and adds or changes up to so many.
    Adds(u64),
    /// It adds no nodes, and changes up to so many.
    Changes(u64),
    /// It adds no nodes, and changes a few. Never refused.
    Few,
}

/// The free blocks that a checkpoint can use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// The number of blocks in free segments, and between nodes, that are not in the segments of logs.
    pub(super) nodes: u64,
    /// The number of free segments.
    pub(super) free_segments: u64,
}

impl Room {
    /// Returns the room after data has taken a free segment.
    pub(super) fn without_segment(self) -> Self {
        Self {
            nodes: self.nodes.saturating_sub(SEGMENT_BLOCKS),
            free_segments: self.free_segments.saturating_sub(1),
        }
    }

    /// Returns whether all of `wanted` fits. `rests` returns the number of free blocks of the logs of nodes, without one of each:
    /// a checkpoint names the next block of each log.
    pub(super) fn fits(self, wanted: Wanted, rests: impl FnOnce() -> u64) -> bool {
        // Data may use the segment of the log of directory blocks up to its last block, and all blocks between data.
        let for_directories = wanted.directory_blocks.div_ceil(SEGMENT_BLOCKS);
        if for_directories > self.free_segments {
            return false;
        }
        let left = self.nodes.saturating_sub(for_directories * SEGMENT_BLOCKS);
        // Most often, the rests need not be counted.
        wanted.nodes <= left || wanted.nodes <= left + rests()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many nodes fit beside `directory_blocks`.
    fn most(nodes: u64, free_segments: u64, rests: u64, directory_blocks: u64) -> Option<u64> {
        let room = Room { nodes, free_segments };
        let fits = |nodes: &u64| room.fits(Wanted { nodes: *nodes, directory_blocks }, || rests);
        (0..).take_while(fits).last()
    }

    #[test]
    fn nodes_fit_in_free_segments_and_holes_and_the_rests_of_their_logs() {
        assert_eq!(most(4 * 512, 4, 60, 0), Some(4 * 512 + 60));
        assert_eq!(most(512 + 300, 1, 60, 0), Some(512 + 300 + 60));
        assert_eq!(most(0, 0, 60, 0), Some(60));
    }

    #[test]
    fn directory_blocks_take_free_segments_for_themselves() {
        assert_eq!(most(4 * 512, 4, 60, 1), Some(3 * 512 + 60));
        assert_eq!(most(4 * 512, 4, 60, 513), Some(2 * 512 + 60));
        assert_eq!(most(512 + 5000, 1, 0, 513), None);
        assert_eq!(most(5000, 0, 60, 1), None);
    }
}
