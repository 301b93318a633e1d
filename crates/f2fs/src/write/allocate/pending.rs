//! Blocks of atomic writes: allocated, written, and of no node until their file commits them.
//!
//! They stay allocated across checkpoints, as blocks on their way to the device do, but the volume
//! on the device does not know them: a crash frees them. Not here: the atomic write of a file
//! (`live/atomic.rs`).

use std::ops::Range;

use base::FsBlock;

use super::reserved::Reserved;
use crate::core::Core;
use crate::write::writer::{Writer, WriterState};

impl Reserved<'_> {
    /// Keeps blocks, whose data is on the device, allocated until they belong to a file or are
    /// dropped.
    pub(crate) fn keep_pending(&mut self, blocks: &Range<FsBlock>) {
        self.state.pending.insert(blocks.start.0..blocks.end.0);
    }

    /// Frees a pending block whose data was replaced. No checkpoint and no node refers to it.
    pub(crate) fn drop_pending(&mut self, volume: &Core, block: FsBlock) {
        self.state.drop_pending(volume, block);
    }

    /// Ends the keeping of blocks, which belong to a file now.
    pub(crate) fn commit_pending(&mut self, blocks: &Range<FsBlock>) {
        self.state.pending.remove(blocks.start.0..blocks.end.0);
    }
}

impl WriterState {
    fn drop_pending(&mut self, volume: &Core, block: FsBlock) {
        if self.pending.remove(block.0..block.0 + 1) > 0 {
            let (segment, index) = volume.geometry().segment_of(block);
            self.space.release(segment, index);
        }
    }
}

impl Writer {
    /// Frees pending blocks, and releases `reserved` blocks. Works on a volume that is closed or
    /// shut down, too.
    pub(crate) fn drop_pending(
        &self,
        volume: &Core,
        blocks: impl Iterator<Item = FsBlock>,
        reserved: u64,
    ) {
        let mut state = self.lock_any();
        for block in blocks {
            state.drop_pending(volume, block);
        }
        state.reserved = state.reserved.saturating_sub(reserved);
    }
}
