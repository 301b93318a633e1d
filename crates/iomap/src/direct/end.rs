//! The end of direct requests: one call of the format for all ended requests of a file,
//! invalidation of the cache's copies of the data, and the requests' callbacks. Several threads
//! complete the requests of different files. Not here: the submission (`submit.rs`), and the state
//! of a request in flight (`request.rs`).
//!
//! The completing thread may start transactions, and locks folios. So it must be no thread for
//! which the holder of a folio's lock may wait: neither a device's, nor that of
//! `writeback/end_io.rs`.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use base::{Error, OnDrop, Result};
use device::{Worker, WorkingThreads};
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::file::WritableFile;
use crate::folios::{invalidate, is_cached};
use crate::mapping::{FinishedRange, IomapKind};
use crate::writeback::end_io::merge;

/// The maximum number of threads that complete requests.
const THREADS_MAX: usize = 4;

/// The callback of a request. Its argument is the number of bytes that were moved; a read ends at
/// the end of the file. After an error, some bytes of a write may be written. Called once, on any
/// thread, without locks. It must not wait for other requests, which may need that thread, nor drop
/// the volume, which waits for them.
pub type DirectDone = Box<dyn FnOnce(Result<usize>) + Send>;

/// A request whose bios have ended.
#[derive(Debug)]
pub(super) struct EndedRequest {
    /// The bytes that were written; empty for a read.
    pub written: Range<u64>,
    /// The whole blocks of a write.
    pub ranges: SmallVec<[FinishedRange; 2]>,
    /// The size of the file with this write.
    pub reached: u64,
    pub result: Result<usize>,
    /// Whether the request is counted as in flight.
    pub is_counted: bool,
}

impl EndedRequest {
    /// Returns the end of a request that was never submitted.
    pub(super) fn refused(result: Result<usize>) -> Self {
        Self { written: 0..0, ranges: SmallVec::new(), reached: 0, result, is_counted: false }
    }

    /// Returns whether the format must be called for the request.
    fn needs_format(&self, file: &WritableFile) -> bool {
        let is_unwritten = |range: &FinishedRange| range.kind == IomapKind::Unwritten;
        self.is_placed()
            || self.result.is_ok()
                && !self.written.is_empty()
                && (self.ranges.iter().any(is_unwritten) || self.reached > file.size_on_disk())
    }

    /// Returns whether data was written out of place, or should have been.
    fn is_placed(&self) -> bool {
        self.ranges.iter().any(|range| range.token.is_some())
    }

    /// Returns whether the end of the request needs more than its callback.
    pub(super) fn needs_thread(&self, file: &WritableFile) -> bool {
        !self.written.is_empty() && (is_cached(file, &self.written) || self.needs_format(file))
    }
}

/// Completes one request. Returns its result.
pub(super) fn complete(file: Option<&Arc<WritableFile>>, ended: EndedRequest) -> Result<usize> {
    let Some(file) = file else { return ended.result };
    let mut result = Ok(0);
    complete_all(file, vec![(ended, &mut |ended| result = ended)]);
    result
}

/// Completes a request that needs only its callback ([`EndedRequest::needs_thread`]), on any
/// thread.
pub(super) fn complete_here(file: Option<&WritableFile>, ended: EndedRequest, done: DirectDone) {
    if let Some(file) = file {
        file.end_io.direct.record(&ended);
        if ended.is_counted {
            file.direct_in_flight.end();
        }
    }
    catching_panics(done)(ended.result);
}

/// Completes requests of one file, and calls the callback of each.
fn complete_all<F: FnOnce(Result<usize>)>(
    file: &Arc<WritableFile>,
    requests: Vec<(EndedRequest, F)>,
) {
    let need_format: Vec<bool> =
        requests.iter().map(|(ended, _)| ended.needs_format(file)).collect();
    let for_format: Vec<&EndedRequest> = requests
        .iter()
        .zip(&need_format)
        .filter(|(_, needs_format)| **needs_format)
        .map(|((ended, _), _)| ended)
        .collect();
    let called = if for_format.is_empty() {
        Ok(())
    } else {
        // After a panic the data is lost, not written.
        catch_unwind(AssertUnwindSafe(|| call_format(file, &for_format))).unwrap_or_else(|_| {
            let operation = "the end of a direct write";
            file.mapper.panicked(operation);
            Err(Error::Lost(Arc::new(Error::Panicked(operation))))
        })
    };
    // The rest is done even after a panic, which the panic hook has reported: callers wait for it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        for (ended, _) in &requests {
            if !ended.written.is_empty() && is_cached(file, &ended.written) {
                // The range was read into the cache during the write.
                invalidate(file, &ended.written);
            }
        }
    }));
    // Before the callbacks, which may wait for threads that wait for these requests.
    requests.iter().filter(|(ended, _)| ended.is_counted).for_each(|_| file.direct_in_flight.end());
    requests.iter().for_each(|(ended, _)| file.end_io.direct.record(ended));
    for ((ended, done), needs_format) in requests.into_iter().zip(need_format) {
        let result = match &called {
            Err(error) if needs_format => ended.result.and(Err(error.clone())),
            _ => ended.result,
        };
        done(result);
    }
}

