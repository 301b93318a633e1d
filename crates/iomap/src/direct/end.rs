//! The end of direct requests: calls the format for the data that was written, invalidates the cache's copies of
//! it, and calls the requests' callers. All ended requests of one file are completed with one call of the format;
//! several threads complete those of different files.
//! Not here: the submission (`batch.rs`), and the state of a request until then (`call.rs`).
//!
//! The completing thread may start transactions, and locks folios. So it must be no thread for which the holder
//! of a folio's lock may wait: neither a device's, nor that of `end_io.rs`.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use base::{Error, Result};
use device::Worker;
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use super::forget;
use super::request::DirectDone;
use crate::barrier::Entered;
use crate::end_io::merge;
use crate::file::WritableFile;
use crate::mapping::{FinishedRange, IomapKind};

/// The maximum number of threads that complete requests.
const THREADS_MAX: usize = 4;

/// A request whose bios have ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The bytes that were written; empty for a read.
    pub written: Range<u64>,
    /// The blocks of a write.
    pub ranges: SmallVec<[FinishedRange; 2]>,
    /// The size of the file with this write.
    pub reached: u64,
    pub result: Result<usize>,
    /// Whether the request counts as in flight.
    pub counts: bool,
    /// Held until the format was called.
    pub entered: Option<Arc<Entered>>,
}

impl Ended {
    /// Returns the end of a request that was never submitted.
    pub(super) fn refused(result: Result<usize>) -> Self {
        Self {
            written: 0..0,
            ranges: SmallVec::new(),
            reached: 0,
            result,
            counts: false,
            entered: None,
        }
    }

    /// Returns whether the format must be called for the request.
    fn is_news(&self, file: &WritableFile) -> bool {
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

    /// Returns whether the end of the request needs more than a call of its caller.
    pub(super) fn needs_thread(&self, file: &WritableFile) -> bool {
        !self.written.is_empty() && (super::is_cached(file, &self.written) || self.is_news(file))
    }
}

/// Completes one request. Returns its result.
pub(super) fn end(file: Option<&Arc<WritableFile>>, ended: Ended) -> Result<usize> {
    let Some(file) = file else { return ended.result };
    let mut result = Ok(0);
    end_all(file, vec![(ended, &mut |told| result = told)]);
    result
}

/// Completes a request that needs only the call of its caller ([`Ended::needs_thread`]), on any thread.
pub(super) fn end_at_once(file: Option<&WritableFile>, mut ended: Ended, done: DirectDone) {
    if let Some(file) = file {
        file.end_io.direct.note(&ended);
        if ended.counts {
            file.direct.end();
        }
    }
    // The caller may wait for a thread that waits at the barrier.
    drop(ended.entered.take());
    guarded(done)(ended.result);
}

/// Completes requests of one file, and calls the callback of each.
fn end_all<F: FnOnce(Result<usize>)>(file: &Arc<WritableFile>, mut calls: Vec<(Ended, F)>) {
    let is_news: Vec<bool> = calls.iter().map(|(ended, _)| ended.is_news(file)).collect();
    let ended = calls.iter().map(|(ended, _)| ended).zip(&is_news);
    let news: Vec<&Ended> =
        ended.filter(|(_, is_news)| **is_news).map(|(ended, _)| ended).collect();
    let called = match news.is_empty() {
        true => Ok(()),
        // After a panic the data is lost, not written.
        false => catch_unwind(AssertUnwindSafe(|| call_format(file, &news))).unwrap_or_else(|_| {
            let operation = "the end of a direct write";
            file.mapper.panicked(operation);
            Err(Error::Lost(Arc::new(Error::Panicked(operation))))
        }),
    };
    // The rest is done even after a panic, which the panic hook has reported: callers wait for it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        for (ended, _) in &calls {
            if !ended.written.is_empty() && super::is_cached(file, &ended.written) {
                // It was read into the cache while it was written.
                forget(file, &ended.written);
            }
        }
    }));
    // Before the callbacks, which may wait for threads that wait for these requests.
    calls.iter().filter(|(ended, _)| ended.counts).for_each(|_| file.direct.end());
    calls.iter().for_each(|(ended, _)| file.end_io.direct.note(ended));
    calls.iter_mut().for_each(|(ended, _)| drop(ended.entered.take()));
    for ((ended, done), is_news) in calls.into_iter().zip(is_news) {
        let result = match &called {
            Err(error) if is_news => ended.result.and(Err(error.clone())),
            _ => ended.result,
        };
        done(result);
    }
}

