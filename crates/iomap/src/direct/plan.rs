//! The plan of a direct request: its runs on the device, whether it may be submitted, and what is
//! done before. Not here: the bios (`submit.rs`).

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use base::{DeviceOffset, Error, FileOffset, Result};
use smallvec::SmallVec;

use super::cache::clear_cache;
use super::options::SplitExtents;
use super::request::{Completion, DirectRequest};
use crate::file::WritableFile;
use crate::folios::is_cached;
use crate::mapping::{
    FinishedRange, Iomap, IomapKind, MapRead, MapWrite, Token, WritePolicy, device_address, map_at,
    place,
};

/// Why a request was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The request needs the inode's lock alone, or blocks that are not allocated: see
    /// [`write_direct_alone`](super::write_direct_alone).
    NeedsAlone,
    /// The request has to go through the cache: the data is inline or transformed, other threads
    /// keep writing to the cache, or the cache has data of the range that is not written back and
    /// the batch has other requests.
    NeedsCache,
    /// The request would have to wait, and the caller does not want that.
    WouldBlock,
}

/// Why there is no plan for a request.
pub(super) enum NoPlan {
    Refused(Refused),
    /// The request is added all the same, and ends with this error.
    Failed(Error),
}

impl From<Error> for NoPlan {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Refused> for NoPlan {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// A run of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PlannedRun {
    /// The first byte in the file.
    pub at: u64,
    /// The number of bytes.
    pub length: u64,
    pub kind: IomapKind,
    /// The first byte on the device; `None` without blocks.
    pub address: Option<DeviceOffset>,
    /// The token of a run that is written out of place.
    pub token: Option<Token>,
}

impl PlannedRun {
    /// Returns the byte of the file after the last one.
    pub(super) fn end(&self) -> u64 {
        self.at + self.length
    }

