//! The end of I/O of writeback: calls the format for the data that is on the device, and then ends
//! the folios' writeback. Not here: the submission (`mod.rs`).
//!
//! This runs on a thread of its own, since a format may start transactions, for which the
//! completion of a bio must not wait; or on a thread that would only wait for it, and may start
//! transactions. A folio stays under writeback until the format was called. If it were evicted
//! earlier, it could be read as zeroes, since its blocks are unwritten until then.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use base::{Error, OnDrop, Result};
use device::{Worker, WorkingThreads};
use pagecache::WritebackFolio;
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::direct::end::DirectEndIo;
use crate::file::{EndIoGuard, WritableFile};
use crate::mapping::FinishedRange;
use crate::writeback::errors::WritebackErrors;

/// The maximum number of ends of I/O that wait for the thread. A submitter that finds more
/// completes them itself. A bound in bytes is not enough: 100,000 small files fit into the limit of
/// bytes under writeback.
const WAITING_MAX: usize = 1024;

/// Parts of folios under writeback.
pub(crate) type Pieces = SmallVec<[(Arc<WritebackFolio>, Range<usize>); 4]>;

/// A write whose bio has ended, or whose data could not be submitted.
#[derive(Debug)]
pub(crate) struct EndedWrite {
    /// The folios, which are under writeback until this is dropped. Dropped before the file.
    pub(crate) pieces: Pieces,
    pub(crate) file: Arc<WritableFile>,
    /// The ranges that were written, or should have been.
    pub(crate) ranges: SmallVec<[FinishedRange; 2]>,
    /// The end of the ranges, or the size of the file when they were submitted if that is less.
    pub(crate) reached: u64,
    pub(crate) result: Result<()>,
}

/// The threads that complete the writes of some files, usually those of one volume.
#[derive(Debug)]
pub struct EndIo {
    queue: Arc<Queue>,
    /// Joined when this is dropped. The thread itself may drop the last file, when the last of its
    /// writes has ended.
    _thread: Worker,
    /// The threads that complete direct requests.
    pub(crate) direct: DirectEndIo,
    /// The errors of all files.
    errors: WritebackErrors,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// Notified when ends were taken or completed.
    done: Condvar,
}

#[derive(Default)]
struct Waiting {
    ended: Vec<EndedWrite>,
    working: WorkingThreads,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({} ended)", self.waiting.lock().ended.len())
    }
}

impl EndIo {
    /// Starts the thread.
    pub fn start() -> Result<Arc<Self>> {
        let queue = Arc::new(Queue::default());
        let theirs = Arc::clone(&queue);
        let thread = Worker::start("end of I/O", move || theirs.work());
        let thread = thread.map_err(|error| Error::thread_spawn(&error))?;
        Ok(Arc::new(Self {
            queue,
            _thread: thread,
            direct: DirectEndIo::default(),
            errors: WritebackErrors::default(),
        }))
    }

    /// Returns the errors of all files, for syncs of a whole volume. Open files report those of
    /// their own file.
    pub fn errors(&self) -> &WritebackErrors {
        &self.errors
    }

    /// Queues the end of a bio, on any thread. `wake` is false if the caller completes it itself
    /// ([`complete_on_drop`](Self::complete_on_drop)).
    pub(crate) fn push(&self, ended: EndedWrite, wake: bool) {
        self.queue.waiting.lock().ended.push(ended);
        if wake {
            self.queue.changed.notify_one();
        }
    }

    /// Completes the waiting ends in this thread if they are more than [`WAITING_MAX`]. The caller
    /// may start transactions, like every submitter. It does not wait for the end-of-I/O thread, so
    /// no end of I/O can wait for another.
    pub(crate) fn catch_up(&self) {
        let waiting = self.queue.waiting.lock();
        if waiting.ended.len() > WAITING_MAX {
            self.queue.complete_waiting(waiting);
        }
    }

