//! The check of the current checkpoint pack: limits, the segments of the logs, orphans. A pack that
//! a crash has torn is no inconsistency, so that the other pack is not checked, unless it was
//! complete and is damaged. Not here: counts (`segments`).

use base::{InodeNumber, Location, Problem};

use super::Check;
use crate::features::Feature;
use crate::geometry::SEGMENT_BLOCKS;
use crate::ondisk::checkpoint::{COMPACT_SUMMARIES, FAST_BOOT, UNMOUNTED};
use crate::summaries::{LOGS, Log};

const STRUCTURE: &str = "checkpoint";
/// The maximum number of blocks that the compact form of data summaries takes.
const COMPACT_BLOCKS_MAX: u64 = 2;

impl Check<'_> {
    fn checkpoint_range(&mut self, field: &'static str, found: u64, min: u64, max: u64) {
        if !(min..=max).contains(&found) {
            let problem = Problem::Range { field, found, min, max };
            self.report.corrupt(STRUCTURE, Location::block(self.pack()), problem);
        }
    }

    pub(super) fn check_checkpoint(&mut self) {
        let checkpoint = self.volume.checkpoint();
        if let Some(error) = checkpoint.first_block_damage.clone() {
            self.report.add(error);
        } else if let Err(error) = checkpoint.check_later() {
            self.report.add(error);
        }
        let raw = &checkpoint.raw;
        let geometry = self.geometry();
        let main = u64::from(geometry.main_segments());
        let main_blocks = geometry.main.end.0 - geometry.main.start.0;
        let is_read_only = geometry.features.has(Feature::ReadOnly);
        let min = u64::from(!is_read_only);
        self.checkpoint_range("reserved segments", raw.reserved_segments.get().into(), min, main);
        let unoffered = raw.overprovision_segments.get().into();
        self.checkpoint_range("overprovision segments", unoffered, min, main);
        let user_max = main_blocks.saturating_sub(u64::from(!is_read_only));
        self.checkpoint_range("user blocks", raw.user_block_count.get(), 1, user_max);
        self.checkpoint_range("free segments", raw.free_segments.get().into(), 0, main);
        if !is_read_only {
            self.check_pack_size();
        }
        for log in Log::all(&self.volume.checkpoint()) {
            let max = main.saturating_sub(1);
            self.checkpoint_range("segment of a log", log.segment.into(), 0, max);
            let max = SEGMENT_BLOCKS - 1;
            self.checkpoint_range("offset of a log", log.offset.into(), 0, max);
        }
        if !is_read_only {
            self.check_shared_logs();
        }
    }

    /// Checks that the pack has as many blocks as its summaries take.
    fn check_pack_size(&mut self) {
        let checkpoint = self.volume.checkpoint();
        let raw = &checkpoint.raw;
        let nodes = if checkpoint.has(UNMOUNTED | FAST_BOOT) { LOGS as u64 } else { 0 };
        let others = u64::from(raw.summary_start.get()) + nodes + 1;
        let data = u64::from(raw.pack_blocks.get()).saturating_sub(others);
        let (min, max) = match checkpoint.has(COMPACT_SUMMARIES) {
            true => (1, COMPACT_BLOCKS_MAX),
            false => (LOGS as u64, LOGS as u64),
        };
        self.checkpoint_range("blocks with data summaries", data, min, max);
    }

    /// Checks that each log has a segment of its own.
    fn check_shared_logs(&mut self) {
        let logs = Log::all(&self.volume.checkpoint());
        for (number, log) in logs.iter().enumerate() {
            if logs.iter().take(number).any(|other| other.segment == log.segment) {
                let problem = Problem::Repeated("segment of a log");
                self.report.corrupt(STRUCTURE, Location::block(self.pack()), problem);
            }
        }
    }

    /// Checks that orphans are inodes, and keeps them.
    pub(super) fn check_orphans(&mut self) {
        if let Some(error) = self.volume.checkpoint().orphan_damage.clone() {
            self.report.add(error);
        }
        for &number in &self.volume.checkpoint().orphans {
            let location = Location::block(self.pack()).in_inode(number);
            if !self.table_inodes.has(number.0) || number <= self.geometry().root {
                let problem = Problem::Missing("inode");
                self.report.corrupt("orphan", location, problem);
            } else if !self.orphans.insert(number) {
                self.report.corrupt("orphan", location, Problem::Repeated("inode"));
            }
        }
    }

    /// Returns the quota files.
    pub(super) fn quota_inodes(&self) -> impl Iterator<Item = InodeNumber> + use<> {
        self.volume.superblock().quota_inodes.into_iter().flatten()
    }
}
