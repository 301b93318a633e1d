//! The six logs: where the next blocks of each kind of data and nodes are allocated.
//!
//! A log appends to a free segment (LFS in Linux), or fills the holes between blocks in use (SSR,
//! slack space recycling).

use std::collections::BTreeSet;
use std::ops::Range;

use base::{Error, FsBlock, Result};

use super::mode::Mode;
use super::room::{Room, Wanted};
use crate::checkpoint::Checkpoint;
use crate::geometry::{Geometry, SEGMENT_BLOCKS};
use crate::summaries::{BlockKind, LOGS, Log};
use crate::temperature::Temperature;
use crate::write::segments::space::{Space, kind_of_type};

/// The number of free segments that logs of data leave to those of nodes, as long as they find
/// holes.
const SEGMENTS_FOR_NODES: u64 = 6;

/// A log, by what is written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogName {
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
    pub(crate) fn of_data(temperature: Temperature) -> Self {
        match temperature {
            Temperature::Hot => Self::HotData,
            Temperature::Warm => Self::WarmData,
            Temperature::Cold => Self::ColdData,
        }
    }

    /// Returns the type of the log's segments, which is the log's number.
    pub(crate) fn segment_type(self) -> u16 {
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

/// What an allocation leaves to a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// What a checkpoint has room for afterwards, if the log takes an empty segment.
    wanted: Wanted,
    /// Whether the log may take a segment of a section of the other kind, data or nodes. The last
    /// resort: Linux stops a volume when it cleans such a section.
    may_mix: bool,
}

impl Limits {
    /// The limits of a checkpoint itself.
    pub(crate) const NONE: Self =
        Self { wanted: Wanted { nodes: 0, directory_blocks: 0 }, may_mix: true };

    /// Leaves room for `wanted`.
    pub(crate) fn leave(wanted: Wanted) -> Self {
        Self { wanted, may_mix: false }
    }

    /// Allows any segment.
    pub(crate) fn or_mix(self) -> Self {
        Self { may_mix: true, ..self }
    }
}

/// Where a log continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// In the next segment of its section.
    Next,
    /// In an empty segment of a section with segments of the same kind.
    Suiting,
    /// In a free section.
    Free,
    /// In the holes of a segment.
    Holes,
    /// In an empty segment of any section.
    Mixed,
}

/// The place of the next block of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    /// The first index in the segment that the log has not passed.
    pub(crate) offset: u16,
    /// Whether the log fills holes in its segment (SSR), and does not only append (LFS).
    pub(crate) fills_holes: bool,
}

/// The six logs: hot, warm and cold ones of data, then of nodes.
#[derive(Debug)]
pub(crate) struct Logs {
    places: [Place; 2 * LOGS],
    mode: Mode,
}

impl Logs {
    /// Returns the logs as a checkpoint has left them.
    pub(crate) fn of(checkpoint: &Checkpoint, mode: Mode) -> Self {
        let place = |log: Log| Place {
            segment: log.segment,
            offset: log.offset,
            fills_holes: log.fills_holes,
        };
        Self { places: Log::all(checkpoint).map(place), mode }
    }

    /// Sets the type of each log's segment.
    pub(crate) fn set_kinds(&self, space: &mut Space) {
        for (number, place) in (0..).zip(&self.places) {
            space.set_kind(place.segment, number);
        }
    }

