//! Discards of all free space (FITRIM). Not here: discards of freed space (`journal/discard.rs`).

use std::ops::Range;

use base::{Error, FsBlock, GroupNumber, Result};

use super::Allocator;
use super::groups::Group;

impl Allocator {
    /// See [`Volume::trim`](crate::Volume::trim).
    pub(crate) fn discard_free(&self, bytes: Range<u64>, bytes_min: u64) -> Result<u64> {
        let geometry = self.core.geometry();
        let block_bytes = u64::from(geometry.block_size.bytes());
        let [start, end, min] = [bytes.start, bytes.end, bytes_min].map(|at| at / block_bytes);
        let is_sound = bytes.end.saturating_sub(bytes.start) >= block_bytes
            && start < geometry.block_count
            && geometry.clusters_for(min) <= geometry.clusters_per_group().into();
        if !is_sound {
            return Err(Error::InvalidArgument("the range or the minimum length is invalid"));
        }
        let blocks = start..end.min(geometry.block_count);
        let mut trimmed = 0;
        for number in (0..geometry.group_count).map(GroupNumber) {
            let first = geometry.group_start(number).0;
            let last = first + geometry.blocks_in_group(number);
            if last <= blocks.start || first >= blocks.end {
                continue;
            }
            // Locked until the discards are done, so that no free block is allocated concurrently.
            let group = &mut *self.groups[number.0 as usize].lock();
            // Under the lock, for `wait_for_trims`.
            self.journal.check()?;
            if self.journal.is_clean() {
                return Err(Error::ReadOnly);
            }
            match self.load_group(number, group) {
                Ok(()) => {}
                // Nothing is allocated in a damaged group, and its free blocks are unknown.
                Err(Error::Corrupt(_)) => continue,
                Err(error) => return Err(error),
            }
            trimmed += self.trim_group(number, group, &blocks, min)?;
        }
        self.drop_indexes();
        Ok(trimmed * block_bytes)
    }

    /// Waits until no trim discards anything any more. The volume is closed, shut down or marked as
    /// clean, so that trims find no further group that they may discard.
    pub(crate) fn wait_for_trims(&self) {
        self.groups.iter().for_each(|group| drop(group.lock()));
    }

    /// Discards the free blocks of one group. Returns their number.
    fn trim_group(
        &self,
        number: GroupNumber,
        group: &Group,
        blocks: &Range<u64>,
        min: u64,
    ) -> Result<u64> {
        let geometry = self.core.geometry();
        let shift = geometry.block_size.shift();
        let base = u64::from(number.0) * u64::from(geometry.clusters_per_group());
        let mut trimmed = 0;
        for extent in group.free.iter().flat_map(|free| free.iter()) {
            let start = geometry.cluster_start(base + u64::from(extent.start)).0;
            let end = geometry.cluster_start(base + u64::from(extent.end())).0;
            let (start, end) = (start.max(blocks.start), end.min(blocks.end));
            let length = end.saturating_sub(start);
            if length == 0 || length < min {
                continue;
            }
            let at = geometry.block_size.device_offset(FsBlock(start));
            self.core.device().discard(at.expect("the block is in the volume"), length << shift)?;
            trimmed += length;
        }
        Ok(trimmed)
    }
}
