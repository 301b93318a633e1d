//! A direct request under way.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use base::Error;
use device::Segment;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::end::{Ended, end_at_once};
use super::request::{DirectRequest, Done};
use crate::barrier::Entered;
use crate::file::WritableFile;
use crate::mapping::FinishedRange;

/// A request under way. It ends when the last bio that shares it does, and its batch.
pub(super) struct Call {
    file: Option<Arc<WritableFile>>,
    /// Taken at the end.
    request: Mutex<Option<DirectRequest>>,
    written: Range<u64>,
    ranges: SmallVec<[FinishedRange; 2]>,
    /// The bytes that are moved if all goes well.
    length: usize,
    failure: Mutex<Option<Error>>,
    /// For a write, the passage through the barrier.
    entered: Option<Arc<Entered>>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({:?})", self.request.lock())
    }
}

impl Call {
    /// A read of `length` bytes of a file that is written to by way of `file`, if by any.
    pub(super) fn read(
        file: Option<&Arc<WritableFile>>,
        request: DirectRequest,
        length: usize,
    ) -> Arc<Self> {
        Self::begin(file, request, 0..0, SmallVec::new(), length, None)
    }

    /// A write of all that `request` has, to blocks in these ranges.
    pub(super) fn write(
        file: &Arc<WritableFile>,
        request: DirectRequest,
        ranges: SmallVec<[FinishedRange; 2]>,
        entered: Arc<Entered>,
    ) -> Arc<Self> {
        let length = request.length();
        let written = request.at..request.at + length as u64;
        Self::begin(Some(file), request, written, ranges, length, Some(entered))
    }

    /// One that moves nothing, and ends with an error.
    pub(super) fn failed(request: DirectRequest, error: Error) -> Arc<Self> {
        let call = Self::begin(None, request, 0..0, SmallVec::new(), 0, None);
        call.fail(error);
        call
    }

    fn begin(
        file: Option<&Arc<WritableFile>>,
        request: DirectRequest,
        written: Range<u64>,
        ranges: SmallVec<[FinishedRange; 2]>,
        length: usize,
        entered: Option<Arc<Entered>>,
    ) -> Arc<Self> {
        if let Some(file) = file {
            file.direct.begin();
        }
        let (file, request) = (file.cloned(), Mutex::new(Some(request)));
        let failure = Mutex::new(None);
        Arc::new(Self { file, request, written, ranges, length, failure, entered })
    }

    /// Has it end with an error, the first that is said.
    pub(super) fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
    }

    /// A part of the memory for a bio of this call.
    pub(super) fn part(&self, range: Range<u64>) -> Segment {
        let (start, length) = (range.start as usize, (range.end - range.start) as usize);
        let request = self.request.lock();
        let memory = &request.as_ref().expect("taken at the end only").memory;
        // SAFETY: the bio holds the call, which keeps the whole, until it has ended. Parts do not
        // overlap, and the whole is not touched.
        unsafe { memory.part(start, length) }
    }

    /// Makes a part of the memory of a read zeroes.
    pub(super) fn fill_zeroes(&self, range: Range<u64>) {
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
        let entered = self.entered.take();
        let ended = Ended { written, ranges, reached, result, counts, entered };
        match (done, &self.file) {
            (Done::Waiter(waiter), _) => waiter.put(ended),
            (Done::Callback(done), Some(file)) if ended.needs_thread(file) => {
                file.end_io.direct.push(file, ended, done);
            }
            (Done::Callback(done), file) => end_at_once(file.as_deref(), ended, done),
        }
    }
}
