//! Which direct writes may go, over which runs, and what has to be done before: the cache cleared, extents
//! split. Not here: the bios (`batch.rs`).

use std::ops::Range;
use std::sync::Arc;

use base::{Error, FileOffset, Result};

use super::plan::{Run, Runs, plan, plan_known, plan_placed};
use super::request::{DirectRequest, Done};
use super::{SplitExtents, clear_cache, is_cached};
use crate::barrier::Entered;
use crate::file::WritableFile;
use crate::mapping::{IomapKind, MapRead, WritePolicy};

/// Why a request was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It needs the inode's lock alone, or blocks that are not there: see
    /// [`write_direct_alone`](super::write_direct_alone).
    NeedsAlone,
    /// It has to go through the cache: the data is inline or transformed, or other threads keep writing to the
    /// cache.
    NeedsCache,
    /// Something would have to be waited for, and the caller does not want to.
    WouldBlock,
}

/// Why there is no plan for a request.
pub(super) enum Stop {
    Refused(Refused),
    /// It is added all the same, and ends with this.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Over which runs an overwrite goes, which are ready for it.
pub(super) fn plan_overwrite(
    file: &Arc<WritableFile>,
    request: &DirectRequest,
    split: SplitExtents,
    at_once: bool,
    entered: &Arc<Entered>,
) -> Result<Runs, Stop> {
    let range = request.at..request.at.saturating_add(request.length() as u64);
    if file.mapper.transform().is_some() {
        return Err(Refused::NeedsCache.into());
    }
    if range.end > file.size_on_disk() {
        return Err(Refused::NeedsAlone.into());
    }
    if at_once && is_cached(file, &range) {
        return Err(Refused::WouldBlock.into());
    }
    // Who cannot wait leaves to the end what somebody reads into the cache from now on.
    if !at_once && !clear_cache(file, &range, Some(entered)) {
        return Err(Refused::NeedsCache.into());
    }
    let runs = known_or_planned(file.read_context().mapper, &range, at_once)?;
    let block = u64::from(file.mapping().block_size().bytes());
    let is_aligned = range.start % block == 0 && range.end % block == 0;
    let may = |run: &Run| match run.kind {
        IomapKind::Mapped => true,
        IomapKind::Unwritten => is_aligned,
        _ => false,
    };
    if !runs.iter().all(may) {
        return Err(Refused::NeedsAlone.into());
    }
    let offsets = FileOffset(range.start)..FileOffset(range.end);
    if file.mapper.policy(offsets) == WritePolicy::OutOfPlace {
        return match (is_aligned, at_once) {
            // Parts of blocks are copied with the rest of the block, in the cache.
            (false, _) => Err(Refused::NeedsCache.into()),
            // The format may have to wait for room.
            (true, true) => Err(Refused::WouldBlock.into()),
            (true, false) => {
                start_threads(file, request)?;
                Ok(plan_placed(&*file.mapper, range.start, range.end)?)
            }
        };
    }
    if at_once && must_split(file, &runs, split) {
        return Err(Refused::WouldBlock.into());
    }
    prepare(file, request, &runs, split)?;
    Ok(runs)
}

/// Over which runs a write goes that is alone with the file, which are ready for it.
pub(super) fn plan_alone(
    file: &WritableFile,
    request: &DirectRequest,
    blocks: Range<u64>,
    split: SplitExtents,
) -> Result<Runs, Stop> {
    let offsets = FileOffset(blocks.start)..FileOffset(blocks.end);
    if file.mapper.policy(offsets) == WritePolicy::OutOfPlace || file.mapper.transform().is_some() {
        return Err(Refused::NeedsCache.into());
    }
    let runs = known_or_planned(file.read_context().mapper, &blocks, false)?;
    if !runs.iter().all(|run| matches!(run.kind, IomapKind::Mapped | IomapKind::Unwritten)) {
        return Err(Refused::NeedsCache.into());
    }
    prepare(file, request, &runs, split)?;
    Ok(runs)
}

/// Starts the threads that the end will need, and splits extents of which a part will be written, if that
/// is not left to the end of I/O.
fn prepare(
    file: &WritableFile,
    request: &DirectRequest,
    runs: &[Run],
    split: SplitExtents,
) -> Result<()> {
    start_threads(file, request)?;
    if !must_split(file, runs, split) {
        return Ok(());
    }
    runs.iter().filter(|run| run.kind == IomapKind::Unwritten).try_for_each(|run| {
        file.mapper.split_extents(FileOffset(run.at)..FileOffset(run.at + run.length))
    })
}

/// Starts the threads that the end of a request with a callback will need.
fn start_threads(file: &WritableFile, request: &DirectRequest) -> Result<()> {
    match request.done {
        Done::Callback(_) => file.end_io.direct.start(),
        Done::Waiter(_) => Ok(()),
    }
}

/// Whether extents have to be split before these runs are written.
fn must_split(file: &WritableFile, runs: &[Run], split: SplitExtents) -> bool {
    runs.iter().any(|run| run.kind == IomapKind::Unwritten)
        && (split == SplitExtents::Before || !file.mapper.may_split_at_end())
}

/// What lies in a range. With `at_once` it must be known already, or it is `WouldBlock`.
pub(super) fn known_or_planned(
    mapper: &dyn MapRead,
    range: &Range<u64>,
    at_once: bool,
) -> Result<Runs, Stop> {
    match at_once {
        true => Ok(plan_known(mapper, range.start, range.end)?.ok_or(Refused::WouldBlock)?),
        false => Ok(plan(mapper, range.start, range.end)?.ok_or(Refused::NeedsCache)?),
    }
}
