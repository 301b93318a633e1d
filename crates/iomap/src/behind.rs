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
use crate::writeback::{wait_for_writeback, write_back};

/// From so many bytes on, neighbouring writes are written back without waiting for more.
const CHUNK_BYTES: u64 = 1 << 20;
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

/// What may not be on the device yet, from the oldest on.
#[derive(Default)]
struct Queue {
    /// To be written back.
    waiting: VecDeque<Chunk>,
    /// Parts of writes, to be written back later.
    tails: VecDeque<Chunk>,
    /// Being written back.
    started: VecDeque<Chunk>,
    /// Bytes in all of those.
    bytes: u64,
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
        let tail = tail_of(file, range.end);
        if self.shared.queue.lock().push(file, range, tail, self.bytes_max / 2) {
            self.shared.changed.notify_one();
        }
    }

    /// Waits until a writer may go on. It holds no lock that the end of a write takes.
    pub fn throttle(&self) {
        loop {
            let Some(oldest) = self.shared.queue.lock().take_beyond(self.bytes_max) else { return };
            if let Some(file) = oldest.file.upgrade() {
                base::waiting::about_to_wait();
                // It may not have been started, or not all of it.
                write_back(&file, oldest.range.clone());
                wait_for_writeback(&file, oldest.range);
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
        let mut tails_at = None;
        loop {
            let mut queue = self.queue.lock();
            if queue.closed {
                return;
            }
            if tails_at.is_some_and(|at| at <= Instant::now()) {
                tails_at = None;
                queue.take_tails();
            }
            if let Some(next) = queue.start() {
                drop(queue);
                write_back_guarded(&next);
                self.queue.lock().forget_arrived();
                continue;
            }
            if queue.forget_arrived() {
                tails_at = None;
                self.changed.wait(&mut queue);
            } else {
                let at = *tails_at.get_or_insert_with(|| Instant::now() + TAIL_AGE);
                self.changed.wait_until(&mut queue, at);
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
fn tail_of(file: &WritableFile, end: u64) -> u64 {
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
    /// Adds bytes that were written, of which those from `tail` on can be written back later, as can all
    /// if they are few and there are less than `many`. Whether the thread has something to do.
    fn push(
        &mut self,
        file: &Arc<WritableFile>,
        mut range: Range<u64>,
        tail: u64,
        many: u64,
    ) -> bool {
        let (end_before, was_idle) = (range.start, self.bytes == 0);
        // What the write before left off with belongs to this one.
        if self.tails.back().is_some_and(|tail| tail.ends_at(file, range.start)) {
            let before = self.tails.pop_back();
            range.start = before.map_or(range.start, |before| before.range.start);
            self.bytes -= end_before - range.start;
        }
        self.bytes += range.end - range.start;
        let tail = match tail.max(range.start) {
            tail if tail - range.start < CHUNK_BYTES => range.start,
            tail => tail,
        };
        let chunk = |range: Range<u64>| Chunk { file: Arc::downgrade(file), range };
        if tail < range.end {
            self.tails.push_back(chunk(tail..range.end));
        }
        if range.start < tail {
            self.waiting.push_back(chunk(range.start..tail));
        } else if self.bytes > many {
            self.take_tails();
        }
        was_idle || !self.waiting.is_empty()
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
        self.waiting.append(&mut self.tails);
    }

    /// The oldest one, if there are more than `bytes_max` bytes.
    fn take_beyond(&mut self, bytes_max: u64) -> Option<Chunk> {
        if self.bytes <= bytes_max {
            return None;
        }
        let queues = [&mut self.started, &mut self.waiting, &mut self.tails];
        let oldest = queues.into_iter().find_map(VecDeque::pop_front)?;
        self.bytes -= oldest.len();
        Some(oldest)
    }

    /// Forgets what has arrived, from the oldest on; whether that is all.
    fn forget_arrived(&mut self) -> bool {
        while self.started.front().is_some_and(Chunk::has_arrived) {
            self.bytes -= self.started.pop_front().map_or(0, |arrived| arrived.len());
        }
        self.started.is_empty() && self.waiting.is_empty() && self.tails.is_empty()
    }
}
