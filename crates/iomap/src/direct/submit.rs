//! Batches of direct requests: their bios, which are submitted together.
//! Not here: which requests are admitted (`plan.rs`), and the state of a request (`request.rs`).

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use base::{DeviceOffset, Result};
use device::{Bio, BioOperation, BlockDevice, Segment};
use smallvec::SmallVec;

use super::cache::clean_cache;
use super::options::SplitExtents;
use super::plan::{AlonePlan, NoPlan, PlannedRun, Refused, plan_alone, plan_overwrite, plan_range};
use super::request::{DirectRequest, DirectWait, InFlightRequest, ReadInFlight};
use crate::file::WritableFile;
use crate::folios::has_unwritten;
use crate::mapping::IomapKind;
use crate::read::context::ReadContext;

/// Zeroes for bytes around a request in blocks without data.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A request that was not added is returned.
type Added = Result<(), (Refused, DirectRequest)>;

/// Requests that were added and not yet submitted. They count as in flight. If the batch is
/// dropped, they end with EIO.
#[derive(Debug, Default)]
pub struct DirectBatch {
    bios: Vec<Bio>,
    /// Held until the submission: a request would end when it is dropped, and the caller may hold
    /// locks.
    requests: Vec<Arc<InFlightRequest>>,
}

/// A bio that is being collected, for runs that are contiguous on the device.
struct PendingBio {
    address: DeviceOffset,
    length: u64,
    segments: SmallVec<[Segment; 4]>,
}

impl DirectBatch {
    /// Adds a read. `file` is the file's state for writing, if it has one. With `nowait`, refuses a
    /// request that would have to wait for anything but its own data. The caller holds the inode's
    /// lock.
    pub fn read(
        &mut self,
        context: &ReadContext<'_>,
        file: Option<&Arc<WritableFile>>,
        request: DirectRequest,
        nowait: bool,
    ) -> Added {
        let range = request.range();
        let range = range.start..range.end.min(context.size()).max(range.start);
        if context.mapper.transform().is_some() || context.mapper.is_verified() {
            return Err((Refused::NeedsCache, request));
        }
        if let Some(file) = file.filter(|file| has_unwritten(file, &range)) {
            if nowait {
                return Err((Refused::WouldBlock, request));
            }
            if !self.is_empty() {
                return Err((Refused::NeedsCache, request));
            }
            clean_cache(file, &range);
        }
        // Before the range is mapped.
        let counted = file.map(ReadInFlight::begin);
        let runs = match plan_range(context.mapper, &range, nowait) {
            Ok(runs) => runs,
            Err(no_plan) => return self.add_failed(request, no_plan),
        };
        let length = range.end - range.start;
        check_runs(&runs, &(0..length));
        let request = InFlightRequest::read(file, request, length as usize, counted);
        self.add(BioOperation::Read, &request, &runs, 0..length);
        self.requests.push(request);
        Ok(())
    }

    /// Adds an overwrite of existing blocks. With `nowait`, refuses a request that would have to
    /// wait for anything but its own data. The caller holds the inode's lock, shared or alone.
    pub fn overwrite(
        &mut self,
        file: &Arc<WritableFile>,
        request: DirectRequest,
        split: SplitExtents,
        nowait: bool,
    ) -> Added {
        if !nowait && !self.is_empty() && has_unwritten(file, &request.range()) {
            return Err((Refused::NeedsCache, request));
        }
        let runs = match plan_overwrite(file, &request, split, nowait) {
            Ok(runs) => runs,
            Err(no_plan) => return self.add_failed(request, no_plan),
        };
        let own = 0..request.length() as u64;
        self.add_write(file, request, &runs, own);
        Ok(())
    }

    /// Adds a write to blocks that were all allocated for it ([`plan_alone`]). The file may grow.
    pub(super) fn write_alone(
        &mut self,
        file: &Arc<WritableFile>,
        request: DirectRequest,
        split: SplitExtents,
    ) -> Added {
        let AlonePlan { runs, own } = match plan_alone(file, &request, split) {
            Ok(plan) => plan,
            Err(no_plan) => return self.add_failed(request, no_plan),
        };
        self.add_write(file, request, &runs, own);
        Ok(())
    }

