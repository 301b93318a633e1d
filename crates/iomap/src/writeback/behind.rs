//! Background writeback for uncached writes, on a thread of its own. Not here: writeback of a file
//! (`mod.rs`).
//!
//! A writer queues the range that it has written, and goes on. Only while more bytes than a limit
//! are not on the device, it waits for the oldest of them. So a long stream of writes takes little
//! memory, and is as fast as the device without waiting for single requests.
//!
//! Tails wait for a moment: ranges that are too short for a large request, and the last folio of a
//! write, if it is not full. The next write is likely to continue there. Without the delay it would
//! wait while the device writes that folio, and the thread would wake for every write.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::{Error, Result};
use device::Worker;
use pagecache::PAGE_SHIFT;
use parking_lot::{Condvar, Mutex};

use crate::file::WritableFile;
use crate::folios::pages_of;
use crate::writeback::{wait_for_writeback_cancellable, write_back};

/// The length from which on adjacent writes are written back without waiting for more.
const CHUNK_BYTES: u64 = 1 << 20;
/// The number of recent tails that a write may continue, for writers that take turns.
const TAILS_LOOKED_AT: usize = 8;
/// The age at which tails are written back.
const TAIL_AGE: Duration = Duration::from_millis(100);

/// The writeback of uncached writes to some files, usually those of one volume.
pub struct WriteBehind {
    shared: Arc<Shared>,
    bytes_max: u64,
    /// Joined when this is stopped or dropped. The last user of a volume may be the thread itself.
    thread: Mutex<Option<Worker>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A range of a file that was written. The file may have been dropped, with all of its data.
struct Chunk {
    file: Weak<WritableFile>,
    range: Range<u64>,
}

/// A short range at the end of recent writes to a file.
struct Tail {
    chunk: Chunk,
    /// The start of the last folio if that is not full, or else the end of the chunk.
    whole_until: u64,
}

/// Ranges that may not be on the device yet, the oldest first.
#[derive(Default)]
struct Queue {
    /// Ranges to write back.
    waiting: VecDeque<Chunk>,
    /// Tails, to write back later.
    tails: VecDeque<Tail>,
    /// When the oldest tail was added.
    tails_since: Option<Instant>,
    /// Ranges under writeback.
    started: VecDeque<Chunk>,
    /// The number of bytes in all of these ranges.
    bytes: u64,
    /// The number of bytes in the tails.
    tail_bytes: u64,
    closed: bool,
}

impl WriteBehind {
    /// Starts the thread. Writers wait while more than `bytes_max` bytes are not on the device.
    pub fn start(bytes_max: u64) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = Worker::start("write behind", move || theirs.work())
            .map_err(|error| Error::thread_spawn(&error))?;
        Ok(Self { shared, bytes_max, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the maximum of bytes to write between two calls of [`throttle`](Self::throttle).
    pub fn part_bytes(&self) -> usize {
        usize::try_from(self.bytes_max / 4).unwrap_or(usize::MAX).max(1)
    }

    /// Queues the bytes in `range`, which were written, for writeback. Does not wait.
    pub fn push(&self, file: &Arc<WritableFile>, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let whole_until = whole_until(file, range.end);
        if self.shared.queue.lock().push(file, range, whole_until, self.bytes_max / 2) {
            self.shared.changed.notify_one();
        }
    }

    /// Ends the thread, and waits for its end. What is queued later is written back only by those
    /// who wait for it.
    pub fn stop(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
        drop(self.thread.lock().take());
    }

    /// Waits until a writer may go on, unless the request that this thread serves is cancelled
    /// ([`base::cancellation`]). The caller holds no lock that the end of a write takes.
    ///
    /// # Errors
    ///
    /// `Interrupted`.
    pub fn throttle(&self) -> Result<()> {
        loop {
            let oldest = self.shared.queue.lock().take_oldest_beyond(self.bytes_max);
            let Some(oldest) = oldest else { return Ok(()) };
            let Some(file) = oldest.file.upgrade() else { continue };
            base::waiting::about_to_wait();
            // The writeback of the chunk may not have been started, or only in part.
            write_back(&file, oldest.range.clone());
            let waited = wait_for_writeback_cancellable(&file, oldest.range.clone());
            if waited.is_err() {
                // The next writer waits for the chunk.
                self.shared.queue.lock().return_oldest(oldest);
                return waited;
            }
        }
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for WriteBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteBehind({} of {} bytes)", self.shared.queue.lock().bytes, self.bytes_max)
    }
}

impl Shared {
    /// Runs the thread: starts writeback of the queued ranges, until the queue is closed.
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            if queue.closed {
                return;
            }
            if queue.tails_since.is_some_and(|since| since.elapsed() >= TAIL_AGE) {
                queue.queue_tails();
            }
            if let Some(next) = queue.start() {
                drop(queue);
                write_back_guarded(&next);
                self.queue.lock().remove_written();
                continue;
            }
            if queue.remove_written() {
                self.changed.wait(&mut queue);
            } else {
                let since = queue.tails_since.unwrap_or_else(Instant::now);
                self.changed.wait_until(&mut queue, since + TAIL_AGE);
            }
        }
    }
}

/// Starts writeback of `chunk`, if its file still exists.
fn write_back_guarded(chunk: &Chunk) {
    let Some(file) = chunk.file.upgrade() else { return };
    // After a panic the state is unknown. The thread goes on, since other ranges need it.
    let done = catch_unwind(AssertUnwindSafe(|| write_back(&file, chunk.range.clone())));
    if done.is_err() {
        file.mapper.panicked("writing behind");
    }
}

/// Returns the start of the folio that contains the bytes before and after `end`, where the next
/// write may continue; or `end` if there is no such folio.
fn whole_until(file: &WritableFile, end: u64) -> u64 {
    file.mapping.get(end >> PAGE_SHIFT).map_or(end, |folio| folio.position())
}

impl Chunk {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns whether the chunk is of `file` and ends at byte `at`.
    fn ends_at(&self, file: &Arc<WritableFile>, at: u64) -> bool {
        self.range.end == at && self.file.as_ptr() == Arc::as_ptr(file)
    }

