//! What an operation changes beside nodes: reservations, placements, and blocks that are still
//! read. Not here: blocks of atomic writes (`pending`).

use std::ops::Range;

use base::{Error, FileBlock, FsBlock, InodeNumber, Result};

use super::placements::Placed;
use crate::core::Core;
use crate::write::writer::WriterState;

/// The reservations of an operation.
pub(crate) struct Reserved<'s> {
    pub(in crate::write) state: &'s mut WriterState,
    /// The placements that the operation has taken, by their tokens.
    taken: Vec<(u64, Placed)>,
}

impl<'s> Reserved<'s> {
    pub(in crate::write) fn new(state: &'s mut WriterState) -> Self {
        Self { state, taken: Vec::new() }
    }

    /// Puts back the placements that the operation has taken, which has failed: their owner ends
    /// them.
    pub(crate) fn put_back_placements(&mut self) {
        for (token, placed) in self.taken.drain(..) {
            self.state.placements.put_back(token, placed);
        }
    }

    /// Reserves blocks for data in the cache.
    pub(crate) fn add(&mut self, blocks: u64) {
        self.state.reserved += blocks;
    }

    /// Releases reserved blocks, which are in use now, or whose data was dropped.
    pub(crate) fn remove(&mut self, blocks: u64) {
        self.state.reserved = self.state.reserved.saturating_sub(blocks);
    }

    /// Fails with `NoSpace` if users cannot have `count` more blocks: before nodes for all of them
    /// are made in memory.
    pub(crate) fn check_blocks(&self, volume: &Core, count: u64) -> Result<()> {
        if self.state.has_blocks(volume, count) { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Keeps the old blocks of `part` of a file while reads that have begun earlier may read them.
    /// The caller has changed their addresses, and then the generation of the map.
    pub(crate) fn hold(
        &mut self,
        volume: &Core,
        (inode, part): (InodeNumber, &Range<FileBlock>),
        blocks: &[Range<FsBlock>],
    ) {
        self.state.held.hold(volume, (inode, part), blocks);
    }

    /// Removes a placement whose data is on the device.
    pub(crate) fn take_placement(&mut self, token: u64) -> Option<Placed> {
        let placed = self.state.placements.remove(token)?;
        self.taken.push((token, placed.clone()));
        Some(placed)
    }
}
