//! What sections have: segments of data, segments of nodes, or nothing. Not here: blocks
//! (`space.rs`).
//!
//! When it cleans a section, Linux takes the kind of its first segment, data or nodes, for that of
//! all, and stops the volume if another one has blocks of the other kind. So logs keep to one kind
//! in each section (`Logs::begin_segment`).

use crate::summaries::BlockKind;

/// A section that may be cleaned: no log writes to it, and nothing in it was allocated since the
/// last checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Section {
    pub(crate) number: u32,
    /// The number of blocks in use.
    pub(crate) used: u64,
    /// The number of all blocks.
    pub(crate) blocks: u64,
    /// The time at which its blocks were written, on average, in seconds since the volume was made.
    pub(crate) written: u64,
}

/// The use of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SectionUse {
    /// The number of segments. The last section of a damaged volume may have fewer than others.
    segments: u32,
    is_complete: bool,
    /// The number of segments with data, and of those with nodes.
    used: [u32; 2],
    /// The kind of the first segment, also if that is empty.
    first: BlockKind,
}

/// The segments without any taken block, by what a log can use them for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct EmptySegments {
    /// Sections of which no segment is used, and none is that of a log.
    pub(crate) free_sections: u64,
    /// The empty segments of sections that have segments of data only.
    pub(crate) data: u64,
    /// The empty segments of sections that have segments of nodes only.
    pub(crate) nodes: u64,
}

impl EmptySegments {
    /// Returns the number of segments for blocks of this kind, beside those of free sections.
    pub(crate) fn of_mut(&mut self, kind: BlockKind) -> &mut u64 {
        match kind {
            BlockKind::Data => &mut self.data,
            BlockKind::Node => &mut self.nodes,
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.free_sections += other.free_sections;
        self.data += other.data;
        self.nodes += other.nodes;
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.free_sections -= other.free_sections;
        self.data -= other.data;
        self.nodes -= other.nodes;
    }
}

impl SectionUse {
    /// Returns the use of a section with so many empty segments.
    pub(crate) fn new(segments: u32, is_complete: bool, first: BlockKind) -> Self {
        Self { segments, is_complete, used: [0, 0], first }
    }

    /// Counts a segment that is used, or that of a log.
    pub(crate) fn add(&mut self, kind: BlockKind, is_first: bool) {
        self.used[kind.index()] += 1;
        if is_first {
            self.first = kind;
        }
    }

    /// Returns whether no segment is used.
    pub(crate) fn is_free(&self) -> bool {
        self.used == [0, 0]
    }

    /// Returns whether the empty segments can be used for blocks of this kind. Not for free
    /// sections.
    pub(crate) fn suits(&self, kind: BlockKind) -> bool {
        *self.empty().of_mut(kind) > 0
    }

    /// Returns the section's empty segments.
    pub(crate) fn empty(&self) -> EmptySegments {
        let [data, nodes] = self.used;
        let empty = u64::from(self.segments - data - nodes);
        let none = EmptySegments::default();
        match self.first {
            _ if self.is_free() => {
                EmptySegments { free_sections: u64::from(self.is_complete), ..none }
            }
            BlockKind::Data if nodes == 0 => EmptySegments { data: empty, ..none },
            BlockKind::Node if data == 0 => EmptySegments { nodes: empty, ..none },
            // A section with both, which others have written, or one that was damaged.
            _ => none,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: BlockKind = BlockKind::Data;
    const NODE: BlockKind = BlockKind::Node;

    /// Returns a section of four segments, of which these are used, and whose first one has a kind.
    fn section(first: BlockKind, used: &[BlockKind]) -> SectionUse {
        let mut section = SectionUse::new(4, true, first);
        used.iter().for_each(|kind| section.add(*kind, false));
        section
    }

    #[test]
    fn empty_segments_belong_to_the_kind_of_the_others() {
        let empty = |first, used: &[BlockKind]| {
            let EmptySegments { free_sections, data, nodes } = section(first, used).empty();
            (free_sections, data, nodes)
        };
        assert_eq!(empty(DATA, &[]), (1, 0, 0));
        assert_eq!(empty(NODE, &[]), (1, 0, 0));
        assert_eq!(empty(DATA, &[DATA]), (0, 3, 0));
        assert_eq!(empty(NODE, &[NODE, NODE]), (0, 0, 2));
        assert_eq!(empty(DATA, &[DATA, NODE]), (0, 0, 0));
        // The kind of an empty first segment counts for Linux.
        assert_eq!(empty(NODE, &[DATA]), (0, 0, 0));
        let incomplete = SectionUse::new(3, false, DATA);
        assert_eq!(incomplete.empty(), EmptySegments::default());
    }
}