    /// Returns whether a direct write has ended since the last call. It is on the device, which may
    /// not have been flushed since.
    pub fn take_direct_writes(&self) -> bool {
        self.direct.take_written()
    }

    /// Waits until the threads of this have completed what has ended, and hold no file. The caller
    /// holds no lock that the end of a write takes.
    pub fn wait_until_idle(&self) {
        let mut waiting = self.queue.waiting.lock();
        while !waiting.ended.is_empty() || waiting.working.has_others() {
            self.queue.done.wait(&mut waiting);
        }
        drop(waiting);
        self.direct.wait_until_idle();
    }

    /// Returns a guard that completes all waiting ends in this thread when it is dropped.
    pub(crate) fn complete_on_drop(&self) -> CompletionGuard<'_> {
        CompletionGuard(&self.queue)
    }
}

/// Completes waiting ends when it is dropped. The thread may start transactions.
pub(crate) struct CompletionGuard<'q>(&'q Queue);

impl Drop for CompletionGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.changed.notify_one();
            return;
        }
        self.0.complete_waiting(self.0.waiting.lock());
    }
}

impl Drop for EndIo {
    fn drop(&mut self) {
        self.queue.waiting.lock().closed = true;
        self.queue.changed.notify_one();
    }
}

impl Drop for Queue {
    /// The folios of waiting ends would be released though the format does not know that they were
    /// written.
    fn drop(&mut self) {
        let is_empty = self.waiting.get_mut().ended.is_empty();
        debug_assert!(is_empty || thread::panicking(), "ended writes are dropped");
    }
}

impl Queue {
    /// Completes ends until the queue is closed and empty. All that wait are one batch, so that a
    /// slow format gets larger batches.
    fn work(&self) {
        let mut waiting = self.waiting.lock();
        loop {
            while waiting.ended.is_empty() {
                if waiting.closed {
                    return;
                }
                self.changed.wait(&mut waiting);
            }
            self.complete_waiting(waiting);
            waiting = self.waiting.lock();
        }
    }

    /// Completes the waiting ends in this thread, which holds files until then.
    fn complete_waiting(&self, mut waiting: MutexGuard<'_, Waiting>) {
        let batch = std::mem::take(&mut waiting.ended);
        waiting.working.begin();
        drop(waiting);
        let working = OnDrop(|| {
            self.waiting.lock().working.end();
            self.done.notify_all();
        });
        complete_all(batch);
        drop(working);
    }
}

/// Completes writes, file by file.
fn complete_all(batch: Vec<EndedWrite>) {
    for of_file in grouped_by(batch, |ended| Arc::as_ptr(&ended.file)) {
        let file = Arc::clone(&of_file[0].file);
        complete(&file, of_file);
    }
}

/// Groups items by key, in the order of each group's first item. Keeps the order within a group.
/// Takes time linear in the number of items.
fn grouped_by<T, K: Eq + Hash>(items: Vec<T>, mut key: impl FnMut(&T) -> K) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut indexes = HashMap::new();
    for item in items {
        let index = *indexes.entry(key(&item)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[index].push(item);
    }
    groups
}

/// Completes writes of one file, and writes that waited for them: calls the format once for all of
/// them, then ends the folios' writeback. A write that must wait for earlier data of the file is
/// completed with that data.
fn complete(file: &WritableFile, batch: Vec<EndedWrite>) {
    // A folio that is not under writeback may have been evicted, or written to.
    let folios = batch.iter().flat_map(|ended| &ended.pieces);
    debug_assert!(folios.into_iter().all(|(folio, _)| folio.folio().is_under_writeback()));
    let guard = file.lock_end_io();
    let batch = {
        let mut progress = file.progress.lock();
        if progress.is_idle() {
            batch
        } else {
            for ended in batch {
                let ranges: SmallVec<[_; 2]> =
                    ended.ranges.iter().map(FinishedRange::bytes).collect();
                progress.end(ranges, ended);
            }
            progress.take_ended()
        }
    };
    if batch.is_empty() {
        return;
    }
    // After a panic the data is lost, not written. The thread goes on, since other ends need it.
    let called =
        catch_unwind(AssertUnwindSafe(|| call_format(&guard, &batch))).unwrap_or_else(|_| {
            let operation = "the end of a write";
            file.mapper.panicked(operation);
            Err(Error::Lost(Arc::new(Error::Panicked(operation))))
        });
    if let Err(error) = called {
        file.record_error(error);
    }
    drop(guard);
    // Errors are recorded before writeback ends: threads that wait for that check the errors next.
    drop(batch);
}

