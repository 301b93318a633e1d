//! Summaries: the node that refers to each block, in the checkpoint pack for the segments of the
//! logs, and in the segment summary area for all others. The pack's summaries also have the journal
//! of the segment information table. Not here: the journal of the node address table
//! (`checkpoint`).

use std::collections::{BTreeMap, BTreeSet};

use base::view::view_at;
use base::{Error, FsBlock, Location, Problem, Result};
use iomap::MetadataBuffer;

use crate::checkpoint::{Checkpoint, journal_bytes, journal_offset, read_block, summary_entries};
use crate::core::Core;
use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::ondisk::checkpoint::{COMPACT_SUMMARIES, FAST_BOOT, UNMOUNTED};
use crate::ondisk::sit::{RawSitEntry, RawSitJournalEntry};
use crate::ondisk::summary::{RawSummary, RawSummaryFooter};

/// The number of logs of data, and of nodes: hot, warm, cold.
pub(crate) const LOGS: usize = 3;
/// The log of data whose summary has the journal of the segment information table.
const COLD: usize = 2;
/// The allocation type of a log that fills holes.
const FILLS_HOLES: u8 = 1;
const JOURNAL: &str = "SIT journal";
const SUMMARY: &str = "summary";

/// The kinds of blocks of the main area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockKind {
    Data,
    Node,
}

impl BlockKind {
    /// Returns the index in pairs of numbers: first that of data, then that of nodes.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Data => 0,
            Self::Node => 1,
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Data => Self::Node,
            Self::Node => Self::Data,
        }
    }
}

/// A log, which writes to one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Log {
    pub(crate) kind: BlockKind,
    /// Hot, warm, cold.
    pub(crate) index: usize,
    pub(crate) segment: u32,
    /// The next block in the segment.
    pub(crate) offset: u16,
    /// Whether the log fills holes in its segment, and does not only append.
    pub(crate) fills_holes: bool,
}

impl Log {
    /// Returns the logs of a checkpoint: those of data, then those of nodes.
    pub(crate) fn all(checkpoint: &Checkpoint) -> [Self; 2 * LOGS] {
        let raw = &checkpoint.raw;
        std::array::from_fn(|number| {
            let index = number % LOGS;
            let (kind, segment, offset) = if number < LOGS {
                (BlockKind::Data, &raw.data_segments[index], &raw.data_offsets[index])
            } else {
                (BlockKind::Node, &raw.node_segments[index], &raw.node_offsets[index])
            };
            let fills_holes = raw.allocation_types[number] == FILLS_HOLES;
            Self { kind, index, segment: segment.get(), offset: offset.get(), fills_holes }
        })
    }

    /// Checks that each log has a segment of the main area alone: the next checkpoint writes their
    /// summaries. Errors: `Corrupt`.
    pub(crate) fn check_all(geometry: &Geometry, checkpoint: &Checkpoint) -> Result<()> {
        let corrupt =
            |problem| Err(Error::corrupt("checkpoint", Location::block(checkpoint.start), problem));
        let max = u64::from(geometry.main_segments()).saturating_sub(1);
        let mut segments = BTreeSet::new();
        for log in Self::all(checkpoint) {
            let found = u64::from(log.segment);
            if found > max {
                return corrupt(Problem::Range { field: "segment of a log", found, min: 0, max });
            }
            if !segments.insert(log.segment) {
                return corrupt(Problem::Repeated("segment of a log"));
            }
        }
        Ok(())
    }
}

/// The summaries in a checkpoint pack.
#[derive(Debug, Default)]
pub(crate) struct PackSummaries {
    /// The entries that override those of the segment information table.
    pub(crate) sit_journal: BTreeMap<u32, RawSitEntry>,
    /// The summaries of the logs of data.
    data: Vec<Vec<RawSummary>>,
    /// The summaries of the logs of nodes. Empty if the pack does not have them.
    nodes: Vec<Vec<RawSummary>>,
}

impl PackSummaries {
    /// Reads the summaries of the current pack.
    pub(crate) fn read(volume: &Core) -> Result<Self> {
        let checkpoint = volume.checkpoint();
        let mut summaries = if checkpoint.has(COMPACT_SUMMARIES) {
            Self::read_compact(volume)?
        } else {
            Self::read_normal(volume)?
        };
        if checkpoint.has(UNMOUNTED | FAST_BOOT) {
            // They are the last ones before the end of the pack.
            let start = u64::from(checkpoint.raw.pack_blocks.get()).saturating_sub(1 + LOGS as u64);
            for log in 0..LOGS as u64 {
                let (block, location) = pack_block(volume, start + log)?;
                let count = summary_entries(volume.geometry()).min(SEGMENT_BLOCKS as usize);
                summaries.nodes.push(entries(&block, 0, count, location)?);
            }
        }
        Ok(summaries)
    }

    /// Returns whether the pack has the summaries of the logs of nodes.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Returns the owner of the block at `index` in the segment of a log. `None` if the pack does
    /// not have it.
    pub(crate) fn owner(&self, log: &Log, index: usize) -> Option<&RawSummary> {
        let logs = if log.kind == BlockKind::Data { &self.data } else { &self.nodes };
        logs.get(log.index)?.get(index)
    }

    fn read_normal(volume: &Core) -> Result<Self> {
        let geometry = volume.geometry();
        let start = u64::from(volume.checkpoint().raw.summary_start.get());
        let mut summaries = Self::default();
        for log in 0..LOGS {
            let (block, location) = pack_block(volume, start + log as u64)?;
            let count = summary_entries(geometry).min(SEGMENT_BLOCKS as usize);
            summaries.data.push(entries(&block, 0, count, location)?);
            if log == COLD {
                let at = journal_offset(geometry);
                summaries.sit_journal = sit_journal(geometry, &block, at, location)?;
            }
        }
        Ok(summaries)
    }

