//! The bios of direct requests that are submitted together.
//! Not here: which writes are admitted (`admit.rs`), and the life of a request (`call.rs`).

use std::ops::Range;
use std::sync::Arc;

use base::{DeviceOffset, FileOffset, Result};
use device::{Bio, BioOperation, BlockDevice, Segment};
use smallvec::SmallVec;

use super::admit::{Refused, Stop, known_or_planned, plan_alone, plan_overwrite};
use super::call::Call;
use super::plan::{Run, Runs};
use super::request::{DirectRequest, DirectWait};
use super::{SplitExtents, clean_cache, is_cached};
use crate::barrier::Entered;
use crate::file::WritableFile;
use crate::mapping::{FinishedRange, IomapKind};
use crate::read::ReadContext;

/// Zeroes for what a request leaves out of a block that holds nothing yet.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A request that was not added comes back.
type Added = Result<(), (Refused, DirectRequest)>;

/// Requests that were added and not submitted. They are in flight already. Dropping it submits nothing,
/// and ends them with EIO.
#[derive(Debug, Default)]
pub struct DirectBatch {
    bios: Vec<Bio>,
    /// Kept, so that none ends before it is submitted, while the caller holds locks.
    calls: Vec<Arc<Call>>,
    /// The passage of the writes through the barrier, which they share.
    entered: Option<Arc<Entered>>,
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
        if context.mapper.transform().is_some() {
            return Err((Refused::NeedsCache, request));
        }
        if let Some(file) = file {
            if at_once && is_cached(file, &range) {
                return Err((Refused::WouldBlock, request));
            }
            clean_cache(file, &range, self.entered.as_ref());
        }
        let runs = match known_or_planned(context.mapper, &range, at_once) {
            Ok(runs) => runs,
            Err(stop) => return self.stop(request, stop),
        };
        let call = Call::read(file, request, (end - range.start) as usize);
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
        // Before the data has a place on the device.
        let Some(entered) = self.enter(file, at_once) else {
            return Err((Refused::WouldBlock, request));
        };
        let runs = match plan_overwrite(file, &request, split, at_once, &entered) {
            Ok(runs) => runs,
            Err(stop) => return self.stop(request, stop),
        };
        let own = 0..request.length() as u64;
        self.add_write(file, request, &runs, own, entered);
        Ok(())
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
        let Some(entered) = self.enter(file, false) else {
            return Err((Refused::WouldBlock, request));
        };
        let runs = match plan_alone(file, &request, first..last, split) {
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
        self.add_write(file, request, &runs, own, entered);
        Ok(())
    }

    /// Lets the writes of this batch through the barrier. With `at_once`, `None` if that is held. All files are of one
    /// volume, and have one barrier.
    fn enter(&mut self, file: &WritableFile, at_once: bool) -> Option<Arc<Entered>> {
        if self.entered.is_none() {
            let barrier = &file.end_io.barrier;
            let entered = if at_once { barrier.try_enter() } else { Some(barrier.enter()) };
            self.entered = entered.map(Arc::new);
        }
        self.entered.clone()
    }

    /// Adds a write of `runs`; `own` are the bytes of them that the request has, and zeroes are around it.
    fn add_write(
        &mut self,
        file: &Arc<WritableFile>,
        request: DirectRequest,
        runs: &[Run],
        own: Range<u64>,
        entered: Arc<Entered>,
    ) {
        let block = u64::from(file.mapping().block_size().bytes());
        let ranges = runs.iter().map(|run| {
            // Whole blocks: the rest of each was written before, or is now.
            let start = run.at / block * block;
            let end = (run.at + run.length).next_multiple_of(block);
            FinishedRange {
                offset: FileOffset(start),
                length: end - start,
                kind: run.kind,
                token: run.token,
            }
        });
        let call = Call::write(file, request, ranges.collect(), entered);
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
                call.fail(error.into());
            }
        }));
    }

    /// Gives back a request that is refused; one that has failed ends with the error once the caller submits.
    fn stop(&mut self, request: DirectRequest, stop: Stop) -> Added {
        match stop {
            Stop::Refused(refused) => Err((refused, request)),
            Stop::Failed(error) => {
                self.calls.push(Call::failed(request, error));
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
