//! The logs that a new checkpoint writes to. Each begins in a segment that the last checkpoint does not use.

use std::collections::BTreeSet;

use base::{DeviceOffset, FsBlock, Result};

use super::space::{Space, segment_of};
use super::summary_blocks::{Summary, SummaryBlocks};
use crate::geometry::SEGMENT_BLOCKS;
use crate::ondisk::summary::RawSummary;
use crate::summaries::{BlockKind, LOGS};
use crate::volume::Volume;

/// A log, by what is written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogName {
    /// Blocks of directories.
    HotData,
    /// Inodes and direct nodes of directories.
    HotNodes,
    /// Inodes and direct nodes of other files.
    WarmNodes,
    /// Indirect nodes.
    ColdNodes,
}

impl LogName {
    fn number(self) -> usize {
        match self {
            Self::HotData => 0,
            Self::HotNodes => LOGS,
            Self::WarmNodes => LOGS + 1,
            Self::ColdNodes => LOGS + 2,
        }
    }
}

/// The place of the next block of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    pub(crate) offset: u16,
}

/// The six logs: hot, warm and cold ones of data, then of nodes.
pub(crate) struct Logs<'v> {
    volume: &'v Volume,
    places: [Place; 2 * LOGS],
}

impl<'v> Logs<'v> {
    /// Begins each log in a free segment. The types of segments have the numbers of the logs. Errors: `NoSpace` if there are too few.
    pub(crate) fn begin(
        volume: &'v Volume,
        space: &mut Space<'_>,
        summaries: &mut SummaryBlocks<'_>,
    ) -> Result<Self> {
        let mut places = [Place { segment: 0, offset: 0 }; 2 * LOGS];
        for (number, place) in places.iter_mut().enumerate() {
            place.segment = space.take_segment(number as u16)?;
            summaries.begin(place.segment, kind_of(number));
        }
        Ok(Self { volume, places })
    }

    /// Writes a block to a log, on behalf of its owner. Returns the block's address.
    pub(crate) fn append(
        &mut self,
        log: LogName,
        owner: RawSummary,
        contents: &[u8],
        space: &mut Space<'_>,
        summaries: &mut SummaryBlocks<'_>,
    ) -> Result<FsBlock> {
        let geometry = self.volume.geometry();
        let number = log.number();
        if u64::from(self.places[number].offset) == SEGMENT_BLOCKS {
            let segment = space.take_segment(number as u16)?;
            summaries.begin(segment, kind_of(number));
            self.places[number] = Place { segment, offset: 0 };
        }
        let place = &mut self.places[number];
        let start = geometry.main.start.0 + u64::from(place.segment) * SEGMENT_BLOCKS;
        let at = FsBlock(start + u64::from(place.offset));
        let offset = DeviceOffset(at.0 << geometry.block_size.shift());
        self.volume.device().write_at(offset, contents)?;
        space.set_used(at, number as u16)?;
        let (segment, index) = segment_of(geometry, at);
        summaries.set(segment, index, kind_of(number), owner)?;
        place.offset += 1;
        Ok(at)
    }

    /// Returns the places of the logs of data, then of nodes.
    pub(crate) fn places(&self) -> &[Place; 2 * LOGS] {
        &self.places
    }

    /// Returns the segments of the logs.
    pub(crate) fn segments(&self) -> BTreeSet<u32> {
        self.places.iter().map(|place| place.segment).collect()
    }

    /// Returns the summaries of the logs' segments, in the order of the logs.
    pub(crate) fn summaries<'s>(&self, summaries: &'s SummaryBlocks<'_>) -> Vec<&'s Summary> {
        self.places.iter().filter_map(|place| summaries.get(place.segment)).collect()
    }
}

fn kind_of(number: usize) -> BlockKind {
    if number < LOGS { BlockKind::Data } else { BlockKind::Node }
}
