//! Whole free sections for pinned files: no log writes to them, and cleaning finds nothing to gain
//! in them.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, FileBlock, FsBlock, InodeNumber, Result};

use crate::core::Core;
use crate::geometry::SEGMENT_BLOCKS;
use crate::write::allocate::logs::LogName;
use crate::write::allocate::placements::Placed;
use crate::write::gc::Tried;
use crate::write::writer::{Writer, WriterState};

/// The free segments that are left to logs and checkpoints, in addition to those for changed nodes.
const SEGMENTS_LEFT: u64 = 8;

impl Writer {
    /// Allocates blocks for all of `pieces` of a file, which have none, in free sections: all or
    /// nothing. Returns the placements and their tokens.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there are too few free sections, also after cleaning.
    pub(crate) fn place_in_sections(
        &self,
        volume: &Arc<Core>,
        inode: InodeNumber,
        pieces: &[Range<FileBlock>],
    ) -> Result<Vec<(u64, Placed)>> {
        let count: u64 = pieces.iter().map(|piece| piece.end.0 - piece.start.0).sum();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut state = self.lock()?;
        state.background.note_change();
        if !state.has_blocks(volume, count) {
            return Err(Error::NoSpace);
        }
        let (mut is_written, mut tried) = (false, Tried::default());
        loop {
            if let Some(blocks) = state.take_sections(volume, count) {
                return Ok(state.place_pieces(inode, pieces, blocks));
            }
            if !is_written && !volume.overlay_or_new().read().is_empty() {
                is_written = true;
                self.write_checkpoint(&mut state, volume, false)?;
                continue;
            }
            if !self.clean_for_sections(&mut state, volume, &mut tried)? {
                return Err(Error::NoSpace);
            }
        }
    }
}

impl WriterState {
    /// Allocates `count` blocks in free sections, in which no other block is allocated. Returns
    /// `None` if there are too few.
    fn take_sections(&mut self, volume: &Core, count: u64) -> Option<Vec<Range<FsBlock>>> {
        let geometry = volume.geometry();
        let per_section = geometry.segments_per_section;
        let wanted = count.div_ceil(geometry.section_blocks()) * u64::from(per_section);
        // The nodes with the addresses.
        let nodes = count / u64::from(geometry.addresses_per_node());
        let others = self.to_write(volume).and_nodes(nodes).blocks();
        if self.free_segments() < wanted + SEGMENTS_LEFT + others.div_ceil(SEGMENT_BLOCKS) {
            return None;
        }
        let logs = self.logs.segments();
        let kind = LogName::ColdData.segment_type();
        let mut taken: Vec<Range<FsBlock>> = Vec::new();
        // The next segment begins a section.
        let (mut last, mut left) = (per_section - 1, count);
        while left > 0 {
            let next = self.space.take_next_segment(kind, last, &logs);
            let Some(segment) = next.or_else(|| self.space.take_free_section(kind, &logs)) else {
                taken.into_iter().for_each(|blocks| {
                    self.logs.release(blocks, &mut self.space, geometry);
                });
                return None;
            };
            let length = left.min(SEGMENT_BLOCKS);
            (0..length).for_each(|index| self.space.allocate(segment, index));
            let start = geometry.segment_start(segment).0;
            match taken.last_mut() {
                Some(range) if range.end.0 == start => range.end.0 += length,
                _ => taken.push(FsBlock(start)..FsBlock(start + length)),
            }
            (last, left) = (segment, left - length);
        }
        Some(taken)
    }

    /// Places pieces of a file in `blocks`, which are as many.
    fn place_pieces(
        &mut self,
        inode: InodeNumber,
        pieces: &[Range<FileBlock>],
        blocks: Vec<Range<FsBlock>>,
    ) -> Vec<(u64, Placed)> {
        let mut placed = Vec::new();
        let mut blocks = blocks.into_iter();
        let mut rest = FsBlock(0)..FsBlock(0);
        for piece in pieces {
            let mut at = piece.start;
            while at < piece.end {
                if rest.is_empty() {
                    rest = blocks.next().expect("there are as many blocks");
                }
                let length = (piece.end.0 - at.0).min(rest.end.0 - rest.start.0);
                let end = FsBlock(rest.start.0 + length);
                let part = Placed { inode, at, range: rest.start..end, is_overwrite: false };
                placed.push((self.placements.add(part.clone()), part));
                (at.0, rest.start) = (at.0 + length, end);
            }
        }
        placed
    }
}
