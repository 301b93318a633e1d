//! Data whose addresses have moved to other nodes: collapsing and inserting ranges does that. A
//! checkpoint copies it to new blocks. Not here: which blocks these are (`changes`), and the copy
//! of data (`write/gc/mover.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, FsBlock, Result};

use crate::core::Core;
use crate::overlay::Owner;
use crate::summaries::Log;
use crate::write::gc::{DataBlock, Owners};
use crate::write::writer::WriterState;

impl WriterState {
    /// Copies blocks of the last checkpoint to new ones, if other addresses refer to them now. The
    /// summaries of the old blocks must stay as they are, since the segment summary area has no
    /// second copy. The pack has the summaries of its logs, so blocks there are not copied. Returns
    /// whether there are any others.
    pub(crate) fn copy_shifted(
        &mut self,
        volume: &Arc<Core>,
        shifted: &[(FsBlock, Owner)],
    ) -> Result<bool> {
        let logs = Log::all(&volume.checkpoint()).map(|log| log.segment);
        let mut owners = Owners::new(volume);
        let mut by_segment: BTreeMap<u32, Vec<DataBlock>> = BTreeMap::new();
        for (block, owner) in shifted {
            let (segment, _) = volume.geometry().segment_of(*block);
            if !logs.contains(&segment) {
                let data = owners.data(owner.nid, owner.index.into(), *block)?;
                by_segment.entry(segment).or_default().extend(data);
            }
        }
        for (segment, data) in &by_segment {
            let moved = match self.move_data(volume, *segment, data) {
                Err(Error::Io(_)) => self.move_readable(volume, *segment, data),
                moved => moved,
            };
            match moved {
                // The summaries of the rest are wrong after a power cut before the end of this
                // checkpoint.
                Err(Error::NoSpace) => break,
                moved => moved?,
            }
        }
        Ok(!by_segment.is_empty())
    }

    /// Copies the blocks that can be read. The summaries of the others are wrong after a power cut
    /// before the end of this checkpoint.
    fn move_readable(
        &mut self,
        volume: &Arc<Core>,
        segment: u32,
        data: &[DataBlock],
    ) -> Result<()> {
        for block in data.chunks(1) {
            match self.move_data(volume, segment, block) {
                Err(Error::Io(error)) => {
                    tracing::warn!(%error, segment, "a moved block of data is not copied")
                }
                moved => moved?,
            }
        }
        Ok(())
    }
}
