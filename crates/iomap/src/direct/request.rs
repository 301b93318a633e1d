//! Direct requests: from the caller, through flight, to the caller's callback or wait.
//! Not here: plans (`plan.rs`), bios (`submit.rs`), and what the end of a request does (`end.rs`).

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use base::{Error, FileOffset, Result};
use device::Segment;
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use super::end::{DirectDone, EndedRequest, complete, complete_here};
use super::in_flight::CountedIn;
use crate::file::WritableFile;
use crate::mapping::FinishedRange;

/// A range of a file, and the memory that its bytes are read to or written from.
#[derive(Debug)]
pub struct DirectRequest {
    at: u64,
    /// Held until all bios with parts of it have ended.
    memory: Segment,
    pub(super) completion: Completion,
}

/// The receiver of a request's end.
pub(super) enum Completion {
    Callback(DirectDone),
    /// A waiting thread, which completes the request itself.
    Waiter(Arc<Waiter>),
}

impl DirectRequest {
    /// Creates a request for all of `memory`, from byte `at` of the file on. Both are multiples of
    /// [`DIRECT_ALIGNMENT`](super::DIRECT_ALIGNMENT).
    pub fn new(at: FileOffset, memory: Segment, done: DirectDone) -> Self {
        Self { at: at.0, memory, completion: Completion::Callback(done) }
    }

    /// Creates a request that owns its memory until `done` gets it back.
    pub fn owning(
        at: FileOffset,
        mut memory: Vec<u8>,
        done: impl FnOnce(Vec<u8>, Result<usize>) + Send + 'static,
    ) -> Self {
        let start = NonNull::from(memory.as_mut_slice()).cast();
        // SAFETY: the closure owns the vector until it is called or dropped, and by then all bios
        // have ended. The memory does not move with the vector, and nothing else accesses it.
        let segment = unsafe { Segment::new(start, memory.len()) };
        Self::new(at, segment, Box::new(move |result| done(memory, result)))
    }

    /// Creates a request whose caller submits it and waits for it at once.
    pub(super) fn waited_for(at: FileOffset, memory: Segment) -> (Self, DirectWait) {
        let waiter = Arc::new(Waiter::default());
        let completion = Completion::Waiter(Arc::clone(&waiter));
        (Self { at: at.0, memory, completion }, DirectWait(waiter))
    }

    /// Returns the first byte in the file.
    pub fn at(&self) -> FileOffset {
        FileOffset(self.at)
    }

    /// Returns the number of bytes.
    pub fn length(&self) -> usize {
        self.memory.len()
    }

    /// Returns the bytes of the file.
    pub(super) fn range(&self) -> Range<u64> {
        self.at..self.at.saturating_add(self.length() as u64)
    }

    /// Returns the bytes of a write.
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Calls `read` with the memory of a read.
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        // SAFETY: the memory of a read is the request's alone until the request has ended, and no
        // bio has it.
        read(unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.memory.len()) })
    }

    /// Ends a request that was not added to a batch, or was refused. The caller holds no locks.
    pub fn end(self, result: Result<usize>) {
        match self.completion {
            Completion::Callback(done) => done(result),
            Completion::Waiter(waiter) => waiter.notify(EndedRequest::refused(result)),
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Callback(_) => "Callback",
            Self::Waiter(_) => "Waiter",
        })
    }
}

/// A slot for the end of a request, and the thread that waits for it.
#[derive(Default)]
pub(super) struct Waiter {
    ended: Mutex<Option<EndedRequest>>,
    has_ended: Condvar,
}

impl Waiter {
    fn notify(&self, ended: EndedRequest) {
        *self.ended.lock() = Some(ended);
        self.has_ended.notify_one();
    }

    fn wait(&self) -> EndedRequest {
        let mut guard = self.ended.lock();
        loop {
            match guard.take() {
                Some(ended) => return ended,
                None => self.has_ended.wait(&mut guard),
            }
        }
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiter")
    }
}

/// The wait for the end of a request.
#[derive(Debug)]
#[must_use = "the memory is in use until the request has ended"]
pub(super) struct DirectWait(Arc<Waiter>);

