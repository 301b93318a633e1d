//! Updates in place (IPU in Linux): data that overwrites its old blocks.
//!
//! - Before a sync, a few blocks are overwritten, so that the sync need not write nodes with new
//!   addresses. Many blocks are written faster to new places.
//! - All data of cold files is overwritten, so that files which are read as a whole are not
//!   scattered.
//!
//! Linux does both.
//!
//! The lock of changes is held while the addresses are looked up and the write is recorded. Until
//! it has ended, cleaning does not move the blocks, and no other file gets them
//! (`WriterState::placements`).

use std::ops::Range;
use std::sync::atomic::Ordering;

use base::{FileBlock, FsBlock, Result};

use super::LiveInode;
use crate::edit::nid_of;
use crate::inode::map::BlockState;
use crate::ondisk::node::advise;
use crate::overlay::Change;
use crate::temperature::Temperature;
use crate::write::follows_removal;

/// The maximum number of blocks that are overwritten for a sync. Linux has 8 (`min_fsync_blocks`),
/// with which a sync of 64 KiB takes as long again on devices with a latency.
const BLOCKS_MAX: u64 = 16;

impl LiveInode {
    /// Lets the data of the next few blocks overwrite the old one.
    pub(crate) fn will_sync(&self) {
        self.overwrites_left.store(BLOCKS_MAX, Ordering::Relaxed);
    }

    /// Gives data new blocks until the same is called with `false`.
    pub(crate) fn set_moving(&self, is_moving: bool) {
        match is_moving {
            true => self.movers.fetch_add(1, Ordering::AcqRel),
            false => self.movers.fetch_sub(1, Ordering::AcqRel),
        };
    }

    /// Returns the token and the blocks of an overwrite of the first of `blocks`. `None` if they
    /// need new ones.
    pub(super) fn place_over(
        &self,
        blocks: &Range<FileBlock>,
        temperature: Temperature,
    ) -> Result<Option<(u64, Range<FsBlock>)>> {
        let left = self.overwrites_left.load(Ordering::Relaxed);
        let count = blocks.end.0 - blocks.start.0;
        let is_cold = temperature == Temperature::Cold;
        let is_moving = self.movers.load(Ordering::Acquire) > 0;
        if count > left && !is_cold || is_moving || self.has_atomic_write() {
            return Ok(None);
        }
        let writer = self.volume.writer()?;
        let geometry = self.volume.geometry();
        let placed = writer.place_over(self.volume.core(), (self.number, blocks.start), || {
            let (is_unsyncable, has_changed) = {
                let overlay = self.volume.overlay_or_new().read();
                let own = overlay.node(nid_of(self.number));
                let has_changed = matches!(own, Some(Change::Contents(node)) if !node.is_synced);
                (overlay.is_unsyncable(self.number), has_changed)
            };
            // The next checkpoint moves the blocks of a range that was collapsed or inserted.
            if is_unsyncable {
                return Ok(None);
            }
            // The sync writes a checkpoint, with which the data appears and the removed name is
            // gone.
            if !is_cold && follows_removal(self.volume.core(), &self.current())? {
                return Ok(None);
            }
            // Preallocated blocks behind the size that a power cut leaves must stay zeroed. That
            // size may be less than the one in memory.
            let current = self.current();
            if has_changed && current.advise()? & advise::KEEP_SIZE != 0 {
                return Ok(None);
            }
            let unit = u64::from(geometry.block_size.bytes());
            let end = blocks.end.min(FileBlock(current.attributes().size.div_ceil(unit)));
            if end <= blocks.start {
                return Ok(None);
            }
            let piece = current.piece_at(blocks.start, end)?;
            Ok(match piece.state {
                BlockState::Mapped(first) => {
                    let length = piece.end.min(end).0 - blocks.start.0;
                    Some(first..FsBlock(first.0 + length))
                }
                _ => None,
            })
        })?;
        if let Some((_, range)) = &placed {
            let used = range.end.0 - range.start.0;
            self.overwrites_left.store(left.saturating_sub(used), Ordering::Relaxed);
        }
        Ok(placed)
    }
}
