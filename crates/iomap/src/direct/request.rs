//! One direct request as its caller makes it, and how the caller hears of its end.
//! Not here: doing it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use base::{FileOffset, Result};
use device::Segment;
use parking_lot::{Condvar, Mutex};

use super::end::{Ended, end};
use crate::file::WritableFile;

/// What is told of a request: the number of bytes that were moved, of a read up to the end of the file.
/// An error leaves some of the bytes of a write written. Called once, on any thread, without locks; other
/// requests may need that thread, so that it must not wait for any.
pub type DirectDone = Box<dyn FnOnce(Result<usize>) + Send>;

/// A range of a file and the memory that its bytes go to or come from.
#[derive(Debug)]
pub struct DirectRequest {
    pub(super) at: u64,
    /// Kept until all bios with parts of it have ended.
    pub(super) memory: Segment,
    pub(super) done: Done,
}

/// Who hears of the end.
pub(super) enum Done {
    Callback(DirectDone),
    /// Somebody who waits, and ends it.
    Waiter(Arc<Waiter>),
}

impl DirectRequest {
    /// A request for all of `memory`, from byte `at` of the file on, multiples of
    /// [`DIRECT_ALIGNMENT`](super::DIRECT_ALIGNMENT).
    pub fn new(at: FileOffset, memory: Segment, done: DirectDone) -> Self {
        Self { at: at.0, memory, done: Done::Callback(done) }
    }

    /// The same with memory that is the request's until `done` gets it back.
    pub fn owning(
        at: FileOffset,
        mut memory: Vec<u8>,
        done: impl FnOnce(Vec<u8>, Result<usize>) + Send + 'static,
    ) -> Self {
        let start = NonNull::from(memory.as_mut_slice()).cast();
        // SAFETY: the closure keeps the memory, which does not move with it and which nobody touches,
        // until it is called or dropped, and that is when all bios have ended.
        let segment = unsafe { Segment::new(start, memory.len()) };
        Self::new(at, segment, Box::new(move |result| done(memory, result)))
    }

    /// The same for somebody who submits it and waits for it at once.
    pub(super) fn waited_for(at: FileOffset, memory: Segment) -> (Self, DirectWait) {
        let waiter = Arc::new(Waiter::default());
        let done = Done::Waiter(Arc::clone(&waiter));
        (Self { at: at.0, memory, done }, DirectWait(waiter))
    }

    /// The first byte in the file.
    pub fn at(&self) -> FileOffset {
        FileOffset(self.at)
    }

    /// The number of bytes.
    pub fn length(&self) -> usize {
        self.memory.len()
    }

    /// The bytes of a write.
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Has `read` fill the memory of a read.
    pub fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
        // SAFETY: the memory of a read is for the reader alone until it has ended, and no bio has it.
        read(unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.memory.len()) })
    }

    /// Ends a request that was not added to any batch, or that was refused. The caller holds no locks.
    pub fn end(self, result: Result<usize>) {
        match self.done {
            Done::Callback(done) => done(result),
            Done::Waiter(waiter) => waiter.put(Ended::refused(result)),
        }
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Callback(_) => "Callback",
            Self::Waiter(_) => "Waiter",
        })
    }
}

/// Where a request that somebody waits for ends.
#[derive(Default)]
pub(super) struct Waiter {
    ended: Mutex<Option<Ended>>,
    has_ended: Condvar,
}

impl Waiter {
    pub(super) fn put(&self, ended: Ended) {
        *self.ended.lock() = Some(ended);
        self.has_ended.notify_one();
    }

    fn wait(&self) -> Ended {
        let mut guard = self.ended.lock();
        loop {
            match guard.take() {
                Some(ended) => return ended,
                None => self.has_ended.wait(&mut guard),
            }
        }
    }
}

/// The end of a request that is waited for.
#[derive(Debug)]
#[must_use = "the memory is in use until the request has ended"]
pub(super) struct DirectWait(Arc<Waiter>);

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiter")
    }
}

impl DirectWait {
    /// Has `submit` submit the request, waits until it has ended, also if that panics, and ends it. `file`
    /// is the one that it was for, if that is written to. Gives what its end is told.
    pub(super) fn wait_for(
        self,
        file: Option<&Arc<WritableFile>>,
        submit: impl FnOnce(),
    ) -> Result<usize> {
        let submitted = catch_unwind(AssertUnwindSafe(submit));
        let result = end(file, self.0.wait());
        match submitted {
            Ok(()) => result,
            Err(panic) => resume_unwind(panic),
        }
    }
}
