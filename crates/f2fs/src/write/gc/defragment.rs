//! The room for data that defragmentation writes again.
//! Not here: which data this is, and writing it (`vfs/optional/write_again.rs`).

use base::{Error, Result};

use crate::core::Core;
use crate::geometry::SEGMENT_BLOCKS;
use crate::write::gc::SEGMENTS_FREE_MIN;
use crate::write::writer::Writer;

impl Writer {
    /// Fails with `NoSpace` unless `bytes` of data fit into free segments, and enough are left for
    /// everything else.
    pub(crate) fn check_room_to_move(&self, volume: &Core, bytes: u64) -> Result<()> {
        let state = self.lock()?;
        let blocks = bytes >> volume.geometry().block_size.shift();
        let segments = (blocks + state.to_write(volume).blocks()).div_ceil(SEGMENT_BLOCKS);
        let has_room = state.free_segments() > segments + SEGMENTS_FREE_MIN;
        if has_room { Ok(()) } else { Err(Error::NoSpace) }
    }
}
