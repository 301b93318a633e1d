//! The use of blocks in the checkpoint, and the addresses that refer to them.

use std::collections::BTreeSet;

use base::{Error, FsBlock, Location, Problem, Result};

use super::STRUCTURE;
use super::chain::ChainNode;
use crate::core::Core;
use crate::nat::Nid;
use crate::overlay::Owner;
use crate::sit::SegmentEntry;
use crate::summaries::{AreaSummary, BlockKind, LOGS, Log, PackSummaries};

/// The use of blocks in the checkpoint.
#[derive(Debug)]
pub(super) struct Segments {
    pack: PackSummaries,
    /// The logs of data.
    logs: Vec<Log>,
    /// The segments to which nodes were written after the checkpoint, or will be.
    of_nodes: BTreeSet<u32>,
}

impl Segments {
    /// Reads the use of blocks. `chain` are the nodes that were written after the checkpoint.
    pub(super) fn read(volume: &Core, chain: &[ChainNode]) -> Result<Self> {
        let (logs, of_nodes): (Vec<_>, Vec<_>) =
            Log::all(&volume.checkpoint()).into_iter().partition(|log| log.kind == BlockKind::Data);
        let of_chain = chain.iter().map(|node| volume.geometry().segment_of(node.block).0);
        let of_nodes = of_nodes.into_iter().map(|log| log.segment).chain(of_chain).collect();
        Ok(Self { pack: PackSummaries::read(volume)?, logs, of_nodes })
    }

    /// Checks that a synced address, of a block in the main area, is not in a segment with nodes: a
    /// checkpoint gives each segment one type. Errors: `Corrupt`.
    pub(super) fn check_data(
        &self,
        volume: &Core,
        block: FsBlock,
        location: Location,
    ) -> Result<()> {
        let (segment, _) = volume.geometry().segment_of(block);
        let entry = SegmentEntry::read(volume, &self.pack.sit_journal, segment)?;
        // The type of an empty segment is from an earlier use.
        let has_nodes = entry.count() > 0 && usize::from(entry.kind()) >= LOGS;
        if !has_nodes && !self.of_nodes.contains(&segment) {
            return Ok(());
        }
        let problem = Problem::Invalid { field: "address among nodes", found: block.0 };
        Err(Error::corrupt(STRUCTURE, location, problem))
    }

    /// Returns whether the checkpoint has data or a node in `block`, which is in the main area.
    pub(super) fn is_used(&self, volume: &Core, block: FsBlock) -> Result<bool> {
        let (segment, index) = volume.geometry().segment_of(block);
        let entry = SegmentEntry::read(volume, &self.pack.sit_journal, segment)?;
        Ok(entry.has(index))
    }

    /// Returns the owner of `block`, which is in the main area and was in use.
    pub(super) fn owner(&self, volume: &Core, block: FsBlock) -> Result<Owner> {
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
