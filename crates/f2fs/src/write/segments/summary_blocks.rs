//! Summaries in memory, which are changed and written to the segment summary area.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use base::{FsBlock, Location, Result};
use zerocopy::IntoBytes;

use super::space::Space;
use crate::checkpoint::read_block;
use crate::core::Core;
use crate::geometry::SEGMENT_BLOCKS;
use crate::nat::Nid;
use crate::node::footer;
use crate::ondisk::summary::{RawSummary, RawSummaryFooter};
use crate::overlay::Owner;
use crate::summaries::{AreaSummary, BlockKind, Log, PackSummaries};
use crate::write::checkpoint::batch::Batch;

/// The summary of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    kind: BlockKind,
    entries: Vec<RawSummary>,
}

impl Summary {
    /// Returns the summary of a segment without blocks in use.
    pub(crate) fn empty(kind: BlockKind) -> Self {
        let entry = RawSummary { nid: 0.into(), version: 0, index: 0.into() };
        Self { kind, entries: vec![entry; SEGMENT_BLOCKS as usize] }
    }

    pub(crate) fn kind(&self) -> BlockKind {
        self.kind
    }

    /// Returns the owner of the segment's block at `index`.
    pub(crate) fn owner(&self, index: u64) -> &RawSummary {
        &self.entries[index as usize]
    }

    /// Returns the bytes of the summary, with empty journals.
    pub(crate) fn to_bytes(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let entries = self.entries.as_bytes();
        bytes[..entries.len()].copy_from_slice(entries);
        let kind = u8::from(self.kind == BlockKind::Node);
        let footer = RawSummaryFooter { kind, checksum: 0.into() };
        bytes[length - size_of::<RawSummaryFooter>()..].copy_from_slice(footer.as_bytes());
        bytes
    }
}

/// The owners of the blocks of a segment.
pub(crate) enum SegmentOwners<'s> {
    Changed(&'s Summary),
    Stored(AreaSummary),
}

impl SegmentOwners<'_> {
    /// Returns the owner of the segment's block at `index`.
    pub(crate) fn of(&self, index: u64) -> Result<Owner> {
        let raw = match self {
            Self::Changed(summary) => summary.owner(index),
            Self::Stored(summary) => summary.owner(index as usize)?,
        };
        Ok(Owner { nid: Nid(raw.nid.get()), index: raw.index.get() })
    }
}

/// The summaries of segments that were changed since the last checkpoint, and those that only its
/// pack has.
#[derive(Debug, Default)]
pub(crate) struct SummaryBlocks {
    summaries: BTreeMap<u32, Summary>,
}

impl SummaryBlocks {
    /// Loads the summaries of the segments that the logs of the checkpoint write to, which only
    /// `pack` has.
    pub(crate) fn of(volume: &Core, space: &Space, pack: &PackSummaries) -> Result<Self> {
        let mut summaries = BTreeMap::new();
        for log in &Log::all(&volume.checkpoint()) {
            let has = log.kind == BlockKind::Data || pack.has_nodes();
            let summary = if has { of_pack(pack, log) } else { of_footers(volume, space, log)? };
            summaries.insert(log.segment, summary);
        }
        Ok(Self { summaries })
    }

    /// Returns the summary of a segment of a log.
    pub(crate) fn of_log(
        &mut self,
        (volume, space): (&Core, &Space),
        segment: u32,
        kind: BlockKind,
    ) -> Result<&Summary> {
        let summary = self.loaded(volume, space, segment)?;
        summary.kind = kind;
        Ok(summary)
    }

    /// Returns a copy of the summary of a segment.
    pub(crate) fn get(&self, volume: &Core, segment: u32) -> Result<Summary> {
        match self.summaries.get(&segment) {
            Some(summary) => Ok(summary.clone()),
            None => of_area(volume, segment),
        }
    }

