//! Direct requests that are submitted together. Not here: their end (`end.rs`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use base::{DeviceOffset, Error, FileOffset, Result};
use device::{Bio, BioOperation, BlockDevice, Segment};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::end::{Ended, end_at_once};
use super::plan::{Run, Runs, plan, plan_known};
use super::request::{DirectRequest, DirectWait, Done};
use super::{SplitExtents, clean_cache, clear_cache, is_cached};
use crate::file::WritableFile;
use crate::mapping::{FinishedRange, IomapKind, MapRead};
use crate::read::ReadContext;

/// Zeroes for what a request leaves out of a block that holds nothing yet.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Why a request was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It needs the inode's lock alone, or blocks that are not there: see
    /// [`write_direct_alone`](super::write_direct_alone).
    NeedsAlone,
    /// It has to go through the cache: the data is inline, or somebody keeps writing to the cache.
    NeedsCache,
    /// Something would have to be waited for, and the caller does not want to.
    WouldBlock,
}

/// Why there is no plan for a request.
enum Stop {
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

/// A request that was not added comes back.
type Added = Result<(), (Refused, DirectRequest)>;

/// Requests that were added and not submitted. They are in flight already. Dropping it submits nothing,
/// and ends them with EIO.
#[derive(Debug, Default)]
pub struct DirectBatch {
    bios: Vec<Bio>,
    /// Kept, so that none ends before it is submitted, while the caller holds locks.
    calls: Vec<Arc<Call>>,
}

impl DirectBatch {
    /// Adds a read of a file that is written to by way of `file`, if by any. With `at_once`, none that
    /// would have to wait for anything but its own data. The caller holds the inode's lock.
    pub fn read(
        &mut self,
        context: &ReadContext<'_>,
        file: Option<&Arc<WritableFile>>,
        request: DirectRequest,
        at_once: bool,
    ) -> Added {
        let size = context.size();
        let end = (request.at.saturating_add(request.length() as u64)).min(size).max(request.at);
        let range = request.at..end;
        if let Some(file) = file {
            if at_once && is_cached(file, &range) {
                return Err((Refused::WouldBlock, request));
            }
            clean_cache(file, &range);
        }
        let runs = match known_or_planned(context.mapper, &range, at_once) {
            Ok(runs) => runs,
            Err(stop) => return self.stop(request, stop),
        };
        let call = Call::new(file, request, 0..0, (end - range.start) as usize);
        self.add(BioOperation::Read, &call, &runs, 0..end - range.start);
        self.calls.push(call);
        Ok(())
    }

    /// Adds an overwrite of blocks that the file has. With `at_once`, none that would have to wait for
    /// anything but its own data. The caller holds the inode's lock, maybe together with others.
    pub fn overwrite(
        &mut self,
        file: &Arc<WritableFile>,
        request: DirectRequest,
        split: SplitExtents,
        at_once: bool,
    ) -> Added {
        let runs = match self.plan_overwrite(file, &request, split, at_once) {
            Ok(runs) => runs,
            Err(stop) => return self.stop(request, stop),
        };
        let own = 0..request.length() as u64;
        self.add_write(file, request, &runs, own);
        Ok(())
    }

