//! The use of blocks in the checkpoint, and the addresses that refer to them.

use base::{FsBlock, Result};

use crate::edit::Owner;
use crate::nat::Nid;
use crate::sit::SegmentEntry;
use crate::summaries::{AreaSummary, BlockKind, Log, PackSummaries};
use crate::volume::Volume;

/// The use of blocks in the checkpoint.
#[derive(Debug)]
pub(super) struct Segments {
    pack: PackSummaries,
    /// The logs of data.
    logs: Vec<Log>,
}

impl Segments {
    pub(super) fn read(volume: &Volume) -> Result<Self> {
        let logs = Log::all(&volume.checkpoint()).into_iter();
        let logs = logs.filter(|log| log.kind == BlockKind::Data).collect();
        Ok(Self { pack: PackSummaries::read(volume)?, logs })
    }

    /// Returns whether the checkpoint has data or a node in `block`, which is in the main area.
    pub(super) fn is_used(&self, volume: &Volume, block: FsBlock) -> Result<bool> {
        let (segment, index) = volume.geometry().segment_of(block);
        let entry = SegmentEntry::read(volume, &self.pack.sit_journal, segment)?;
        Ok(entry.has(index))
    }

    /// Returns the owner of `block`, which is in the main area and was in use.
    pub(super) fn owner(&self, volume: &Volume, block: FsBlock) -> Result<Owner> {
        let (segment, index) = volume.geometry().segment_of(block);
        let index = index as usize;
        let log = self.logs.iter().find(|log| log.segment == segment);
        let raw = match log.and_then(|log| self.pack.owner(log, index)) {
            Some(raw) => raw.clone(),
            None => AreaSummary::read(volume, segment)?.owner(index)?.clone(),
        };
        Ok(Owner { nid: Nid(raw.nid.get()), index: raw.index.get() })
    }
}
