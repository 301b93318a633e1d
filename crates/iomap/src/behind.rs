//! Has what uncached writes leave in the cache written back soon, by a thread of its own, and keeps
//! it little. Not here: how it is written back (`writeback.rs`).
//!
//! A writer says what it has written and goes on; it waits for the device, for the part that was
//! written longest ago, only while more than some bytes have not arrived there. So a long stream
//! stays within a window, and goes as fast as the device without waiting for single requests.
//!
//! What is too little for a large request is left alone for a moment, and so is the last folio of a write,
//! if that is not full: the next write is likely to go on there. It would otherwise have to wait while a
//! device reads the folio, and the thread would be woken for each.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::{Result, Unsupported};
use device::Worker;
use pagecache::PAGE_SHIFT;
use parking_lot::{Condvar, Mutex};

use crate::file::WritableFile;
use crate::writeback::{wait_for_writeback_cancellable, write_back};

/// From so many bytes on, neighbouring writes are written back without waiting for more.
const CHUNK_BYTES: u64 = 1 << 20;
/// Writers that take turns go on with one of the last so many tails.
const TAILS_LOOKED_AT: usize = 8;
/// How long less than that is left alone, unless it adds up.
const TAIL_AGE: Duration = Duration::from_millis(100);

/// The writing behind of some files, of one volume as a rule.
pub struct WriteBehind {
    shared: Arc<Shared>,
    bytes_max: u64,
    /// Waited for when this is dropped. The last user of a volume may be the thread itself.
    _thread: Worker,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Bytes of a file that were written. The file may be gone by now, with all that it had.
struct Chunk {
    file: Weak<WritableFile>,
    range: Range<u64>,
}

/// What a file was written last, as long as that is little.
struct Tail {
    chunk: Chunk,
    /// What lies from here on, if anything does, is a folio that is not full.
    whole_until: u64,
}

/// What may not be on the device yet, from the oldest on.
#[derive(Default)]
struct Queue {
    /// To be written back.
    waiting: VecDeque<Chunk>,
    /// Parts of writes, to be written back later.
    tails: VecDeque<Tail>,
    /// Since when there are some.
    tails_since: Option<Instant>,
    /// Being written back.
    started: VecDeque<Chunk>,
    /// Bytes in all of those.
    bytes: u64,
    /// Bytes in the tails.
    tail_bytes: u64,
    closed: bool,
}

impl WriteBehind {
    /// Starts the thread. Writers wait while more than `bytes_max` bytes have not arrived.
    pub fn start(bytes_max: u64) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = Worker::start("write behind", move || theirs.work())
            .map_err(|_| Unsupported::Operation("the host refuses a thread"))?;
        Ok(Self { shared, bytes_max, _thread: thread })
    }

    /// The most bytes to write between two calls of [`throttle`](Self::throttle).
    pub fn part_bytes(&self) -> usize {
        usize::try_from(self.bytes_max / 4).unwrap_or(usize::MAX).max(1)
    }

    /// Has the bytes in `range`, which were written, written back soon. Waits for nothing.
    pub fn push(&self, file: &Arc<WritableFile>, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let whole_until = whole_until(file, range.end);
        if self.shared.queue.lock().push(file, range, whole_until, self.bytes_max / 2) {
            self.shared.changed.notify_one();
        }
    }

    /// Waits until a writer may go on, unless the request that this thread serves is cancelled
    /// ([`base::cancellation`]). The caller holds no lock that the end of a write takes.
    ///
    /// # Errors
    ///
    /// `Interrupted`.
    pub fn throttle(&self) -> Result<()> {
        loop {
            let oldest = self.shared.queue.lock().take_beyond(self.bytes_max);
            let Some(oldest) = oldest else { return Ok(()) };
            let Some(file) = oldest.file.upgrade() else { continue };
            base::waiting::about_to_wait();
            // It may not have been started, or not all of it.
            write_back(&file, oldest.range.clone());
            let waited = wait_for_writeback_cancellable(&file, oldest.range.clone());
            if waited.is_err() {
                // The next writer waits for it.
                self.shared.queue.lock().put_back(oldest);
                return waited;
            }
        }
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl fmt::Debug for WriteBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteBehind({} of {} bytes)", self.shared.queue.lock().bytes, self.bytes_max)
    }
}

impl Shared {
    /// Starts writing back what waits until the queue is closed.
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            if queue.closed {
                return;
            }
            if queue.tails_since.is_some_and(|since| since.elapsed() >= TAIL_AGE) {
                queue.take_tails();
            }
            if let Some(next) = queue.start() {
                drop(queue);
                write_back_guarded(&next);
                self.queue.lock().forget_arrived();
                continue;
            }
            if queue.forget_arrived() {
                self.changed.wait(&mut queue);
            } else {
                let since = queue.tails_since.unwrap_or_else(Instant::now);
                self.changed.wait_until(&mut queue, since + TAIL_AGE);
            }
        }
    }
}