    fn plan_overwrite(
        &self,
        file: &Arc<WritableFile>,
        request: &DirectRequest,
        split: SplitExtents,
        at_once: bool,
    ) -> Result<Runs, Stop> {
        let range = request.at..request.at.saturating_add(request.length() as u64);
        if range.end > file.size_on_disk() {
            return Err(Refused::NeedsAlone.into());
        }
        if at_once && is_cached(file, &range) {
            return Err(Refused::WouldBlock.into());
        }
        // Who cannot wait leaves to the end what somebody reads into the cache from now on.
        if !at_once && !clear_cache(file, &range) {
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
        if at_once && must_split(file, &runs, split) {
            return Err(Refused::WouldBlock.into());
        }
        self.prepare(file, request, &runs, split)?;
        Ok(runs)
    }

    /// Adds a write to blocks that were all allocated for it; the file may grow. Bytes around it in
    /// blocks that hold no data yet, and past it in the file's last block, become zeroes. Nothing else is
    /// in flight, and the cache has nothing of the blocks.
    pub(super) fn write_alone(
        &mut self,
        file: &Arc<WritableFile>,
        request: DirectRequest,
        split: SplitExtents,
    ) -> Added {
        let block = u64::from(file.mapping().block_size().bytes());
        let range = request.at..request.at + request.length() as u64;
        let (first, last) = (range.start / block * block, range.end.next_multiple_of(block));
        let runs = match self.plan_alone(file, &request, first..last, split) {
            Ok(runs) => runs,
            Err(stop) => return self.stop(request, stop),
        };
        let is_blank = |at: u64| {
            let run = runs.iter().find(|run| (run.at..run.at + run.length).contains(&at));
            run.is_some_and(|run| run.kind == IomapKind::Unwritten)
        };
        let start = if is_blank(first) { first } else { range.start };
        // Past the end there are zeroes only, whatever the device has, unless it is known to have them.
        let is_end = range.end > file.size();
        let is_clear = is_end && file.direct_tail.continues(range.start, file.size(), last);
        let fills_end = last > range.end && (is_blank(last - block) || is_end && !is_clear);
        let end = if fills_end { last } else { range.end };
        // Runs that begin, and end, with the bytes to be written.
        let runs = clip(&runs, start, end);
        let own = range.start - start..range.end - start;
        self.add_write(file, request, &runs, own);
        Ok(())
    }

    fn plan_alone(
        &self,
        file: &WritableFile,
        request: &DirectRequest,
        blocks: Range<u64>,
        split: SplitExtents,
    ) -> Result<Runs, Stop> {
        let runs = known_or_planned(file.read_context().mapper, &blocks, false)?;
        if !runs.iter().all(|run| matches!(run.kind, IomapKind::Mapped | IomapKind::Unwritten)) {
            return Err(Refused::NeedsCache.into());
        }
        self.prepare(file, request, &runs, split)?;
        Ok(runs)
    }

    /// Splits extents of which a part will be written, if that is not left to the end of I/O.
    fn prepare(
        &self,
        file: &WritableFile,
        request: &DirectRequest,
        runs: &[Run],
        split: SplitExtents,
    ) -> Result<()> {
        if let Done::Callback(_) = request.done {
            file.end_io.direct.start()?;
        }
        if !must_split(file, runs, split) {
            return Ok(());
        }
        runs.iter().filter(|run| run.kind == IomapKind::Unwritten).try_for_each(|run| {
            file.mapper.split_extents(FileOffset(run.at)..FileOffset(run.at + run.length))
        })
    }

    /// Adds a write of `runs`; `own` are the bytes of them that the request has, and zeroes are around it.
    fn add_write(
        &mut self,
        file: &Arc<WritableFile>,
        request: DirectRequest,
        runs: &[Run],
        own: Range<u64>,
    ) {
        let length = request.length();
        let written = request.at..request.at + length as u64;
        let mut call = Call::new(Some(file), request, written, length);
        if let Some(call) = Arc::get_mut(&mut call) {
            let block = u64::from(file.mapping().block_size().bytes());
            call.ranges.extend(runs.iter().map(|run| {
                // Whole blocks: the rest of each was written before, or is now.
                let start = run.at / block * block;
                let end = (run.at + run.length).next_multiple_of(block);
                FinishedRange { offset: FileOffset(start), length: end - start, kind: run.kind }
            }));
        }
        self.add(BioOperation::Write, &call, runs, own);
        self.calls.push(call);
    }

    /// Adds bios for `runs`, neighbours on the device together. `own` are the bytes of them, from the
    /// first one's start, that the call's memory is for; others are zeroes to be written.
    fn add(&mut self, operation: BioOperation, call: &Arc<Call>, runs: &[Run], own: Range<u64>) {
        let Some(first) = runs.first().map(|run| run.at) else { return };
        let mut pending: Option<(DeviceOffset, u64, SmallVec<[Segment; 4]>)> = None;
        for run in runs {
            let (start, end) = (run.at - first, run.at - first + run.length);
            let Some(address) = run
                .address
                .filter(|_| operation == BioOperation::Write || run.kind == IomapKind::Mapped)
            else {
                call.fill_zeroes(start - own.start..end - own.start);
                continue;
            };
            let follows = pending
                .as_ref()
                .is_some_and(|(at, length, _)| at.checked_add(*length) == Some(address));
            if !follows {
                self.push(operation, call, pending.take());
            }
            let (_, length, segments) =
                pending.get_or_insert_with(|| (address, 0, SmallVec::new()));
            *length += run.length;
            let (own_start, own_end) = (own.start.clamp(start, end), own.end.clamp(start, end));
            push_zeroes(segments, own_start - start);
            if own_start < own_end {
                segments.push(call.part(own_start - own.start..own_end - own.start));
            }
            push_zeroes(segments, end - own_end);
        }
        self.push(operation, call, pending);
    }

    fn push(
        &mut self,
        operation: BioOperation,
        call: &Arc<Call>,
        pending: Option<(DeviceOffset, u64, SmallVec<[Segment; 4]>)>,
    ) {
        let Some((address, _, segments)) = pending else { return };
        let call = Arc::clone(call);
        self.bios.push(Bio::new(operation, address, segments, move |result| {
            if let Err(error) = result {
                call.failure.lock().get_or_insert(error.into());
            }
        }));
    }

    /// Gives back a request that is refused; one that has failed ends with the error once the caller submits.
    fn stop(&mut self, request: DirectRequest, stop: Stop) -> Added {
        match stop {
            Stop::Refused(refused) => Err((refused, request)),
            Stop::Failed(error) => {
                let call = Call::new(None, request, 0..0, 0);
                *call.failure.lock() = Some(error);
                self.calls.push(call);
                Ok(())
            }
        }
    }

    /// Starts all requests. The caller holds no locks, since some may end now.
    pub fn submit(self, device: &dyn BlockDevice) {
        if !self.bios.is_empty() {
            base::waiting::about_to_wait();
            device.submit(self.bios);
        }
        drop(self.calls);
    }

    /// The same for the only request, which `wait` is for; waits for its end. `file` as in
    /// [`DirectWait::wait_for`].
    pub(super) fn submit_and_wait(
        mut self,
        device: &dyn BlockDevice,
        wait: DirectWait,
        file: Option<&Arc<WritableFile>>,
    ) -> Result<usize> {
        if let Some(last) = self.bios.pop() {
            self.bios.push(last.waited_for());
        }
        wait.wait_for(file, || self.submit(device))
    }
}

/// Whether extents have to be split before these runs are written.
fn must_split(file: &WritableFile, runs: &[Run], split: SplitExtents) -> bool {
    runs.iter().any(|run| run.kind == IomapKind::Unwritten)
        && (split == SplitExtents::Before || !file.mapper.may_split_at_end())
}

/// What lies in a range, which somebody who cannot wait must know already.
fn known_or_planned(mapper: &dyn MapRead, range: &Range<u64>, at_once: bool) -> Result<Runs, Stop> {
    match at_once {
        true => Ok(plan_known(mapper, range.start, range.end)?.ok_or(Refused::WouldBlock)?),
        false => Ok(plan(mapper, range.start, range.end)?.ok_or(Refused::NeedsCache)?),
    }
}

/// The parts of runs between two bytes.
fn clip(runs: &[Run], start: u64, end: u64) -> Runs {
    let clipped = runs.iter().filter_map(|run| {
        let (at, run_end) = (run.at.max(start), (run.at + run.length).min(end));
        let address = run.address.and_then(|address| address.checked_add(at.checked_sub(run.at)?));
        (at < run_end).then_some(Run { at, length: run_end - at, address, ..*run })
    });
    clipped.collect()
}

fn push_zeroes(segments: &mut SmallVec<[Segment; 4]>, mut length: u64) {
    while length > 0 {
        let part = length.min(ZEROES.len() as u64);
        // SAFETY: they live as long as the program, and a write bio only reads them.
        segments.push(unsafe { Segment::new(std::ptr::NonNull::from(&ZEROES[0]), part as usize) });
        length -= part;
    }
}

/// A request under way. It ends when the last bio that shares it does, and its batch.
struct Call {
    file: Option<Arc<WritableFile>>,
    /// Taken at the end.
    request: Mutex<Option<DirectRequest>>,
    written: Range<u64>,
    ranges: SmallVec<[FinishedRange; 2]>,
    /// The bytes that are moved if all goes well.
    length: usize,
    failure: Mutex<Option<Error>>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({:?})", self.request.lock())
    }
}

impl Call {
    fn new(
        file: Option<&Arc<WritableFile>>,
        request: DirectRequest,
        written: Range<u64>,
        length: usize,
    ) -> Arc<Self> {
        if let Some(file) = file {
            file.direct.begin();
        }
        let (ranges, failure) = (SmallVec::new(), Mutex::new(None));
        let (file, request) = (file.cloned(), Mutex::new(Some(request)));
        Arc::new(Self { file, request, written, ranges, length, failure })
    }