    /// Returns whether the batch has no requests. Otherwise, adding one must not write back data
    /// from the cache: the format may wait for blocks that become free only when the batch is
    /// submitted.
    fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a write of `runs`. The request has the bytes `own` of them; the others become zeroes.
    fn add_write(
        &mut self,
        file: &Arc<WritableFile>,
        request: DirectRequest,
        runs: &[PlannedRun],
        own: Range<u64>,
    ) {
        check_runs(runs, &own);
        let block = u64::from(file.mapping().block_size().bytes());
        let ranges = runs.iter().map(|run| run.finished(block)).collect();
        let request = InFlightRequest::write(file, request, ranges);
        self.add(BioOperation::Write, &request, runs, own);
        self.requests.push(request);
    }

    /// Adds bios for `runs`, one for each group of runs that are contiguous on the device. `own`
    /// are the bytes of the runs, from the start of the first, that the request has memory for. The
    /// others become zeroes.
    fn add(
        &mut self,
        operation: BioOperation,
        request: &Arc<InFlightRequest>,
        runs: &[PlannedRun],
        own: Range<u64>,
    ) {
        let Some(first) = runs.first().map(|run| run.at) else { return };
        let mut pending: Option<PendingBio> = None;
        for run in runs {
            let start = run.at - first;
            let end = start + run.length;
            let has_data = operation == BioOperation::Write || run.kind == IomapKind::Mapped;
            let Some(address) = run.address.filter(|_| has_data) else {
                request.fill_zeroes(start - own.start..end - own.start);
                continue;
            };
            let is_contiguous =
                |bio: &PendingBio| bio.address.checked_add(bio.length) == Some(address);
            if !pending.as_ref().is_some_and(is_contiguous) {
                self.push(operation, request, pending.take());
            }
            let bio = pending.get_or_insert_with(|| PendingBio {
                address,
                length: 0,
                segments: SmallVec::new(),
            });
            bio.length += run.length;
            let own_start = own.start.clamp(start, end);
            let own_end = own.end.clamp(start, end);
            push_zeroes(&mut bio.segments, own_start - start);
            if own_start < own_end {
                bio.segments.push(request.part(own_start - own.start..own_end - own.start));
            }
            push_zeroes(&mut bio.segments, end - own_end);
        }
        self.push(operation, request, pending);
    }

    fn push(
        &mut self,
        operation: BioOperation,
        request: &Arc<InFlightRequest>,
        pending: Option<PendingBio>,
    ) {
        let Some(PendingBio { address, segments, .. }) = pending else { return };
        let request = Arc::clone(request);
        self.bios.push(Bio::new(operation, address, segments, move |result| {
            if let Err(error) = result {
                request.fail(error.into());
            }
        }));
    }

    /// Returns a request that is refused. A request that has failed is added, and ends with the
    /// error once the caller submits the batch.
    fn add_failed(&mut self, request: DirectRequest, no_plan: NoPlan) -> Added {
        match no_plan {
            NoPlan::Refused(refused) => Err((refused, request)),
            NoPlan::Failed(error) => {
                self.requests.push(InFlightRequest::failed(request, error));
                Ok(())
            }
        }
    }

    /// Submits all requests. The caller holds no locks, since some requests may end in this call.
    pub fn submit(self, device: &dyn BlockDevice) {
        if !self.bios.is_empty() {
            base::waiting::about_to_wait();
            device.submit(self.bios);
        }
        drop(self.requests);
    }

    /// Submits the only request of the batch, which `wait` is for, and waits for its end. For
    /// `file`, see [`DirectWait::wait_for`].
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

/// Asserts that `runs` follow one another, and that the bytes `own` of them, from the start of the
/// first, exist. Otherwise a request would report bytes that were not moved.
fn check_runs(runs: &[PlannedRun], own: &Range<u64>) {
    let is_contiguous = runs.windows(2).all(|two| two[0].end() == two[1].at);
    let length: u64 = runs.iter().map(|run| run.length).sum();
    assert!(is_contiguous && own.end <= length, "{runs:?} have not all of the bytes {own:?}");
}

fn push_zeroes(segments: &mut SmallVec<[Segment; 4]>, mut length: u64) {
    while length > 0 {
        let part = length.min(ZEROES.len() as u64);
        // SAFETY: the zeroes are static, and the bio of a write only reads them.
        segments.push(unsafe { Segment::new(NonNull::from(&ZEROES[0]), part as usize) });
        length -= part;
    }
}