impl DirectWait {
    /// Calls `submit`, which submits the request, waits until the request has ended, also if
    /// `submit` panics, and completes it. Returns the request's result. `file` is the file's state
    /// for writing, if it has one.
    pub(super) fn wait_for(
        self,
        file: Option<&Arc<WritableFile>>,
        submit: impl FnOnce(),
    ) -> Result<usize> {
        let submitted = catch_unwind(AssertUnwindSafe(submit));
        let result = complete(file, self.0.wait());
        match submitted {
            Ok(()) => result,
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// A request in flight. Its bios and its batch share it; it ends when the last of them drops it.
pub(super) struct InFlightRequest {
    file: Option<Arc<WritableFile>>,
    /// Taken at the end.
    request: Mutex<Option<DirectRequest>>,
    /// The bytes of a write; empty for a read.
    written: Range<u64>,
    ranges: SmallVec<[FinishedRange; 2]>,
    /// The number of bytes that are moved if there is no error.
    length: usize,
    failure: Mutex<Option<Error>>,
    /// The count of a read.
    read: Option<ReadInFlight>,
}

impl fmt::Debug for InFlightRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlightRequest({:?})", self.request.lock())
    }
}

impl InFlightRequest {
    /// Creates a read of `length` bytes. `file` is the file's state for writing, if it has one.
    pub(super) fn read(
        file: Option<&Arc<WritableFile>>,
        request: DirectRequest,
        length: usize,
        read: Option<ReadInFlight>,
    ) -> Arc<Self> {
        let mut begun = Self::new(file, request, 0..0, SmallVec::new(), length);
        begun.read = read;
        Arc::new(begun)
    }

    /// Creates a write of all of `request`, to blocks in these ranges.
    pub(super) fn write(
        file: &Arc<WritableFile>,
        request: DirectRequest,
        ranges: SmallVec<[FinishedRange; 2]>,
    ) -> Arc<Self> {
        let (written, length) = (request.range(), request.length());
        Arc::new(Self::new(Some(file), request, written, ranges, length))
    }

    /// Creates a request that moves no bytes, and ends with an error.
    pub(super) fn failed(request: DirectRequest, error: Error) -> Arc<Self> {
        let failed = Self::new(None, request, 0..0, SmallVec::new(), 0);
        failed.fail(error);
        Arc::new(failed)
    }

    fn new(
        file: Option<&Arc<WritableFile>>,
        request: DirectRequest,
        written: Range<u64>,
        ranges: SmallVec<[FinishedRange; 2]>,
        length: usize,
    ) -> Self {
        if let Some(file) = file {
            file.direct_in_flight.begin();
        }
        Self {
            file: file.cloned(),
            request: Mutex::new(Some(request)),
            written,
            ranges,
            length,
            failure: Mutex::new(None),
            read: None,
        }
    }

    /// Records an error. The request ends with the first one.
    pub(super) fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
    }

    /// Returns a part of the memory, for a bio that holds this request.
    pub(super) fn part(&self, range: Range<u64>) -> Segment {
        let (start, length) = (range.start as usize, (range.end - range.start) as usize);
        let request = self.request.lock();
        let memory = &request.as_ref().expect("taken at the end only").memory;
        // SAFETY: the bio holds this request until the bio has ended, and this request holds the
        // memory. Parts do not overlap, and the whole is not accessed.
        unsafe { memory.part(start, length) }
    }

    /// Zeroes a part of the memory of a read.
    pub(super) fn fill_zeroes(&self, range: Range<u64>) {
        let part = self.part(range);
        // SAFETY: the memory of a read is the request's alone until the request has ended, and no
        // bio has this part.
        unsafe { part.as_ptr().write_bytes(0, part.len()) };
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let Some(request) = self.request.get_mut().take() else { return };
        drop(self.read.take());
        let ended = EndedRequest {
            written: self.written.clone(),
            ranges: std::mem::take(&mut self.ranges),
            reached: self.written.end,
            result: self.failure.get_mut().take().map_or(Ok(self.length), Err),
            is_counted: self.file.is_some(),
        };
        match (request.completion, &self.file) {
            (Completion::Waiter(waiter), _) => waiter.notify(ended),
            (Completion::Callback(done), Some(file)) if ended.needs_thread(file) => {
                file.end_io.direct.push(file, ended, done);
            }
            (Completion::Callback(done), file) => complete_here(file.as_deref(), ended, done),
        }
    }
}

/// A direct read that is counted until this is dropped
/// ([`DirectReads`](super::in_flight::DirectReads)).
pub(super) struct ReadInFlight {
    file: Arc<WritableFile>,
    counted: CountedIn,
}

impl ReadInFlight {
    /// Counts a read, before it maps its range. The caller holds the inode's lock.
    pub(super) fn begin(file: &Arc<WritableFile>) -> Self {
        Self { file: Arc::clone(file), counted: file.direct_reads.begin() }
    }
}

impl Drop for ReadInFlight {
    fn drop(&mut self) {
        self.file.direct_reads.end(self.counted);
    }
}