    /// Returns the range for the format at the end of I/O: the whole blocks, of `block` bytes, with
    /// bytes of the run. The rest of each block was written before, or is written with this run.
    pub(super) fn finished(&self, block: u64) -> FinishedRange {
        let start = self.at / block * block;
        FinishedRange {
            offset: FileOffset(start),
            length: self.end().next_multiple_of(block) - start,
            kind: self.kind,
            token: self.token,
        }
    }
}

/// The runs of a request, in the order of the file.
pub(super) type PlannedRuns = SmallVec<[PlannedRun; 2]>;

/// The plan of a write that has the file alone.
pub(super) struct AlonePlan {
    pub runs: PlannedRuns,
    /// The bytes of the runs, from the start of the first, that the request has. The others are
    /// zeroes to be written.
    pub own: Range<u64>,
}

/// Returns the runs of a range of a file. With `nowait`, refuses if the format would have to read
/// its map.
pub(super) fn plan_range(
    mapper: &dyn MapRead,
    range: &Range<u64>,
    nowait: bool,
) -> Result<PlannedRuns, NoPlan> {
    if nowait {
        let known = |at| {
            let map = mapper.map_known(FileOffset(at));
            Ok(map.filter(|map| map.offset.0 <= at && at < map.end()))
        };
        Ok(plan_with(range, known)?.ok_or(Refused::WouldBlock)?)
    } else {
        let mapped = |at| map_at(mapper, FileOffset(at), range.end - at).map(Some);
        Ok(plan_with(range, mapped)?.ok_or(Refused::NeedsCache)?)
    }
}

/// Returns the runs of `range`. `None` if a part has no mapping, or inline or encoded data.
fn plan_with(
    range: &Range<u64>,
    mut map: impl FnMut(u64) -> Result<Option<Iomap>>,
) -> Result<Option<PlannedRuns>> {
    let mut runs = PlannedRuns::new();
    let mut at = range.start;
    while at < range.end {
        let Some(map) = map(at)? else { return Ok(None) };
        let length = map.end().min(range.end) - at;
        let address = match map.kind {
            // Blocks of a format that writes out of place have no address before their first write.
            IomapKind::Unwritten if map.address.is_none() => None,
            IomapKind::Mapped | IomapKind::Unwritten => Some(device_address(&map, at)?),
            IomapKind::Hole | IomapKind::Delalloc => None,
            IomapKind::Inline | IomapKind::Encoded => return Ok(None),
        };
        runs.push(PlannedRun { at, length, kind: map.kind, address, token: None });
        at += length;
    }
    Ok(Some(runs))
}

/// Returns whether the file is only written through the cache: its data has another form on the
/// device.
fn needs_cache(file: &WritableFile) -> bool {
    file.mapper.transform().is_some() || file.mapper.cluster_bytes().is_some()
}

/// Plans an overwrite, and prepares its range.
pub(super) fn plan_overwrite(
    file: &Arc<WritableFile>,
    request: &DirectRequest,
    split: SplitExtents,
    nowait: bool,
) -> Result<PlannedRuns, NoPlan> {
    let range = request.range();
    if needs_cache(file) {
        return Err(Refused::NeedsCache.into());
    }
    if range.end > file.size_on_disk() {
        return Err(Refused::NeedsAlone.into());
    }
    if nowait && is_cached(file, &range) {
        return Err(Refused::WouldBlock.into());
    }
    // A caller that cannot wait leaves data that is read into the cache from now on to the end of
    // the request.
    if !nowait && !clear_cache(file, &range) {
        return Err(Refused::NeedsCache.into());
    }
    let runs = plan_range(file.read_context().mapper, &range, nowait)?;
    let block = u64::from(file.mapping().block_size().bytes());
    let is_aligned = range.start % block == 0 && range.end % block == 0;
    let can_overwrite = |run: &PlannedRun| match run.kind {
        IomapKind::Mapped => true,
        IomapKind::Unwritten => is_aligned,
        _ => false,
    };
    if !runs.iter().all(can_overwrite) {
        return Err(Refused::NeedsAlone.into());
    }
    let offsets = FileOffset(range.start)..FileOffset(range.end);
    if file.mapper.policy(offsets) == WritePolicy::OutOfPlace {
        if !is_aligned {
            // Parts of blocks are copied with the rest of the block, in the cache.
            return Err(Refused::NeedsCache.into());
        }
        if nowait {
            // The format may have to wait for room.
            return Err(Refused::WouldBlock.into());
        }
        start_threads(file, request)?;
        return match place_range(&*file.mapper, range, block) {
            // Writeback from the cache waits for blocks that writes in flight will free.
            Err(Error::NoSpace) => Err(Refused::NeedsCache.into()),
            placed => Ok(placed?),
        };
    }
    if nowait && must_split(file, &runs, split) {
        return Err(Refused::WouldBlock.into());
    }
    prepare(file, request, &runs, split)?;
    Ok(runs)
}

/// Plans a write to blocks that were allocated for it, and prepares its range. Bytes around the
/// request, in blocks without data and in the last block of the file, become zeroes. No other
/// request is in flight, and the cache has nothing of the blocks.
pub(super) fn plan_alone(
    file: &WritableFile,
    request: &DirectRequest,
    split: SplitExtents,
) -> Result<AlonePlan, NoPlan> {
    let range = request.range();
    let block = u64::from(file.mapping().block_size().bytes());
    let blocks = range.start / block * block..range.end.next_multiple_of(block);
    let offsets = FileOffset(blocks.start)..FileOffset(blocks.end);
    if file.mapper.policy(offsets) == WritePolicy::OutOfPlace || needs_cache(file) {
        return Err(Refused::NeedsCache.into());
    }
    let runs = plan_range(file.read_context().mapper, &blocks, false)?;
    if !runs.iter().all(|run| matches!(run.kind, IomapKind::Mapped | IomapKind::Unwritten)) {
        return Err(Refused::NeedsCache.into());
    }
    prepare(file, request, &runs, split)?;
    let is_unwritten = |at: u64| {
        let run = runs.iter().find(|run| (run.at..run.end()).contains(&at));
        run.is_some_and(|run| run.kind == IomapKind::Unwritten)
    };
    let start = if is_unwritten(blocks.start) { blocks.start } else { range.start };
    // After the end of the file there must be zeroes. They are written unless the device is known
    // to have them.
    let is_end = range.end > file.size();
    let has_zeroes =
        is_end && file.zeroed_tail.is_continued_by(range.start, file.size(), blocks.end);
    let writes_rest =
        blocks.end > range.end && (is_unwritten(blocks.end - block) || is_end && !has_zeroes);
    let end = if writes_rest { blocks.end } else { range.end };
    Ok(AlonePlan { runs: clip(&runs, start, end), own: range.start - start..range.end - start })
}

/// Returns the parts of runs between two bytes of the file.
fn clip(runs: &[PlannedRun], start: u64, end: u64) -> PlannedRuns {
    let clipped = runs.iter().filter_map(|run| {
        let at = run.at.max(start);
        let run_end = run.end().min(end);
        let address = run.address.and_then(|address| address.checked_add(at.checked_sub(run.at)?));
        (at < run_end).then_some(PlannedRun { at, length: run_end - at, address, ..*run })
    });
    clipped.collect()
}

/// Checks blocks that are overwritten in place, starts the threads that the end of the request will
/// need, and splits extents, unless the end of I/O does so.
fn prepare(
    file: &WritableFile,
    request: &DirectRequest,
    runs: &[PlannedRun],
    split: SplitExtents,
) -> Result<()> {
    for run in runs {
        file.mapper.check_in_place(FileOffset(run.at)..FileOffset(run.end()))?;
    }
    start_threads(file, request)?;
    if !must_split(file, runs, split) {
        return Ok(());
    }
    runs.iter()
        .filter(|run| run.kind == IomapKind::Unwritten)
        .try_for_each(|run| file.mapper.split_extents(FileOffset(run.at)..FileOffset(run.end())))
}

/// Starts the threads that the end of a request with a callback will need.
fn start_threads(file: &WritableFile, request: &DirectRequest) -> Result<()> {
    match request.completion {
        Completion::Callback(_) => file.end_io.direct.start(),
        Completion::Waiter(_) => Ok(()),
    }
}

/// Returns whether extents have to be split before these runs are written.
fn must_split(file: &WritableFile, runs: &[PlannedRun], split: SplitExtents) -> bool {
    runs.iter().any(|run| run.kind == IomapKind::Unwritten)
        && (split == SplitExtents::Before || !file.mapper.may_split_at_end())
}

/// Returns new blocks for a range of a file, whole blocks of `block` bytes that are written out of
/// place. After an error or a panic of the format, it has all placements back.
fn place_range(mapper: &dyn MapWrite, range: Range<u64>, block: u64) -> Result<PlannedRuns> {
    let mut runs = PlannedRuns::new();
    let placed = catch_unwind(AssertUnwindSafe(|| place_all(mapper, range, block, &mut runs)));
    if !matches!(placed, Ok(Ok(()))) && !runs.is_empty() {
        let unused: Vec<FinishedRange> = runs.iter().map(|run| run.finished(block)).collect();
        mapper.unplace(&unused);
    }
    match placed {
        Ok(placed) => placed.map(|()| runs),
        Err(panic) => resume_unwind(panic),
    }
}

/// Adds the placements of `range` to `runs`, up to the first error.
fn place_all(
    mapper: &dyn MapWrite,
    range: Range<u64>,
    block: u64,
    runs: &mut PlannedRuns,
) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let placement = place(mapper, at..range.end, block)?;
        runs.push(PlannedRun {
            at,
            length: placement.length,
            kind: IomapKind::Mapped,
            address: Some(placement.address),
            token: Some(placement.token),
        });
        at += placement.length;
    }
    Ok(())
}
