//! Cleaning of sections that the caller has chosen. Not here: the move (`mover.rs`).

use std::ops::RangeInclusive;
use std::sync::Arc;

use base::{Error, FsBlock, Result};
use fs::RangeCleaning;

use super::mover::Cleaned;
use crate::core::Core;
use crate::write::writer::Writer;

impl Writer {
    /// Cleans the sections that have `blocks`, up to the first one that does not become free. With
    /// `skips_kept`, goes on after sections with blocks that stay.
    pub(crate) fn clean_range(
        &self,
        volume: &Arc<Core>,
        blocks: RangeInclusive<FsBlock>,
        skips_kept: bool,
    ) -> Result<RangeCleaning> {
        let geometry = volume.geometry();
        let (first, last) = blocks.into_inner();
        if first < geometry.main.start || last < first || last >= geometry.main.end {
            return Err(Error::InvalidArgument("blocks outside of the main area"));
        }
        let per_section = geometry.segments_per_section;
        let section_of = |block| geometry.segment_of(block).0 / per_section;
        for section in section_of(first)..=section_of(last) {
            base::cancellation::check()?;
            match self.clean_chosen(volume, section)? {
                RangeCleaning::Done => {}
                RangeCleaning::Kept if skips_kept => {}
                result => return Ok(result),
            }
        }
        Ok(RangeCleaning::Done)
    }

    fn clean_chosen(&self, volume: &Arc<Core>, section: u32) -> Result<RangeCleaning> {
        let mut state = self.lock()?;
        // The use of blocks is known as of the last checkpoint.
        self.write_checkpoint(&mut state, volume, false)?;
        let segments = volume.geometry().segments_of(section);
        if segments.clone().all(|segment| state.space.is_empty(segment)) {
            return Ok(RangeCleaning::Empty);
        }
        let logs = state.logs.segments();
        if segments.clone().any(|segment| logs.contains(&segment)) {
            return Ok(RangeCleaning::InLog);
        }
        // Blocks that no checkpoint has stay: data in flight, and that of atomic writes.
        let is_cleanable = state.space.sections(&logs).any(|other| other.number == section);
        if !is_cleanable {
            return Ok(RangeCleaning::Kept);
        }
        match state.clean_section(volume, section)? {
            Cleaned::Moved(_) => {}
            Cleaned::Pinned(_) | Cleaned::Unmovable => return Ok(RangeCleaning::Kept),
            Cleaned::NoRoom => return Err(Error::NoSpace),
        }
        self.write_checkpoint(&mut state, volume, false)?;
        let is_free = segments.clone().all(|segment| state.space.is_empty(segment));
        Ok(if is_free { RangeCleaning::Done } else { RangeCleaning::Kept })
    }
}