    /// Returns whether all of the chunk is on the device.
    fn is_written(&self) -> bool {
        let pages = pages_of(&self.range);
        self.file.upgrade().is_none_or(|file| !file.mapping.has_unwritten(&pages))
    }
}

impl Queue {
    /// Adds a range that was written. Its bytes from `whole_until` on become a tail, and so do all
    /// of them if they are few, until the tails have more than `many` bytes. Returns whether to
    /// wake the thread.
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
        self.split_tail(
            Tail { chunk: Chunk { file: Arc::downgrade(file), range }, whole_until },
            CHUNK_BYTES,
        );
        if self.tail_bytes > many {
            let tails = std::mem::take(&mut self.tails);
            self.tail_bytes = 0;
            tails.into_iter().for_each(|tail| self.split_tail(tail, 1));
        }
        // Last folios of many files.
        if self.tail_bytes > many {
            self.queue_tails();
        }
        was_idle || !self.waiting.is_empty()
    }

    /// Removes and returns the tail of `file` that ends at byte `at`, if it is one of the most
    /// recent.
    fn take_tail(&mut self, file: &Arc<WritableFile>, at: u64) -> Option<Chunk> {
        let last = self.tails.len().saturating_sub(TAILS_LOOKED_AT);
        let index =
            last + self.tails.range(last..).position(|tail| tail.chunk.ends_at(file, at))?;
        let chunk = self.tails.remove(index)?.chunk;
        self.tail_bytes -= chunk.len();
        Some(chunk)
    }

    /// Queues the whole folios of a tail for writeback if they have at least `bytes_min` bytes. The
    /// rest stays a tail.
    fn split_tail(&mut self, tail: Tail, bytes_min: u64) {
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

    /// Returns the next chunk to write back, and moves it to the started ones.
    fn start(&mut self) -> Option<Chunk> {
        let next = self.waiting.pop_front()?;
        let same = Chunk { file: Weak::clone(&next.file), range: next.range.clone() };
        self.started.push_back(next);
        Some(same)
    }

    /// Queues the tails for writeback.
    fn queue_tails(&mut self) {
        self.waiting.extend(self.tails.drain(..).map(|tail| tail.chunk));
        self.tails_since = None;
        self.tail_bytes = 0;
    }

    /// Removes and returns the oldest chunk, if there are more than `bytes_max` bytes.
    fn take_oldest_beyond(&mut self, bytes_max: u64) -> Option<Chunk> {
        if self.bytes <= bytes_max {
            return None;
        }
        if self.started.is_empty() && self.waiting.is_empty() {
            self.queue_tails();
        }
        let oldest = self.started.pop_front().or_else(|| self.waiting.pop_front())?;
        self.bytes -= oldest.len();
        Some(oldest)
    }

    /// Returns a chunk from [`take_oldest_beyond`](Self::take_oldest_beyond), whose writeback was
    /// started, to the queue.
    fn return_oldest(&mut self, oldest: Chunk) {
        self.bytes += oldest.len();
        self.started.push_front(oldest);
    }

    /// Removes the oldest chunks that are on the device. Returns whether none are left.
    fn remove_written(&mut self) -> bool {
        while self.started.front().is_some_and(Chunk::is_written) {
            self.bytes -= self.started.pop_front().map_or(0, |chunk| chunk.len());
        }
        let is_empty = self.started.is_empty() && self.waiting.is_empty() && self.tails.is_empty();
        debug_assert!(!is_empty || self.bytes == 0 && self.tail_bytes == 0, "bytes of no range");
        is_empty
    }
}
