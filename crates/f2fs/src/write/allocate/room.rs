//! The room of a checkpoint: the blocks that it writes, and the free blocks that it can use. Not
//! here: allocation.
//!
//! A checkpoint always has room for what was accepted, and afterwards files can always be removed,
//! since:
//!
//! - A change is refused if the next checkpoint would have no room for it (`Writer::make_room`).
//!   One that adds nodes also leaves room for as many as cleaning a section takes, so that there is
//!   always room for changes that add none: the checkpoint that they need frees the old versions of
//!   all nodes that it writes.
//! - Data leaves free segments to nodes (`Logs::begin_segment`), and cleaning moves no more than
//!   what fits.
//! - Each log of nodes uses the segments of the others when it finds no other blocks, so that no
//!   free block is lost.
//! - A section has data or nodes. The room counts free sections as wholes, so that a checkpoint
//!   need not write both to one.

use std::ops::Add;

use crate::geometry::SEGMENT_BLOCKS;
use crate::summaries::BlockKind;
use crate::write::segments::section_use::EmptySegments;

/// The number of blocks that a checkpoint writes to the main area, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) nodes: u64,
    pub(crate) directory_blocks: u64,
}

impl Wanted {
    /// Returns the wanted blocks with more nodes.
    pub(crate) fn and_nodes(self, nodes: u64) -> Self {
        self + Self { nodes, directory_blocks: 0 }
    }

    /// Returns the number of all blocks.
    pub(crate) fn blocks(self) -> u64 {
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
pub(crate) struct Room {
    /// The number of blocks between nodes, but for those in the segments of logs.
    pub(crate) node_holes: u64,
    pub(crate) empty: EmptySegments,
    pub(crate) segments_per_section: u64,
}

impl Room {
    /// Returns the number of segments of free sections.
    pub(crate) fn free_segments(self) -> u64 {
        self.empty.free_sections * self.segments_per_section
    }

    /// Returns the room after a log has taken an empty segment of a section with blocks of this
    /// kind. `None` without one.
    pub(crate) fn without_segment(mut self, kind: BlockKind) -> Option<Self> {
        let segments = self.empty.of_mut(kind);
        *segments = segments.checked_sub(1)?;
        Some(self)
    }

    /// Returns the room after a log has taken the first segment of a free section for blocks of
    /// this kind. `None` without one.
    pub(crate) fn without_section(mut self, kind: BlockKind) -> Option<Self> {
        self.empty.free_sections = self.empty.free_sections.checked_sub(1)?;
        *self.empty.of_mut(kind) += self.segments_per_section - 1;
        Some(self)
    }

    /// Returns the room after a log of the other kind has taken a segment of a section with blocks
    /// of this kind, whose other empty segments suit neither then.
    pub(crate) fn without_mixed(mut self, kind: BlockKind) -> Self {
        let segments = self.empty.of_mut(kind);
        *segments = segments.saturating_sub(self.segments_per_section);
        self
    }

    /// Returns whether all of `wanted` fits. `rests` returns the number of free blocks of the logs
    /// of nodes, without one of each: a checkpoint names the next block of each log.
    pub(crate) fn fits(self, wanted: Wanted, rests: impl FnOnce() -> u64) -> bool {
        // Data may use the segment of the log of directory blocks up to its last block, and all
        // blocks between data.
        let segments = wanted.directory_blocks.div_ceil(SEGMENT_BLOCKS);
        let EmptySegments { free_sections, data, nodes } = self.empty;
        let sections = segments.saturating_sub(data).div_ceil(self.segments_per_section);
        let Some(left) = free_sections.checked_sub(sections) else { return false };
        let left = left * self.segments_per_section + nodes;
        let left = left * SEGMENT_BLOCKS + self.node_holes;
        // Most often, the rests need not be counted.
        wanted.nodes <= left || wanted.nodes <= left + rests()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the room with so many free sections, and empty segments of sections with data.
    fn room(segments_per_section: u64, free_sections: u64, data: u64, node_holes: u64) -> Room {
        let empty = EmptySegments { free_sections, data, nodes: 0 };
        Room { node_holes, empty, segments_per_section }
    }

    /// Returns how many nodes fit beside `directory_blocks`, with so many blocks in the segments of
    /// logs.
    fn most(room: Room, rests: u64, directory_blocks: u64) -> Option<u64> {
        let fits = |nodes: &u64| room.fits(Wanted { nodes: *nodes, directory_blocks }, || rests);
        (0..).take_while(fits).last()
    }

    #[test]
    fn nodes_fit_in_free_segments_and_holes_and_the_rests_of_their_logs() {
        assert_eq!(most(room(1, 4, 0, 0), 60, 0), Some(4 * 512 + 60));
        assert_eq!(most(room(1, 1, 0, 300), 60, 0), Some(512 + 300 + 60));
        assert_eq!(most(room(1, 0, 0, 0), 60, 0), Some(60));
    }

    #[test]
    fn directory_blocks_take_free_segments_for_themselves() {
        assert_eq!(most(room(1, 4, 0, 0), 60, 1), Some(3 * 512 + 60));
        assert_eq!(most(room(1, 4, 0, 0), 60, 513), Some(2 * 512 + 60));
        assert_eq!(most(room(1, 1, 0, 5000), 0, 513), None);
        assert_eq!(most(room(1, 0, 0, 5000), 60, 1), None);
    }

    #[test]
    fn directory_blocks_take_whole_sections_unless_sections_of_data_have_segments() {
        assert_eq!(most(room(4, 3, 0, 0), 60, 0), Some(12 * 512 + 60));
        assert_eq!(most(room(4, 3, 0, 0), 60, 1), Some(8 * 512 + 60));
        assert_eq!(most(room(4, 3, 0, 0), 60, 4 * 512 + 1), Some(4 * 512 + 60));
        assert_eq!(most(room(4, 3, 2, 0), 60, 2 * 512), Some(12 * 512 + 60));
        assert_eq!(most(room(4, 3, 2, 0), 60, 2 * 512 + 1), Some(8 * 512 + 60));
    }

    #[test]
    fn a_section_belongs_to_the_kind_that_takes_its_first_segment() {
        let of_data = room(4, 1, 0, 0).without_section(BlockKind::Data).unwrap();
        assert_eq!((most(of_data, 0, 3 * 512), most(of_data, 0, 3 * 512 + 1)), (Some(0), None));
        assert!(of_data.without_segment(BlockKind::Node).is_none());
        let of_nodes = room(4, 1, 0, 0).without_section(BlockKind::Node).unwrap();
        assert_eq!(most(of_nodes, 0, 0), Some(3 * 512));
        let rest = of_nodes.without_segment(BlockKind::Node).unwrap();
        assert_eq!((most(rest, 0, 0), most(rest, 0, 1)), (Some(2 * 512), None));
        assert!(rest.without_section(BlockKind::Node).is_none());
    }
}
