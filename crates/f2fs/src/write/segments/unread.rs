//! The release of old blocks of data that no read in flight reads any more. Not here: which these
//! are (`held.rs`).

use std::collections::BTreeSet;

use crate::core::Core;
use crate::write::writer::WriterState;

impl WriterState {
    /// Frees the old blocks that are not read any more. Those that a write in place still
    /// overwrites become free with the next checkpoint after its end.
    pub(crate) fn free_unread(&mut self, volume: &Core) {
        let (mut segments, mut unread) = (BTreeSet::new(), self.held.look_again());
        for block in self.placements.overwritten() {
            unread.remove(&block);
        }
        for block in unread {
            let (segment, index) = volume.geometry().segment_of(block);
            self.space.release(segment, index);
            segments.insert(segment);
        }
        self.discard_segments(volume, segments.into_iter().collect());
    }

    /// [`free_unread`](Self::free_unread), if there may be many.
    pub(crate) fn free_unread_if_many(&mut self, volume: &Core) {
        if self.held.has_grown() {
            self.free_unread(volume);
        }
    }
}