/// Calls the format for the data that was written. Returns the first error, of the device before
/// the format's.
fn call_format(guard: &EndIoGuard<'_>, batch: &[EndedWrite]) -> Result<()> {
    let written = batch.iter().filter(|ended| ended.result.is_ok());
    let reached = written.clone().map(|ended| ended.reached).max().unwrap_or(0);
    let finished = merge(written.flat_map(|ended| ended.ranges.iter().copied()).collect());
    let failed = batch.iter().filter(|ended| ended.result.is_err());
    guard.unplace(failed.flat_map(|ended| &ended.ranges));
    let called = guard.end_io(&finished, reached);
    // The device's error first: it is the cause.
    batch.iter().find_map(|ended| ended.result.clone().err()).map_or(called, Err)
}

/// Sorts ranges, and merges those of the same kind that are adjacent, or overlap because of direct
/// writes of the same blocks (docs/design/io.md, invariant 7).
pub(crate) fn merge(mut ranges: Vec<FinishedRange>) -> Vec<FinishedRange> {
    // Of two direct writes of the same blocks, the one that ended last remains.
    ranges.sort_by_key(|range| range.offset);
    let mut merged: Vec<FinishedRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        if !merged.last_mut().is_some_and(|last| last.merge(&range)) {
            merged.push(range);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use base::FileOffset;

    use super::*;
    use crate::mapping::IomapKind::{self, Mapped, Unwritten};

    fn ranges(ranges: &[(u64, u64, IomapKind)]) -> Vec<FinishedRange> {
        let range = |&(offset, length, kind): &(u64, u64, IomapKind)| FinishedRange {
            offset: FileOffset(offset),
            length,
            kind,
            token: None,
        };
        ranges.iter().map(range).collect()
    }

    #[test]
    fn ends_are_grouped_by_file_in_one_pass() {
        let mut calls = 0;
        let groups = grouped_by(vec![(7, 'a'), (3, 'b'), (7, 'c'), (9, 'd'), (3, 'e')], |item| {
            calls += 1;
            item.0
        });
        assert_eq!(groups, [vec![(7, 'a'), (7, 'c')], vec![(3, 'b'), (3, 'e')], vec![(9, 'd')]]);
        assert_eq!(calls, 5);
        assert!(grouped_by(Vec::<u8>::new(), |item| *item).is_empty());
    }

    #[test]
    fn adjacent_ranges_of_one_kind_become_one_in_any_order() {
        let ended = ranges(&[
            (40, 10, Unwritten),
            (0, 10, Unwritten),
            (20, 10, Mapped),
            (10, 10, Unwritten),
            (50, 5, Unwritten),
        ]);
        let merged = ranges(&[(0, 20, Unwritten), (20, 10, Mapped), (40, 15, Unwritten)]);
        assert_eq!(merge(ended), merged);
        assert_eq!(merge(Vec::new()), []);
    }

    #[test]
    fn ranges_of_one_kind_that_overlap_become_one() {
        let ended = ranges(&[
            (10, 20, Unwritten),
            (0, 20, Unwritten),
            (5, 5, Unwritten),
            (30, 10, Mapped),
            (30, 10, Mapped),
        ]);
        assert_eq!(merge(ended), ranges(&[(0, 30, Unwritten), (30, 10, Mapped)]));
    }
}