/// Calls the format for the data that was written.
fn call_format(file: &WritableFile, requests: &[&EndedRequest]) -> Result<()> {
    let (written, failed): (Vec<&EndedRequest>, Vec<&EndedRequest>) =
        requests.iter().partition(|ended| ended.result.is_ok());
    let finished = merge(written.iter().flat_map(|ended| ended.ranges.iter().copied()).collect());
    let reached = written.iter().map(|ended| ended.reached).max().unwrap_or(0);
    let guard = file.lock_end_io();
    guard.unplace(failed.iter().flat_map(|ended| &ended.ranges));
    guard.end_io(&finished, reached)?;
    if reached > file.size() {
        // A writer past the end holds the inode's lock alone, and waits for this.
        file.set_size(reached);
    }
    Ok(())
}

/// Requests of one file that wait for a thread to complete them.
#[derive(Default)]
pub(crate) struct EndedRequests(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    requests: Vec<(EndedRequest, DirectDone)>,
    /// Whether a thread works on the file, or the file is queued for one.
    is_queued: bool,
}

impl EndedRequests {
    /// Returns whether no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().requests.is_empty()
    }

    /// Returns the waiting requests. If there are none, the thread leaves the file.
    fn take(&self) -> Option<Vec<(EndedRequest, DirectDone)>> {
        let mut waiting = self.0.lock();
        let requests = std::mem::take(&mut waiting.requests);
        waiting.is_queued = !requests.is_empty();
        (!requests.is_empty()).then_some(requests)
    }
}

impl std::fmt::Debug for EndedRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EndedRequests({})", self.0.lock().requests.len())
    }
}

/// The threads that complete the direct requests of some files, usually those of one volume.
#[derive(Debug, Default)]
pub(crate) struct DirectEndIo {
    queue: Arc<Queue>,
    /// Started when there is work for them; waited for when this is dropped. The last file may be
    /// dropped by one of them, when the last of its requests has ended.
    threads: OnceLock<Result<Vec<Worker>>>,
    /// Whether a write has ended since the last call of [`DirectEndIo::take_written`].
    has_written: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    files: Mutex<Files>,
    changed: Condvar,
    /// Notified when the requests of a file were completed.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Files {
    waiting: VecDeque<Arc<WritableFile>>,
    working: WorkingThreads,
    closed: bool,
}

impl DirectEndIo {
    /// Records the end of a request. Called before its callback.
    fn record(&self, ended: &EndedRequest) {
        if !ended.written.is_empty() {
            self.has_written.store(true, Ordering::Release);
        }
    }

    /// Returns whether a write has ended since the last call.
    pub(crate) fn take_written(&self) -> bool {
        self.has_written.swap(false, Ordering::AcqRel)
    }

    /// Starts the threads, unless they run. Errors: `ThreadSpawn` if the host refuses all of them.
    pub(super) fn start(&self) -> Result<()> {
        let threads = self.threads.get_or_init(|| {
            let count = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
            let mut threads = Vec::new();
            for _ in 0..count {
                let queue = Arc::clone(&self.queue);
                match Worker::start("end of direct I/O", move || queue.work()) {
                    Ok(thread) => threads.push(thread),
                    Err(error) if threads.is_empty() => return Err(Error::thread_spawn(&error)),
                    // Fewer threads do the same work.
                    Err(_) => break,
                }
            }
            Ok(threads)
        });
        threads.as_ref().map(drop).map_err(Error::clone)
    }

    /// Waits until all threads but this one have completed what was queued, and hold no file.
    pub(crate) fn wait_until_idle(&self) {
        let mut files = self.queue.files.lock();
        while !files.waiting.is_empty() || files.working.has_others() {
            self.queue.done.wait(&mut files);
        }
    }

    /// Queues a request for a thread that completes it.
    pub(super) fn push(&self, file: &Arc<WritableFile>, ended: EndedRequest, done: DirectDone) {
        let mut waiting = file.direct_ended.0.lock();
        waiting.requests.push((ended, done));
        if std::mem::replace(&mut waiting.is_queued, true) {
            return;
        }
        drop(waiting);
        self.queue.files.lock().waiting.push_back(Arc::clone(file));
        self.queue.changed.notify_one();
    }
}

impl Drop for DirectEndIo {
    fn drop(&mut self) {
        self.queue.files.lock().closed = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    /// Runs a thread: completes requests of one file after another, until there are none and the
    /// queue is closed.
    fn work(&self) {
        let mut files = self.files.lock();
        loop {
            if let Some(file) = files.waiting.pop_front() {
                files.working.begin();
                drop(files);
                let working = OnDrop(|| {
                    self.files.lock().working.end();
                    self.done.notify_all();
                });
                while let Some(requests) = file.direct_ended.take() {
                    let requests = requests.into_iter();
                    let requests = requests.map(|(ended, done)| (ended, catching_panics(done)));
                    complete_all(&file, requests.collect());
                }
                drop(file);
                drop(working);
                files = self.files.lock();
            } else if files.closed {
                return;
            } else {
                self.changed.wait(&mut files);
            }
        }
    }
}

/// Returns `done` with its panics caught, which the panic hook has reported: other requests need
/// this thread.
fn catching_panics(done: DirectDone) -> impl FnOnce(Result<usize>) {
    move |result| {
        let _ = catch_unwind(AssertUnwindSafe(|| done(result)));
    }
}