    /// A part of the memory for a bio of this call.
    fn part(&self, range: Range<u64>) -> Segment {
        let (start, length) = (range.start as usize, (range.end - range.start) as usize);
        let request = self.request.lock();
        let memory = &request.as_ref().expect("taken at the end only").memory;
        // SAFETY: the bio holds the call, which keeps the whole, until it has ended. Parts do not
        // overlap, and the whole is not touched.
        unsafe { memory.part(start, length) }
    }

    /// Makes a part of the memory of a read zeroes.
    fn fill_zeroes(&self, range: Range<u64>) {
        let part = self.part(range);
        // SAFETY: the memory of a read is for the reader alone until it has ended, and no bio has this part.
        unsafe { part.as_ptr().write_bytes(0, part.len()) };
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(request) = self.request.get_mut().take() else { return };
        let done = request.done;
        let result = self.failure.get_mut().take().map_or(Ok(self.length), Err);
        let (written, counts) = (self.written.clone(), self.file.is_some());
        let reached = written.end;
        let ranges = std::mem::take(&mut self.ranges);
        let ended = Ended { written, ranges, reached, result, counts };
        match (done, &self.file) {
            (Done::Waiter(waiter), _) => waiter.put(ended),
            (Done::Callback(done), Some(file)) if ended.needs_thread(file) => {
                file.end_io.direct.push(file, ended, done);
            }
            (Done::Callback(done), file) => end_at_once(file.as_deref(), ended, done),
        }
    }
}
