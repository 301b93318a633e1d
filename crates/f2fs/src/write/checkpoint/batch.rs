//! Blocks that a checkpoint writes: together, in runs of adjacent blocks.
//! Not here: the order of flushes (`pack`).

use base::{DeviceOffset, FsBlock, Result};
use iomap::BlockContents;

use crate::core::Core;
use crate::geometry::Geometry;

/// The number of blocks that are kept in memory before they are written.
const BLOCKS_MAX: usize = 2048;
/// The maximum number of blocks of a bio.
const RUN_BLOCKS_MAX: usize = 256;

/// Blocks that are to be written, in any order.
pub(crate) struct Batch<'v> {
    volume: &'v Core,
    blocks: Vec<(FsBlock, BlockContents)>,
}

impl<'v> Batch<'v> {
    /// Returns an empty batch.
    pub(crate) fn new(volume: &'v Core) -> Self {
        Self { volume, blocks: Vec::new() }
    }

    /// Adds a block, which the last checkpoint does not use. Writes the batch if it is large.
    pub(crate) fn add(&mut self, block: FsBlock, contents: BlockContents) -> Result<()> {
        self.blocks.push((block, contents));
        if self.blocks.len() < BLOCKS_MAX { Ok(()) } else { self.write() }
    }

    /// Writes all blocks of the batch. They are durable only after a flush.
    pub(crate) fn write(&mut self) -> Result<()> {
        let mut blocks = std::mem::take(&mut self.blocks);
        // The logs of several kinds of nodes take turns.
        blocks.sort_by_key(|(block, _)| *block);
        let numbers: Vec<FsBlock> = blocks.iter().map(|(block, _)| *block).collect();
        self.volume.device().write_all(runs(self.volume.geometry(), blocks))?;
        for block in numbers {
            // The cache may have what the block contained before.
            self.volume.metadata().discard(block);
        }
        Ok(())
    }
}

/// Returns blocks as runs of adjacent ones, with the runs' offsets on the device.
pub(crate) fn runs<T>(
    geometry: &Geometry,
    blocks: Vec<(FsBlock, T)>,
) -> Vec<(DeviceOffset, Vec<T>)> {
    let mut runs: Vec<(DeviceOffset, Vec<T>)> = Vec::new();
    let mut end = None;
    for (block, contents) in blocks {
        match runs.last_mut().filter(|(_, run)| end == Some(block) && run.len() < RUN_BLOCKS_MAX) {
            Some((_, run)) => run.push(contents),
            None => {
                runs.push((geometry.device_offset(block), vec![contents]));
            }
        }
        end = Some(FsBlock(block.0 + 1));
    }
    runs
}
