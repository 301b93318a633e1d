//! The six logs: where the next blocks of each kind of data and nodes are allocated.
//!
//! A log appends to a free segment (LFS in Linux), or fills the holes between blocks in use (SSR, slack space recycling).

use std::collections::BTreeSet;
use std::ops::Range;

use base::{Error, FsBlock, Result};

use super::mode::Mode;
use super::room::{Room, Wanted};
use super::space::Space;
use crate::checkpoint::Checkpoint;
use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::summaries::{LOGS, Log};
use crate::temperature::Temperature;

/// The number of free segments that logs of data leave to those of nodes, as long as they find holes.
const SEGMENTS_FOR_NODES: u64 = 6;

/// A log, by what is written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogName {
    /// Blocks of directories, and data of hot files.
    HotData,
    /// Data of other files.
    WarmData,
    /// Data of cold files, and data that was moved by cleaning.
    ColdData,
    /// Inodes and direct nodes of directories.
    HotNodes,
    /// Inodes and direct nodes of other files.
    WarmNodes,
    /// Indirect nodes.
    ColdNodes,
}

impl LogName {
    /// Returns the log for data of files.
    pub(super) fn of_data(temperature: Temperature) -> Self {
        match temperature {
            Temperature::Hot => Self::HotData,
            Temperature::Warm => Self::WarmData,
            Temperature::Cold => Self::ColdData,
        }
    }

    /// Returns the type of the log's segments, which is the log's number.
    pub(super) fn segment_type(self) -> u16 {
        self.number() as u16
    }

    fn number(self) -> usize {
        match self {
            Self::HotData => 0,
            Self::WarmData => 1,
            Self::ColdData => 2,
            Self::HotNodes => LOGS,
            Self::WarmNodes => LOGS + 1,
            Self::ColdNodes => LOGS + 2,
        }
    }
}

/// The place of the next block of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) segment: u32,
    /// The first index in the segment that the log has not passed.
    pub(super) offset: u16,
    /// Whether the log fills holes in its segment (SSR), and does not only append (LFS).
    pub(super) fills_holes: bool,
}

/// The six logs: hot, warm and cold ones of data, then of nodes.
#[derive(Debug)]
pub(super) struct Logs {
    places: [Place; 2 * LOGS],
    mode: Mode,
}

impl Logs {
    /// Returns the logs as a checkpoint has left them.
    pub(super) fn of(checkpoint: &Checkpoint, mode: Mode) -> Self {
        let place = |log: Log| Place {
            segment: log.segment,
            offset: log.offset,
            fills_holes: log.fills_holes,
        };
        Self { places: Log::all(checkpoint).map(place), mode }
    }

