//! The end of direct requests: the format hears of what was written, the cache forgets what it has of it,
//! and the callers are told. Requests of one file that have ended by the time somebody looks end together,
//! with one call of the format; those of different files, on several threads.
//! Not here: the submission (`batch.rs`), and what a request holds until then (`call.rs`).
//!
//! Who ends a request may start transactions, and locks folios. So it is none of the threads that a
//! folio's owner may wait for: not a device's, and not that of `end_io.rs`.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use base::{Error, Result, Unsupported};
use device::Worker;
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use super::forget;
use super::request::DirectDone;
use crate::end_io::merge;
use crate::file::WritableFile;
use crate::mapping::{FinishedRange, IomapKind};

/// Threads that end requests, at most.
const THREADS_MAX: usize = 4;

/// A request whose bios have ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// What was written; empty for a read.
    pub written: Range<u64>,
    /// The blocks of a write.
    pub ranges: SmallVec<[FinishedRange; 2]>,
    /// How far the file reaches with what was written.
    pub reached: u64,
    pub result: Result<usize>,
    /// Whether it counts as in flight.
    pub counts: bool,
}

impl Ended {
    /// A request that was never submitted.
    pub(super) fn refused(result: Result<usize>) -> Self {
        Self { written: 0..0, ranges: SmallVec::new(), reached: 0, result, counts: false }
    }

    /// Whether the format has to hear of it.
    fn is_news(&self, file: &WritableFile) -> bool {
        let is_unwritten = |range: &FinishedRange| range.kind == IomapKind::Unwritten;
        self.result.is_ok()
            && !self.written.is_empty()
            && (self.ranges.iter().any(is_unwritten) || self.reached > file.size_on_disk())
    }

    /// Whether its end takes more than telling its caller.
    pub(super) fn needs_thread(&self, file: &WritableFile) -> bool {
        !self.written.is_empty() && (super::is_cached(file, &self.written) || self.is_news(file))
    }
}

/// Ends one request; gives what its caller is told.
pub(super) fn end(file: Option<&Arc<WritableFile>>, ended: Ended) -> Result<usize> {
    let Some(file) = file else { return ended.result };
    let mut result = Ok(0);
    end_all(file, vec![(ended, &mut |told| result = told)]);
    result
}

/// Ends a request that takes no more than that, on any thread.
pub(super) fn end_at_once(file: Option<&WritableFile>, ended: Ended, done: DirectDone) {
    if let Some(file) = file {
        file.end_io.direct.note(&ended);
        if ended.counts {
            file.direct.end();
        }
    }
    guarded(done)(ended.result);
}

/// Ends requests of one file, each with what tells its caller.
fn end_all<F: FnOnce(Result<usize>)>(file: &Arc<WritableFile>, calls: Vec<(Ended, F)>) {
    let is_news: Vec<bool> = calls.iter().map(|(ended, _)| ended.is_news(file)).collect();
    let ended = calls.iter().map(|(ended, _)| ended).zip(&is_news);
    let news: Vec<&Ended> =
        ended.filter(|(_, is_news)| **is_news).map(|(ended, _)| ended).collect();
    let told = match news.is_empty() {
        true => Ok(()),
        // What a panic leaves undone is lost, and is not to be taken for written.
        false => catch_unwind(AssertUnwindSafe(|| tell(file, &news))).unwrap_or_else(|_| {
            let operation = "going on after a panic at the end of a direct write";
            file.mapper.panicked(operation);
            Err(Error::Lost(Arc::new(Unsupported::Operation(operation).into())))
        }),
    };
    // After a panic, which was reported, the rest goes on: others wait for it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        for (ended, _) in &calls {
            if !ended.written.is_empty() && super::is_cached(file, &ended.written) {
                // Read while it was written.
                forget(file, &ended.written);
            }
        }
    }));
    // Before anybody is told, who may wait for somebody that waits for these.
    calls.iter().filter(|(ended, _)| ended.counts).for_each(|_| file.direct.end());
    calls.iter().for_each(|(ended, _)| file.end_io.direct.note(ended));
    for ((ended, done), is_news) in calls.into_iter().zip(is_news) {
        let result = match &told {
            Err(error) if is_news => ended.result.and(Err(error.clone())),
            _ => ended.result,
        };
        done(result);
    }
}

/// Tells the format what was written.
fn tell(file: &WritableFile, news: &[&Ended]) -> Result<()> {
    let finished = merge(news.iter().flat_map(|ended| ended.ranges.iter().copied()).collect());
    let reached = news.iter().map(|ended| ended.reached).max().unwrap_or(0);
    if reached > file.size() {
        // Whoever writes past the end holds the inode's lock alone, and waits for this.
        file.set_size(reached);
    }
    file.telling().tell(&finished, reached)
}

/// Requests of one file that wait for a thread to end them.
#[derive(Default)]
pub(crate) struct EndedCalls(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    calls: Vec<(Ended, DirectDone)>,
    /// Whether a thread has the file, or will.
    is_queued: bool,
}

impl EndedCalls {
    /// What waits; with nothing, the file is no thread's any more.
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

/// The threads that end the direct requests of some files, of one volume as a rule.
#[derive(Debug, Default)]
pub(crate) struct DirectEnds {
    queue: Arc<Queue>,
    /// Started when there is work for them; waited for when this is dropped. The last file may be dropped by
    /// one of them, when the last of its requests has ended.
    threads: OnceLock<Vec<Worker>>,
    /// A write has ended since somebody asked.
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

    /// Sees to it that there are threads. `OutOfMemory` when the host refuses all of them.
    pub(super) fn start(&self) -> Result<()> {
        let threads = self.threads.get_or_init(|| {
            let count = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
            let start = |_| {
                let queue = Arc::clone(&self.queue);
                Worker::start("end of direct I/O", move || queue.work()).ok()
            };
            (0..count).map_while(start).collect()
        });
        if threads.is_empty() { Err(Error::OutOfMemory) } else { Ok(()) }
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
    /// What a thread does: one file after another, until there are none and none will come.
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
