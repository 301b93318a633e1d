//! The number of nodes and directory blocks that surely fit in a checkpoint, whichever logs they go to. Not here: allocation.
//!
//! A log that comes to the end of its segment takes a whole one, also for a single block, and no other log can use the rest.
//! A checkpoint appends to four logs: those of nodes, and that of directory blocks.

use crate::geometry::SEGMENT_BLOCKS;

/// The logs of nodes.
const NODE_LOGS: usize = 3;

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

    /// Returns whether `count` blocks fit. `rests` returns the number of free blocks that each log of nodes has left in its
    /// segment.
    pub(super) fn fits(self, count: u64, rests: impl FnOnce() -> [u64; NODE_LOGS]) -> bool {
        // Directory blocks fit in free segments only, and come first.
        if count == 0 || count > self.free_segments * SEGMENT_BLOCKS {
            return count == 0;
        }
        // Most often, the rests need not be counted.
        let wasted = NODE_LOGS as u64 * SEGMENT_BLOCKS;
        count < self.nodes.saturating_sub(wasted) || count < self.first_without_place(rests())
    }

    /// Returns the number of blocks that do not fit in the worst case: some logs fill their segments, all of them but one
    /// begin another one that they do not use, and the last one uses the rest.
    fn first_without_place(self, rests: [u64; NODE_LOGS]) -> u64 {
        // Data may use the segment of the log of directory blocks up to its last block.
        let mut costs = [1, rests[0], rests[1], rests[2]];
        costs.sort_unstable();
        let mut before = 0;
        let of_logs = costs.iter().zip(0..).map(|(cost, wasted)| {
            before += cost;
            before + self.nodes.saturating_sub(wasted * SEGMENT_BLOCKS)
        });
        of_logs.min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many blocks fit.
    fn most(nodes: u64, free_segments: u64, rests: [u64; NODE_LOGS]) -> u64 {
        let room = Room { nodes, free_segments };
        let fits = |count: &u64| room.fits(*count, || rests);
        (0..).take_while(fits).last().expect("no block needs no room")
    }

    #[test]
    fn each_log_may_begin_a_segment_for_nothing() {
        // All of the rests, and one of four segments.
        assert_eq!(most(4 * 512, 4, [10, 20, 30]), 10 + 20 + 30 + 512);
        // With two free segments, the third log that needs one fails.
        assert_eq!(most(2 * 512, 2, [10, 20, 30]), 10 + 20);
        assert_eq!(most(512, 1, [10, 20, 30]), 10);
        assert_eq!(most(0, 0, [10, 20, 30]), 0);
    }

    #[test]
    fn holes_between_nodes_are_wasted_like_free_segments() {
        // Directory blocks begin the free segment, a log of nodes the other one, and the next one fails.
        assert_eq!(most(512 + 300, 1, [100, 200, 300]), 100 + 200);
        assert_eq!(most(512 + 700, 1, [100, 200, 300]), 100 + 200 + 188);
    }

    #[test]
    fn directory_blocks_need_free_segments() {
        assert_eq!(most(512 + 5000, 1, [512, 512, 512]), 512);
        assert_eq!(most(5000, 0, [512, 512, 512]), 0);
    }
}