    /// Allocates at least one block and at most `count` blocks, which are adjacent. Leaves room for a checkpoint of `wanted` when
    /// it takes a free segment. Errors: `NoSpace`.
    ///
    /// If there is no segment for data, a log of other data is used: the segments of the logs may have the last free blocks,
    /// also before the places of the logs.
    pub(super) fn allocate(
        &mut self,
        log: LogName,
        count: u64,
        wanted: Wanted,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<Range<FsBlock>> {
        let number = log.number();
        match self.allocate_in(number, count, wanted, space, geometry) {
            Err(Error::NoSpace) if number < LOGS => {
                let of_files = [LogName::WarmData, LogName::ColdData, LogName::HotData];
                let mut others = of_files.into_iter().map(LogName::number);
                let other = others.find(|other| space.holes(self.places[*other].segment) > 1);
                self.allocate_in(other.ok_or(Error::NoSpace)?, count, wanted, space, geometry)
            }
            allocated => allocated,
        }
    }

    /// Allocates a block for a node of a checkpoint. If its log finds no other segment, that of another log of nodes is used:
    /// the segments of the logs may have the last free blocks. The last free segment is left to directory blocks as long as
    /// there are others.
    pub(super) fn allocate_for_node(
        &mut self,
        log: LogName,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<FsBlock> {
        let number = log.number();
        let others = (LOGS..2 * LOGS).filter(|other| *other != number);
        let numbers = std::iter::once(number).chain(others);
        for directory_blocks in [1, 0] {
            let wanted = Wanted { nodes: 0, directory_blocks };
            for number in numbers.clone() {
                match self.allocate_in(number, 1, wanted, space, geometry) {
                    Err(Error::NoSpace) => {}
                    block => return block.map(|block| block.start),
                }
            }
        }
        Err(Error::NoSpace)
    }

    /// Allocates blocks of the log `number`. A log leaves its last block if it cannot go on in another segment: the next
    /// checkpoint names a free block of each log.
    fn allocate_in(
        &mut self,
        number: usize,
        count: u64,
        wanted: Wanted,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<Range<FsBlock>> {
        let first = self.find_free(number, wanted, space)?;
        let segment = self.places[number].segment;
        let most = (first + count.max(1)).min(SEGMENT_BLOCKS);
        let mut end = first;
        while end < most && !space.is_taken(segment, end) {
            space.allocate(segment, end);
            end += 1;
        }
        // An index in a segment.
        self.places[number].offset = end as u16;
        let is_last = self.next_free(number, space).is_none();
        if is_last && self.begin_segment(number, wanted, space).is_err() {
            end -= 1;
            space.release(segment, end);
            self.places[number].offset = end as u16;
            if end == first {
                return Err(Error::NoSpace);
            }
        }
        let start = geometry.segment_start(segment).0;
        Ok(FsBlock(start + first)..FsBlock(start + end))
    }

    /// Moves each log to its next free block, in another segment if its own is full: a checkpoint names that block.
    pub(super) fn find_next(&mut self, space: &mut Space) -> Result<()> {
        for number in 0..2 * LOGS {
            let next = self.find_free(number, Wanted::default(), space)?;
            // An index in a segment.
            self.places[number].offset = next as u16;
            space.set_kind(self.places[number].segment, number as u16);
        }
        Ok(())
    }

    /// Returns the block that a log allocates next.
    pub(super) fn next_block(
        &mut self,
        log: LogName,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<FsBlock> {
        let number = log.number();
        let next = self.find_free(number, Wanted::default(), space)?;
        Ok(FsBlock(geometry.segment_start(self.places[number].segment).0 + next))
    }

    /// Records whether each log has blocks in use behind its next block. `is_used` is the use of blocks in the new
    /// checkpoint.
    pub(super) fn note_holes(&mut self, is_used: impl Fn(u32, u64) -> bool) {
        for place in &mut self.places {
            let mut rest = u64::from(place.offset)..SEGMENT_BLOCKS;
            place.fills_holes = rest.any(|index| is_used(place.segment, index));
        }
    }

    /// Returns the index of the next block of a log in its segment.
    fn next_free(&self, number: usize, space: &Space) -> Option<u64> {
        let place = &self.places[number];
        (place.offset.into()..SEGMENT_BLOCKS).find(|index| !space.is_taken(place.segment, *index))
    }

    /// Returns the index of the next block of a log, which continues in another segment if its own is full.
    fn find_free(&mut self, number: usize, wanted: Wanted, space: &mut Space) -> Result<u64> {
        if let Some(next) = self.next_free(number, space) {
            return Ok(next);
        }
        self.begin_segment(number, wanted, space)?;
        self.next_free(number, space).ok_or(Error::NoSpace)
    }

    /// Returns where data is written.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Continues a log in a free segment, or if there is none, in the holes of another segment, or of its own.
    fn begin_segment(&mut self, number: usize, wanted: Wanted, space: &mut Space) -> Result<()> {
        let segments = self.segments();
        // The types of segments have the numbers of the logs.
        let kind = number as u16;
        let last = self.places[number].segment;
        let free = |segment| Place { segment, offset: 0, fills_holes: false };
        let holes = |segment| Place { segment, offset: 0, fills_holes: true };
        // Data leaves free segments to nodes, which cannot fill holes between data.
        let room = space.room(&segments);
        let may_take = self.fits(wanted, room.without_segment(), space);
        let take = |space: &mut Space| {
            if !may_take {
                return None;
            }
            let segment = space.take_free_segment(kind, last, &segments);
            segment.or_else(|| space.take_empty_segment(kind, &segments, true)).map(free)
        };
        // The last resort: cleaning by Linux stops a volume whose sections have both data and nodes.
        let take_any = |space: &mut Space| {
            if !may_take {
                return None;
            }
            space.take_empty_segment(kind, &segments, false).map(free)
        };
        let fill = |space: &mut Space| space.take_segment_with_holes(kind, &segments).map(holes);
        let is_short = room.free_segments <= SEGMENTS_FOR_NODES || !may_take;
        let place = match number < LOGS && is_short && self.mode == Mode::Adaptive {
            true => fill(space).or_else(|| take(space)),
            false => take(space).or_else(|| fill(space)),
        };
        // Blocks that the log has passed may have become free since.
        let own = |space: &Space| (space.holes(last) > 0).then(|| holes(last));
        let place = place.or_else(|| take_any(space)).or_else(|| own(space));
        self.places[number] = place.ok_or(Error::NoSpace)?;
        Ok(())
    }

    /// Returns whether a checkpoint has room for `wanted`.
    pub(super) fn has_room(&self, wanted: Wanted, space: &Space) -> bool {
        self.fits(wanted, space.room(&self.segments()), space)
    }

    fn fits(&self, wanted: Wanted, room: Room, space: &Space) -> bool {
        let rest = |place: &Place| {
            let behind = u64::from(place.offset)..SEGMENT_BLOCKS;
            let free = behind.filter(|index| !space.is_taken(place.segment, *index)).count() as u64;
            free.saturating_sub(1)
        };
        room.fits(wanted, || self.places[LOGS..].iter().map(rest).sum())
    }

    /// Returns the places of the logs of data, then of nodes.
    pub(super) fn places(&self) -> &[Place; 2 * LOGS] {
        &self.places
    }

    /// Returns the segments of the logs.
    pub(super) fn segments(&self) -> BTreeSet<u32> {
        self.places.iter().map(|place| place.segment).collect()
    }

    /// Releases blocks that nothing was written to.
    pub(super) fn release(&self, blocks: Range<FsBlock>, space: &mut Space, geometry: &Geometry) {
        for block in blocks.start.0..blocks.end.0 {
            let (segment, index) = geometry.segment_of(FsBlock(block));
            space.release(segment, index);
        }
    }
}