/// Starts writing `chunk` back, if its file is still there.
fn write_back_guarded(chunk: &Chunk) {
    let Some(file) = chunk.file.upgrade() else { return };
    // Nobody knows what a panic leaves half done; what else there is to be written needs this thread.
    let done = catch_unwind(AssertUnwindSafe(|| write_back(&file, chunk.range.clone())));
    if done.is_err() {
        file.mapper.panicked("going on after a panic in writing behind");
    }
}

/// Where the part of the file begins that the next write may go on with, if one has ended at byte
/// `end`: where the folio does that has bytes before and after it, if there is one.
fn whole_until(file: &WritableFile, end: u64) -> u64 {
    file.mapping.get(end >> PAGE_SHIFT).map_or(end, |folio| folio.position())
}

impl Chunk {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Whether it is of `file` and ends at byte `at`.
    fn ends_at(&self, file: &Arc<WritableFile>, at: u64) -> bool {
        self.range.end == at && self.file.as_ptr() == Arc::as_ptr(file)
    }

    /// Whether nothing of it has to be waited for.
    fn has_arrived(&self) -> bool {
        let pages = self.range.start >> PAGE_SHIFT..self.range.end.div_ceil(1 << PAGE_SHIFT);
        self.file.upgrade().is_none_or(|file| {
            file.mapping.next_dirty(pages.clone()).is_none()
                && file.mapping.next_under_writeback(pages).is_none()
        })
    }
}

impl Queue {
    /// Adds bytes that were written, of which those from `whole_until` on are left alone for a moment, as are
    /// all if they are few, until there are more than `many` of them. Whether the thread has something to do.
    fn push(
        &mut self,
        file: &Arc<WritableFile>,
        mut range: Range<u64>,
        whole_until: u64,
        many: u64,
    ) -> bool {
        let was_idle = self.bytes == 0;
        self.bytes += range.end - range.start;
        if let Some(before) = self.take_tail(file, range.start) {
            range.start = before.range.start;
        }
        let whole_until = whole_until.max(range.start);
        self.leave(
            Tail { chunk: Chunk { file: Arc::downgrade(file), range }, whole_until },
            CHUNK_BYTES,
        );
        if self.tail_bytes > many {
            let tails = std::mem::take(&mut self.tails);
            self.tail_bytes = 0;
            tails.into_iter().for_each(|tail| self.leave(tail, 1));
        }
        // Ends of many files.
        if self.tail_bytes > many {
            self.take_tails();
        }
        was_idle || !self.waiting.is_empty()
    }

    /// Takes out the tail of `file` that ends at byte `at`, if it is one of the last.
    fn take_tail(&mut self, file: &Arc<WritableFile>, at: u64) -> Option<Chunk> {
        let last = self.tails.len().saturating_sub(TAILS_LOOKED_AT);
        let index =
            last + self.tails.range(last..).position(|tail| tail.chunk.ends_at(file, at))?;
        let chunk = self.tails.remove(index)?.chunk;
        self.tail_bytes -= chunk.len();
        Some(chunk)
    }

    /// Has the whole folios of a tail written back if they are at least so many bytes; the rest stays a tail.
    fn leave(&mut self, tail: Tail, bytes_min: u64) {
        let Tail { chunk: Chunk { file, mut range }, whole_until } = tail;
        if whole_until - range.start >= bytes_min {
            let whole = range.start..whole_until;
            self.waiting.push_back(Chunk { file: Weak::clone(&file), range: whole });
            range.start = whole_until;
        }
        if !range.is_empty() {
            self.tail_bytes += range.end - range.start;
            self.tails.push_back(Tail { chunk: Chunk { file, range }, whole_until });
            self.tails_since.get_or_insert_with(Instant::now);
        } else if self.tails.is_empty() {
            self.tails_since = None;
        }
    }

    /// The next one to be written back.
    fn start(&mut self) -> Option<Chunk> {
        let next = self.waiting.pop_front()?;
        let same = Chunk { file: Weak::clone(&next.file), range: next.range.clone() };
        self.started.push_back(next);
        Some(same)
    }

    /// Has what was left alone written back.
    fn take_tails(&mut self) {
        self.waiting.extend(self.tails.drain(..).map(|tail| tail.chunk));
        (self.tails_since, self.tail_bytes) = (None, 0);
    }

    /// The oldest one, if there are more than `bytes_max` bytes.
    fn take_beyond(&mut self, bytes_max: u64) -> Option<Chunk> {
        if self.bytes <= bytes_max {
            return None;
        }
        if self.started.is_empty() && self.waiting.is_empty() {
            self.take_tails();
        }
        let oldest = self.started.pop_front().or_else(|| self.waiting.pop_front())?;
        self.bytes -= oldest.len();
        Some(oldest)
    }

    /// Puts back what [`take_beyond`](Self::take_beyond) has taken, which has been started.
    fn put_back(&mut self, oldest: Chunk) {
        self.bytes += oldest.len();
        self.started.push_front(oldest);
    }

    /// Forgets what has arrived, from the oldest on; whether that is all.
    fn forget_arrived(&mut self) -> bool {
        while self.started.front().is_some_and(Chunk::has_arrived) {
            self.bytes -= self.started.pop_front().map_or(0, |arrived| arrived.len());
        }
        self.started.is_empty() && self.waiting.is_empty() && self.tails.is_empty()
    }
}
