//! Discards of free blocks on the device: of segments that a checkpoint has made free, and on
//! request of all. The last checkpoint does not use these blocks, and neither does any change since
//! it, so nothing reads them, also after a power cut.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, FsBlock, Result};

use crate::core::Core;
use crate::geometry::SEGMENT_BLOCKS;
use crate::write::writer::{Discards, Writer, WriterState};

/// The number of segments that are looked at while changes wait.
const SEGMENTS_AT_ONCE: u32 = 64;

impl WriterState {
    /// Discards those of `segments` without any taken block. Discards are an optimization: errors
    /// are only logged.
    pub(crate) fn discard_segments(&mut self, volume: &Core, segments: Vec<u32>) {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for segment in segments.into_iter().filter(|segment| self.space.is_empty(*segment)) {
            let start = volume.geometry().segment_start(segment).0;
            add(&mut runs, start..start + SEGMENT_BLOCKS);
        }
        for run in runs {
            if self.discards != Discards::On {
                return;
            }
            if let Err(error) = discard(volume, &run) {
                tracing::warn!("discards are not tried again: {error}");
                self.discards = Discards::Failed;
            }
        }
    }
}

impl Writer {
    /// Discards free blocks in the range `bytes` of the device, in runs of at least `bytes_min`.
    /// Returns the number of bytes.
    pub(crate) fn trim(
        &self,
        volume: &Arc<Core>,
        bytes: Range<u64>,
        bytes_min: u64,
    ) -> Result<u64> {
        let geometry = volume.geometry();
        let block_bytes = u64::from(geometry.block_size.bytes());
        let [start, end, min] = [bytes.start, bytes.end, bytes_min].map(|at| at / block_bytes);
        let main = geometry.main.clone();
        let is_sound = bytes.end.saturating_sub(bytes.start) >= block_bytes
            && start < geometry.block_count
            && min <= main.end.0 - main.start.0;
        if !is_sound {
            return Err(Error::InvalidArgument("the range or the minimum length is invalid"));
        }
        // Blocks that were freed since the last checkpoint are not free yet.
        self.checkpoint(volume)?;
        self.lock()?.free_unread(volume);
        let mut trimmed = 0;
        let segments = geometry.main_segments();
        for first in (0..segments).step_by(SEGMENTS_AT_ONCE as usize) {
            // Locked until the discards are done, so that no free block is allocated concurrently.
            let state = self.lock()?;
            let mut runs = Vec::new();
            for segment in first..segments.min(first + SEGMENTS_AT_ONCE) {
                let at = geometry.segment_start(segment).0;
                for index in 0..SEGMENT_BLOCKS {
                    let block = at + index;
                    if (start..end).contains(&block) && !state.space.is_taken(segment, index) {
                        add(&mut runs, block..block + 1);
                    }
                }
            }
            for run in runs.iter().filter(|run| run.end - run.start >= min) {
                discard(volume, run)?;
                trimmed += run.end - run.start;
            }
        }
        Ok(trimmed * block_bytes)
    }
}

/// Adds blocks behind those of the last run to that run, or else as a new one.
fn add(runs: &mut Vec<Range<u64>>, blocks: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == blocks.start => last.end = blocks.end,
        _ => runs.push(blocks),
    }
}

fn discard(volume: &Core, blocks: &Range<u64>) -> Result<()> {
    let geometry = volume.geometry();
    let at = geometry.device_offset(FsBlock(blocks.start));
    volume.device().discard(at, (blocks.end - blocks.start) << geometry.block_size.shift())
}