/// Calls the format for the data that was written.
fn call_format(file: &WritableFile, news: &[&Ended]) -> Result<()> {
    let (written, failed): (Vec<&Ended>, Vec<&Ended>) =
        news.iter().partition(|ended| ended.result.is_ok());
    let finished = merge(written.iter().flat_map(|ended| ended.ranges.iter().copied()).collect());
    let reached = written.iter().map(|ended| ended.reached).max().unwrap_or(0);
    if reached > file.size() {
        // A writer past the end holds the inode's lock alone, and waits for this.
        file.set_size(reached);
    }
    let guard = file.lock_end_io();
    guard.unplace(failed.iter().flat_map(|ended| &ended.ranges));
    guard.end_io(&finished, reached)
}

/// Requests of one file that wait for a thread to complete them.
#[derive(Default)]
pub(crate) struct EndedCalls(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    calls: Vec<(Ended, DirectDone)>,
    /// Whether a thread works on the file, or the file is queued for one.
    is_queued: bool,
}

impl EndedCalls {
    /// Returns the waiting requests. If there are none, the thread leaves the file.
    fn take(&self) -> Option<Vec<(Ended, DirectDone)>> {
        let mut waiting = self.0.lock();
        let calls = std::mem::take(&mut waiting.calls);
        waiting.is_queued = !calls.is_empty();
        (!calls.is_empty()).then_some(calls)
    }
}

impl std::fmt::Debug for EndedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EndedCalls({})", self.0.lock().calls.len())
    }
}

/// The threads that complete the direct requests of some files, usually those of one volume.
#[derive(Debug, Default)]
pub(crate) struct DirectEnds {
    queue: Arc<Queue>,
    /// Started when there is work for them; waited for when this is dropped. The last file may be dropped by
    /// one of them, when the last of its requests has ended.
    threads: OnceLock<Result<Vec<Worker>>>,
    /// A write has ended since the last call of [`DirectEnds::take_written`].
    has_written: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    files: Mutex<Files>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Files {
    waiting: VecDeque<Arc<WritableFile>>,
    closed: bool,
}

impl DirectEnds {
    /// Notes the end of a request, before its caller is told.
    fn note(&self, ended: &Ended) {
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

    /// Has a thread end a request.
    pub(super) fn push(&self, file: &Arc<WritableFile>, ended: Ended, done: DirectDone) {
        let mut waiting = file.direct_ended.0.lock();
        waiting.calls.push((ended, done));
        if std::mem::replace(&mut waiting.is_queued, true) {
            return;
        }
        drop(waiting);
        self.queue.files.lock().waiting.push_back(Arc::clone(file));
        self.queue.changed.notify_one();
    }
}

impl Drop for DirectEnds {
    fn drop(&mut self) {
        self.queue.files.lock().closed = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    /// Runs a thread: completes requests of one file after another, until there are none and the queue is closed.
    fn work(&self) {
        let mut files = self.files.lock();
        loop {
            if let Some(file) = files.waiting.pop_front() {
                drop(files);
                while let Some(calls) = file.direct_ended.take() {
                    let calls = calls.into_iter().map(|(ended, done)| (ended, guarded(done)));
                    end_all(&file, calls.collect());
                }
                drop(file);
                files = self.files.lock();
            } else if files.closed {
                return;
            } else {
                self.changed.wait(&mut files);
            }
        }
    }
}

/// `done`, whose panics, which were reported, leave this thread to others.
fn guarded(done: DirectDone) -> impl FnOnce(Result<usize>) {
    move |result| {
        let _ = catch_unwind(AssertUnwindSafe(|| done(result)));
    }
}