    /// Allocates at least one block and at most `count` blocks, which are adjacent. Errors:
    /// `NoSpace`.
    ///
    /// If there is no segment for data, a log of other data is used: the segments of the logs may
    /// have the last free blocks, also before the places of the logs.
    pub(crate) fn allocate(
        &mut self,
        log: LogName,
        count: u64,
        limits: Limits,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<Range<FsBlock>> {
        let number = log.number();
        match self.allocate_in(number, count, limits, space, geometry) {
            Err(Error::NoSpace) if number < LOGS => {
                let of_files = [LogName::WarmData, LogName::ColdData, LogName::HotData];
                let mut others = of_files.into_iter().map(LogName::number);
                let other = others.find(|other| space.holes(self.places[*other].segment) > 1);
                self.allocate_in(other.ok_or(Error::NoSpace)?, count, limits, space, geometry)
            }
            allocated => allocated,
        }
    }

    /// Allocates a directory block of a checkpoint.
    pub(crate) fn allocate_for_directory(
        &mut self,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<FsBlock> {
        let limits = [Limits::leave(Wanted::default()), Limits::NONE];
        let allocate = |limits| self.allocate(LogName::HotData, 1, limits, space, geometry);
        first_with_room(limits, allocate).map(|block| block.start)
    }

    /// Allocates a block for a node of a checkpoint. If its log finds no other segment, that of
    /// another log of nodes is used: the segments of the logs may have the last free blocks. The
    /// last free segment is left to directory blocks as long as there are others.
    pub(crate) fn allocate_for_node(
        &mut self,
        log: LogName,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<FsBlock> {
        let number = log.number();
        let others = (LOGS..2 * LOGS).filter(|other| *other != number);
        let numbers = std::iter::once(number).chain(others);
        let leave = |directory_blocks| Limits::leave(Wanted { nodes: 0, directory_blocks });
        let limits = [leave(1), leave(0), Limits::NONE];
        let attempts = limits
            .into_iter()
            .flat_map(|limits| numbers.clone().map(move |number| (number, limits)));
        let allocate = |(number, limits)| self.allocate_in(number, 1, limits, space, geometry);
        first_with_room(attempts, allocate).map(|block| block.start)
    }

    /// Allocates blocks of the log `number`. A log leaves its last block if it cannot go on in
    /// another segment: the next checkpoint names a free block of each log.
    fn allocate_in(
        &mut self,
        number: usize,
        count: u64,
        limits: Limits,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<Range<FsBlock>> {
        let first = self.find_free(number, limits, space)?;
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
        if is_last && self.begin_segment(number, limits, space).is_err() {
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

    /// Moves each log to its next free block, in another segment if its own is full: a checkpoint
    /// names that block.
    pub(crate) fn find_next(&mut self, space: &mut Space) -> Result<()> {
        for number in 0..2 * LOGS {
            let next = self.find_free(number, Limits::NONE, space)?;
            // An index in a segment.
            self.places[number].offset = next as u16;
            space.set_kind(self.places[number].segment, number as u16);
        }
        Ok(())
    }

    /// Returns the block that a log allocates next.
    pub(crate) fn next_block(
        &mut self,
        log: LogName,
        space: &mut Space,
        geometry: &Geometry,
    ) -> Result<FsBlock> {
        let number = log.number();
        let next = self.find_free(number, Limits::NONE, space)?;
        Ok(FsBlock(geometry.segment_start(self.places[number].segment).0 + next))
    }

    /// Records whether each log has blocks in use behind its next block. `is_used` is the use of
    /// blocks in the new checkpoint.
    pub(crate) fn note_holes(&mut self, is_used: impl Fn(u32, u64) -> bool) {
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

    /// Returns the index of the next block of a log, which continues in another segment if its own
    /// is full.
    fn find_free(&mut self, number: usize, limits: Limits, space: &mut Space) -> Result<u64> {
        if let Some(next) = self.next_free(number, space) {
            return Ok(next);
        }
        self.begin_segment(number, limits, space)?;
        self.next_free(number, space).ok_or(Error::NoSpace)
    }

    /// Returns where data is written.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Continues a log in an empty segment, or if there is none, in the holes of another segment,
    /// or of its own.
    fn begin_segment(&mut self, number: usize, limits: Limits, space: &mut Space) -> Result<()> {
        use Source::{Free, Holes, Mixed, Next, Suiting};
        let segments = self.segments();
        // The types of segments have the numbers of the logs.
        let (kind, number_of_type) = (kind_of_type(number as u16), number as u16);
        let last = self.places[number].segment;
        // Data leaves free segments to nodes, which cannot fill holes between data.
        let room = space.room(&segments);
        let leaves =
            |left: Option<Room>| left.is_some_and(|left| self.fits(limits.wanted, left, space));
        // A segment of a section with data is of no use to nodes.
        let is_spare = kind == BlockKind::Data
            && room.empty.data > limits.wanted.directory_blocks.div_ceil(SEGMENT_BLOCKS);
        let may_take_segment = is_spare || leaves(room.without_segment(kind));
        let may_take_section = leaves(room.without_section(kind));
        let may_mix = limits.may_mix && leaves(Some(room.without_mixed(kind.other())));
        let is_short = room.free_segments() <= SEGMENTS_FOR_NODES || !may_take_section;
        let fills_first = kind == BlockKind::Data && is_short && self.mode == Mode::Adaptive;
        let sources = match limits.wanted == Wanted::default() || kind == BlockKind::Node {
            _ if fills_first => [Holes, Next, Suiting, Free, Mixed],
            // The room of a checkpoint counts free sections after the others.
            true => [Next, Suiting, Free, Holes, Mixed],
            false => [Next, Free, Suiting, Holes, Mixed],
        };
        let take = |source| {
            let segment = match source {
                Next if may_take_segment => {
                    space.take_next_segment(number_of_type, last, &segments)
                }
                Suiting if may_take_segment => {
                    space.take_suiting_segment(number_of_type, &segments)
                }
                Free if may_take_section => space.take_free_section(number_of_type, &segments),
                Holes => space.take_segment_with_holes(number_of_type, &segments),
                Mixed if may_mix => space.take_empty_segment(number_of_type, &segments),
                _ => None,
            };
            segment.map(|segment| Place { segment, offset: 0, fills_holes: source == Holes })
        };
        let place = sources.into_iter().find_map(take);
        // Blocks that the log has passed may have become free since.
        let own = || {
            (space.holes(last) > 0).then_some(Place { segment: last, offset: 0, fills_holes: true })
        };
        self.places[number] = place.or_else(own).ok_or(Error::NoSpace)?;
        Ok(())
    }

    /// Returns whether a checkpoint has room for `wanted`.
    pub(crate) fn has_room(&self, wanted: Wanted, space: &Space) -> bool {
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
    pub(crate) fn places(&self) -> &[Place; 2 * LOGS] {
        &self.places
    }

    /// Returns the segments of the logs.
    pub(crate) fn segments(&self) -> BTreeSet<u32> {
        self.places.iter().map(|place| place.segment).collect()
    }

    /// Releases blocks that nothing was written to.
    pub(crate) fn release(&self, blocks: Range<FsBlock>, space: &mut Space, geometry: &Geometry) {
        for block in blocks.start.0..blocks.end.0 {
            let (segment, index) = geometry.segment_of(FsBlock(block));
            space.release(segment, index);
        }
    }
}

/// Returns the first result of `allocate` that is not `NoSpace`.
fn first_with_room<A>(
    attempts: impl IntoIterator<Item = A>,
    mut allocate: impl FnMut(A) -> Result<Range<FsBlock>>,
) -> Result<Range<FsBlock>> {
    let mut results = attempts.into_iter().map(&mut allocate);
    results.find(|result| *result != Err(Error::NoSpace)).unwrap_or(Err(Error::NoSpace))
}
