//! Claimed blocks of the main area: those that the check has found in use. One bit for each block,
//! and a byte for each segment.

use base::FsBlock;

use super::bits::Bits;
use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::summaries::BlockKind;

/// What the check knows of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SegmentUse {
    pub(super) has_data: bool,
    pub(super) has_nodes: bool,
    /// Whether a wrong footer of the segment's summary was reported.
    pub(super) footer_reported: bool,
    /// Whether a wrong entry of the segment's summary was reported.
    pub(super) entry_reported: bool,
}

#[derive(Debug)]
pub(super) struct Claims {
    start: FsBlock,
    blocks: Bits,
    segments: Vec<SegmentUse>,
}

impl Claims {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let count = geometry.main.end.0 - geometry.main.start.0;
        let segments = vec![SegmentUse::default(); geometry.main_segments() as usize];
        Self { start: geometry.main.start, blocks: Bits::new(count), segments }
    }

    /// Claims a block of the main area. Returns false if it was claimed already.
    pub(super) fn claim(&mut self, block: FsBlock, kind: BlockKind) -> bool {
        let (segment, _) = self.position(block);
        if let Some(known) = self.segments.get_mut(segment as usize) {
            match kind {
                BlockKind::Data => known.has_data = true,
                BlockKind::Node => known.has_nodes = true,
            }
        }
        self.blocks.insert(block.0.saturating_sub(self.start.0))
    }

    /// Returns the segment of a block of the main area, and the block's index in it.
    pub(super) fn position(&self, block: FsBlock) -> (u32, usize) {
        let from_start = block.0.saturating_sub(self.start.0);
        // Addresses of blocks have 32 bits.
        ((from_start / SEGMENT_BLOCKS) as u32, (from_start % SEGMENT_BLOCKS) as usize)
    }

    pub(super) fn segment(&self, segment: u32) -> SegmentUse {
        self.segments.get(segment as usize).copied().unwrap_or_default()
    }

    pub(super) fn segment_mut(&mut self, segment: u32) -> Option<&mut SegmentUse> {
        self.segments.get_mut(segment as usize)
    }

    /// Returns the claimed blocks of a segment in words, with the first block in the most
    /// significant bit.
    pub(super) fn map(&self, segment: u32) -> [u64; 8] {
        std::array::from_fn(|index| self.blocks.word(u64::from(segment) * 8 + index as u64))
    }
}