    /// Returns the owners of the blocks of a segment that the last checkpoint uses.
    pub(crate) fn owners(&self, volume: &Core, segment: u32) -> Result<SegmentOwners<'_>> {
        Ok(match self.summaries.get(&segment) {
            Some(summary) => SegmentOwners::Changed(summary),
            None => SegmentOwners::Stored(AreaSummary::read(volume, segment)?),
        })
    }

    /// Returns the summary of a segment, to change it. That of a segment without blocks in use is
    /// not read.
    fn loaded(&mut self, volume: &Core, space: &Space, segment: u32) -> Result<&mut Summary> {
        Ok(match self.summaries.entry(segment) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(vacant) if !space.has_used(segment) => {
                vacant.insert(Summary::empty(BlockKind::Data))
            }
            Entry::Vacant(vacant) => vacant.insert(of_area(volume, segment)?),
        })
    }

    /// Sets the owner of a block of this kind.
    pub(crate) fn set(
        &mut self,
        (volume, space): (&Core, &Space),
        (segment, index): (u32, u64),
        kind: BlockKind,
        owner: RawSummary,
    ) -> Result<()> {
        let summary = self.loaded(volume, space, segment)?;
        // A segment that was free gets the kind of its first block.
        summary.kind = kind;
        summary.entries[index as usize] = owner;
        Ok(())
    }

    /// Adds the blocks of the summaries in their area to `batch`.
    ///
    /// The area has no second copy. The last checkpoint does not look at what changes here: entries
    /// of blocks that it does not use, and those of the segments of its logs, whose summaries it
    /// has itself.
    pub(crate) fn write(&self, volume: &Core, batch: &mut Batch<'_>) -> Result<()> {
        let geometry = volume.geometry();
        let bytes = geometry.summary_bytes();
        let per_block = (geometry.block_size.len() / bytes).max(1) as u32;
        let mut blocks: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (segment, summary) in &self.summaries {
            let number = segment / per_block;
            let at = FsBlock(geometry.ssa.start.0 + u64::from(number));
            let block = match blocks.entry(number) {
                Entry::Occupied(entry) => entry.into_mut(),
                // It is replaced as a whole.
                Entry::Vacant(vacant) if per_block == 1 => vacant.insert(vec![0; bytes]),
                Entry::Vacant(vacant) => vacant.insert(read_block(volume.device(), geometry, at)?),
            };
            let start = (segment % per_block) as usize * bytes;
            block[start..start + bytes].copy_from_slice(&summary.to_bytes(bytes));
        }
        for (number, block) in blocks {
            batch.add(FsBlock(geometry.ssa.start.0 + u64::from(number)), block.into())?;
        }
        Ok(())
    }

    /// Forgets all summaries, which the last checkpoint has written.
    pub(crate) fn clear(&mut self) {
        self.summaries.clear();
    }
}

fn of_pack(pack: &PackSummaries, log: &Log) -> Summary {
    let mut summary = Summary::empty(log.kind);
    for (index, entry) in summary.entries.iter_mut().enumerate() {
        if let Some(owner) = pack.owner(log, index) {
            *entry = owner.clone();
        }
    }
    summary
}

/// Returns the summary of a log of nodes from the footers of the nodes that the checkpoint uses.
fn of_footers(volume: &Core, space: &Space, log: &Log) -> Result<Summary> {
    let geometry = volume.geometry();
    let mut summary = Summary::empty(log.kind);
    let start = geometry.segment_start(log.segment).0;
    for (index, entry) in (0..).zip(&mut summary.entries) {
        let at = FsBlock(start + index);
        if !space.is_used(geometry, at) {
            continue;
        }
        let block = read_block(volume.device(), geometry, at)?;
        entry.nid = footer(&block, Location::block(at))?.nid;
    }
    Ok(summary)
}

fn of_area(volume: &Core, segment: u32) -> Result<Summary> {
    let area = AreaSummary::read(volume, segment)?;
    let mut summary = Summary::empty(BlockKind::Data);
    if area.footer()?.kind != 0 {
        summary.kind = BlockKind::Node;
    }
    for (index, entry) in summary.entries.iter_mut().enumerate() {
        *entry = area.owner(index)?.clone();
    }
    Ok(summary)
}