    /// Reads the compact form: both journals, and then only the entries that the logs need.
    fn read_compact(volume: &Core) -> Result<Self> {
        let geometry = volume.geometry();
        let mut number = u64::from(volume.checkpoint().raw.summary_start.get());
        let (mut block, mut location) = pack_block(volume, number)?;
        let sit_journal = sit_journal(geometry, &block, journal_bytes(geometry), location)?;
        let mut at = 2 * journal_bytes(geometry);
        let mut data = Vec::new();
        for log in Log::all(&volume.checkpoint()).iter().take(LOGS) {
            let segment = SEGMENT_BLOCKS as usize;
            let count = if log.fills_holes { segment } else { segment.min(log.offset.into()) };
            let mut of_log = Vec::with_capacity(count);
            while of_log.len() < count {
                let end = block.len() - size_of::<RawSummaryFooter>();
                let fitting = end.saturating_sub(at) / size_of::<RawSummary>();
                if fitting == 0 {
                    number += 1;
                    (block, location) = pack_block(volume, number)?;
                    at = 0;
                    continue;
                }
                let taken = fitting.min(count - of_log.len());
                of_log.extend(entries(&block, at, taken, location)?);
                at += taken * size_of::<RawSummary>();
            }
            data.push(of_log);
        }
        Ok(Self { sit_journal, data, nodes: Vec::new() })
    }
}

/// The summary of a segment in the segment summary area.
#[derive(Clone, Debug)]
pub(crate) struct AreaSummary {
    buffer: MetadataBuffer,
    /// The first byte in the block.
    start: usize,
    bytes: usize,
}

impl AreaSummary {
    /// Reads the summary of a segment of the main area.
    pub(crate) fn read(volume: &Core, segment: u32) -> Result<Self> {
        let geometry = volume.geometry();
        let bytes = geometry.summary_bytes();
        let per_block = (geometry.block_size.len() / bytes).max(1) as u32;
        let at = FsBlock(geometry.ssa.start.0 + u64::from(segment / per_block));
        let location = Location::block(at);
        if !geometry.ssa.contains(&at) {
            let (min, max) = (geometry.ssa.start.0, geometry.ssa.end.0.saturating_sub(1));
            let problem = Problem::Range { field: "block", found: at.0, min, max };
            return Err(Error::corrupt(SUMMARY, location, problem));
        }
        let buffer = volume.metadata().read(at, SUMMARY, location)?;
        Ok(Self { buffer, start: (segment % per_block) as usize * bytes, bytes })
    }

    /// Returns the location of the summary, or of the entry at `index`.
    pub(crate) fn location(&self, index: usize) -> Location {
        let byte = self.start + index * size_of::<RawSummary>();
        Location::block(self.buffer.block()).at_byte(byte as u64)
    }

    /// Returns the owner of the segment's block at `index`.
    pub(crate) fn owner(&self, index: usize) -> Result<&RawSummary> {
        let byte = self.start + index * size_of::<RawSummary>();
        view_at(&self.buffer, byte, SUMMARY, self.location(index))
    }

    /// Returns the footer.
    pub(crate) fn footer(&self) -> Result<&RawSummaryFooter> {
        let byte = self.start + self.bytes - size_of::<RawSummaryFooter>();
        let location = Location::block(self.buffer.block()).at_byte(byte as u64);
        view_at(&self.buffer, byte, SUMMARY, location)
    }
}

/// Reads block `number` of the pack, which must lie between its first and its last one.
fn pack_block(volume: &Core, number: u64) -> Result<(Vec<u8>, Location)> {
    let checkpoint = volume.checkpoint();
    let at = FsBlock(checkpoint.start.0 + number);
    let max = u64::from(checkpoint.raw.pack_blocks.get()).saturating_sub(2);
    if !(1..=max).contains(&number) {
        let problem = Problem::Range { field: "block of the pack", found: number, min: 1, max };
        return Err(Error::corrupt(SUMMARY, Location::block(checkpoint.start), problem));
    }
    Ok((read_block(volume.device(), volume.geometry(), at)?, Location::block(at)))
}

fn entries(block: &[u8], at: usize, count: usize, location: Location) -> Result<Vec<RawSummary>> {
    let entry = |index| {
        let byte = at + index * size_of::<RawSummary>();
        view_at::<RawSummary>(block, byte, SUMMARY, location).cloned()
    };
    (0..count).map(entry).collect()
}

fn sit_journal(
    geometry: &Geometry,
    block: &[u8],
    at: usize,
    location: Location,
) -> Result<BTreeMap<u32, RawSitEntry>> {
    let count: &zerocopy::little_endian::U16 = view_at(block, at, JOURNAL, location)?;
    let found = u64::from(count.get());
    let room = journal_bytes(geometry) - size_of::<u16>();
    let max = (room / size_of::<RawSitJournalEntry>()) as u64;
    if found > max {
        let problem = Problem::Range { field: "entries", found, min: 0, max };
        return Err(Error::corrupt(JOURNAL, location.at_byte(at as u64), problem));
    }
    let max = geometry.main_segments().saturating_sub(1);
    let entry = |index: usize| {
        let byte = at + size_of::<u16>() + index * size_of::<RawSitJournalEntry>();
        let raw: &RawSitJournalEntry = view_at(block, byte, JOURNAL, location)?;
        let segment = raw.segment.get();
        if segment > max {
            let (found, max) = (segment.into(), max.into());
            let problem = Problem::Range { field: "segment", found, min: 0, max };
            return Err(Error::corrupt(JOURNAL, location.at_byte(byte as u64), problem));
        }
        Ok((segment, raw.entry.clone()))
    };
    (0..found as usize).map(entry).collect()
}
