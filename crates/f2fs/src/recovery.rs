//! Detection of nodes that fsync wrote after the last checkpoint. They are a chain in the log of warm nodes.
//! Not here: their recovery, which is not implemented.

use base::{FsBlock, Location, Result};

use crate::geometry::SEGMENT_BLOCKS;
use crate::node::footer;
use crate::ondisk::checkpoint::{CRC_RECOVERY, NO_CRC_RECOVERY};
use crate::volume::Volume;

/// Index of the log of warm nodes.
const WARM_NODES: usize = 1;
/// The bit in a footer's flags of the last node that an fsync wrote.
const FSYNC: u32 = 2;
/// The maximum number of nodes that are searched. A longer chain counts as one with an fsync.
const NODES_MAX: u32 = 1 << 20;

impl Volume {
    /// Returns whether a file was synced after the last checkpoint.
    pub(crate) fn has_synced_nodes(&self) -> Result<bool> {
        let raw = &self.checkpoint().raw;
        let main = &self.geometry().main;
        let segment = u64::from(raw.node_segments[WARM_NODES].get());
        let offset = u64::from(raw.node_offsets[WARM_NODES].get());
        let mut at = FsBlock(main.start.0 + segment * SEGMENT_BLOCKS + offset);
        for _ in 0..NODES_MAX {
            if !main.contains(&at) {
                return Ok(false);
            }
            let block = self.metadata().read(at, "node", Location::block(at))?;
            let footer = footer(&block, Location::block(at))?;
            if !self.is_after_checkpoint(footer.checkpoint_version.get()) {
                return Ok(false);
            }
            if footer.flags.get() & FSYNC != 0 {
                return Ok(true);
            }
            at = FsBlock(footer.next_block.get().into());
        }
        Ok(true)
    }

    /// Returns whether a node with this version in its footer was written after the last checkpoint.
    fn is_after_checkpoint(&self, found: u64) -> bool {
        let checkpoint = self.checkpoint();
        let version = checkpoint.raw.version.get();
        if checkpoint.has(NO_CRC_RECOVERY) {
            return version as u32 == found as u32;
        }
        let crc =
            if checkpoint.has(CRC_RECOVERY) { u64::from(checkpoint.checksum) << 32 } else { 0 };
        found == version | crc
    }
}
