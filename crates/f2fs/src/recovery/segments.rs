//! The use and the owners of data blocks at the time of the checkpoint: the segment information table, the summaries, and
//! the parts of both in the checkpoint pack.
//! Not here: changes since then (`overlay`).

use std::collections::HashMap;

use base::view::view_at;
use base::{Error, FsBlock, Location, Problem, Result};

use super::overlay::Owner;
use crate::checkpoint::{journal_bytes, journal_offset, read_block, summary_entries};
use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::nat::Nid;
use crate::ondisk::checkpoint::COMPACT_SUMMARIES;
use crate::ondisk::sit::{RawSitEntry, RawSitJournalEntry};
use crate::ondisk::summary::{RawSummary, RawSummaryFooter};
use crate::volume::Volume;

/// The number of logs of data: hot, warm, cold.
const DATA_LOGS: usize = 3;
/// The log whose summary has the journal of the segment information table.
const COLD_DATA: usize = 2;
const JOURNAL: &str = "SIT journal";
const SUMMARY: &str = "summary";
const TABLE: &str = "SIT entry";

/// The use of blocks in the checkpoint.
#[derive(Debug)]
pub(super) struct Segments {
    /// Entries that override those of the segment information table.
    journal: HashMap<u32, RawSitEntry>,
    /// The segments that the data logs write to, and their summaries.
    current: Vec<(u32, Vec<RawSummary>)>,
}

impl Segments {
    pub(super) fn read(volume: &Volume) -> Result<Self> {
        let pack = PackSummaries::read(volume)?;
        let raw = &volume.checkpoint().raw;
        let mut current = Vec::new();
        for (log, summary) in pack.entries.into_iter().enumerate() {
            current.push((raw.data_segments[log].get(), summary));
        }
        Ok(Self { journal: pack.journal, current })
    }

    /// Returns whether the checkpoint has data or a node in `block`, which is in the main area.
    pub(super) fn is_used(&self, volume: &Volume, block: FsBlock) -> Result<bool> {
        let (segment, index) = segment_of(volume.geometry(), block);
        let map = match self.journal.get(&segment) {
            Some(entry) => entry.map,
            None => table_entry(volume, segment)?.map,
        };
        let byte = map.get(index / 8).copied().unwrap_or_default();
        Ok(byte & (0x80 >> (index % 8)) != 0)
    }

    /// Returns the owner of `block`, which is in the main area and was in use.
    pub(super) fn owner(&self, volume: &Volume, block: FsBlock) -> Result<Owner> {
        let geometry = volume.geometry();
        let (segment, index) = segment_of(geometry, block);
        let current = self.current.iter().find(|(current, _)| *current == segment);
        let owner = |raw: &RawSummary| Owner { nid: Nid(raw.nid.get()), index: raw.index.get() };
        if let Some((_, summary)) = current {
            if let Some(raw) = summary.get(index) {
                return Ok(owner(raw));
            }
        }
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
        let byte = (segment % per_block) as usize * bytes + index * size_of::<RawSummary>();
        Ok(owner(view_at(&buffer, byte, SUMMARY, location)?))
    }
}

/// Returns the segment of a block of the main area, and the block's index in it.
fn segment_of(geometry: &Geometry, block: FsBlock) -> (u32, usize) {
    let from_main = block.0.saturating_sub(geometry.main.start.0);
    ((from_main / SEGMENT_BLOCKS) as u32, (from_main % SEGMENT_BLOCKS) as usize)
}

fn table_entry(volume: &Volume, segment: u32) -> Result<RawSitEntry> {
    let geometry = volume.geometry();
    let per_block = (geometry.block_size.len() / size_of::<RawSitEntry>()) as u32;
    let number = u64::from(segment / per_block);
    let second = volume.checkpoint().sit_versions.is_second(number);
    let copy = if second { geometry.sit_blocks() } else { 0 };
    let at = FsBlock(geometry.sit.start.0 + copy + number);
    let location = Location::block(at);
    if number >= geometry.sit_blocks() {
        let max = geometry.sit_blocks().saturating_sub(1);
        let problem = Problem::Range { field: "block of the table", found: number, min: 0, max };
        return Err(Error::corrupt(TABLE, location, problem));
    }
    let buffer = volume.metadata().read(at, TABLE, location)?;
    let byte = (segment % per_block) as usize * size_of::<RawSitEntry>();
    Ok(view_at::<RawSitEntry>(&buffer, byte, TABLE, location)?.clone())
}

/// The summaries of the data logs in a checkpoint pack.
struct PackSummaries {
    journal: HashMap<u32, RawSitEntry>,
    entries: Vec<Vec<RawSummary>>,
}

impl PackSummaries {
    fn read(volume: &Volume) -> Result<Self> {
        if volume.checkpoint().has(COMPACT_SUMMARIES) {
            Self::read_compact(volume)
        } else {
            Self::read_normal(volume)
        }
    }

    fn read_normal(volume: &Volume) -> Result<Self> {
        let geometry = volume.geometry();
        let mut entries = Vec::new();
        let mut journal = HashMap::new();
        for log in 0..DATA_LOGS {
            let (block, location) = pack_block(volume, log as u64)?;
            let count = SEGMENT_BLOCKS as usize;
            entries.push(summaries(&block, 0, count.min(summary_entries(geometry)), location)?);
            if log == COLD_DATA {
                journal = parse_journal(geometry, &block, journal_offset(geometry), location)?;
            }
        }
        Ok(Self { journal, entries })
    }

    fn read_compact(volume: &Volume) -> Result<Self> {
        let geometry = volume.geometry();
        let raw = &volume.checkpoint().raw;
        let (mut block, mut location) = pack_block(volume, 0)?;
        let journal = parse_journal(geometry, &block, journal_bytes(geometry), location)?;
        let mut at = 2 * journal_bytes(geometry);
        let mut number = 0;
        let mut entries = Vec::new();
        for log in 0..DATA_LOGS {
            // A log that fills holes stores the entries of the whole segment.
            let fills_holes = raw.allocation_types[log] != 0;
            let offset = usize::from(raw.data_offsets[log].get());
            let count = if fills_holes {
                SEGMENT_BLOCKS as usize
            } else {
                offset.min(SEGMENT_BLOCKS as usize)
            };
            let mut of_log: Vec<RawSummary> = Vec::with_capacity(count);
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
                of_log.extend(summaries(&block, at, taken, location)?);
                at += taken * size_of::<RawSummary>();
            }
            entries.push(of_log);
        }
        Ok(Self { journal, entries })
    }
}

/// Reads a block of the checkpoint pack with data summaries.
fn pack_block(volume: &Volume, number: u64) -> Result<(Vec<u8>, Location)> {
    let checkpoint = volume.checkpoint();
    let in_pack = u64::from(checkpoint.raw.summary_start.get()) + number;
    let location = Location::block(FsBlock(checkpoint.start.0 + in_pack));
    let max = u64::from(checkpoint.raw.pack_blocks.get()).saturating_sub(2);
    if in_pack > max {
        let problem = Problem::Range { field: "block of the pack", found: in_pack, min: 1, max };
        return Err(Error::corrupt(SUMMARY, location, problem));
    }
    let at = FsBlock(checkpoint.start.0 + in_pack);
    Ok((read_block(volume.device(), volume.geometry(), at)?, location))
}

fn summaries(block: &[u8], at: usize, count: usize, location: Location) -> Result<Vec<RawSummary>> {
    let entry = |index| {
        let byte = at + index * size_of::<RawSummary>();
        view_at::<RawSummary>(block, byte, SUMMARY, location).cloned()
    };
    (0..count).map(entry).collect()
}

fn parse_journal(
    geometry: &Geometry,
    block: &[u8],
    at: usize,
    location: Location,
) -> Result<HashMap<u32, RawSitEntry>> {
    let count: &zerocopy::little_endian::U16 = view_at(block, at, JOURNAL, location)?;
    let found = u64::from(count.get());
    let room = journal_bytes(geometry) - size_of::<u16>();
    let max = (room / size_of::<RawSitJournalEntry>()) as u64;
    if found > max {
        let problem = Problem::Range { field: "entries", found, min: 0, max };
        return Err(Error::corrupt(JOURNAL, location.at_byte(at as u64), problem));
    }
    let entry = |index: usize| {
        let byte = at + size_of::<u16>() + index * size_of::<RawSitJournalEntry>();
        let raw: &RawSitJournalEntry = view_at(block, byte, JOURNAL, location)?;
        Ok((raw.segment.get(), raw.entry.clone()))
    };
    (0..found as usize).map(entry).collect()
}
