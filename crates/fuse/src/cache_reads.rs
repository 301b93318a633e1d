//! Keeps reads that fill the kernel's cache and writes that bypass it apart. Not here: the requests, and the invalidation.
//!
//! The kernel drops the cached pages of a range before it sends a write that bypasses its cache. A program can read such
//! a page again before the write changes the file. That would leave old data in the cache; and once the program stores to
//! another part of the page through a mapping, the kernel writes the old data over the new one:
//!
//! ```text
//! writer    drop pages ── send ───────────────────────── change
//! mapping                        read old page ── store ──────── write page
//! ```
//!
//! So the write makes the kernel write and drop what it has read since, before the change. Reads of the write's pages
//! wait from then on until the write has ended.

use std::ops::Range;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The unit of the kernel's cache, in bytes. Larger pages only make more reads wait on kernels with small ones.
const PAGE_BYTES: u64 = 64 << 10;

/// The number of times that a write invalidates what the kernel has read before it changes the file. Reads rarely come
/// between, since they wait.
const INVALIDATIONS_MAX: u32 = 5;

/// The time for which a read waits for the first invalidation of a write, which may wait for a page that this read has
/// locked, or for a thread that serves requests. For each further one, reads wait four times as long.
const READ_WAIT: Duration = Duration::from_millis(2);

/// The reads of a file that fill the kernel's cache, and the writes that bypass it.
#[derive(Debug, Default)]
pub struct CacheReads {
    state: Mutex<State>,
    /// Notified when a write has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the kernel may have cached data that it has read since the last invalidation.
    was_read: bool,
    last_id: u64,
    writes: Vec<Write>,
}

/// A write that bypasses the kernel's cache.
#[derive(Debug)]
struct Write {
    id: u64,
    range: Range<u64>,
    /// The time for which reads wait while the write invalidates. `None` once it changes the file.
    read_wait: Option<Duration>,
}

impl State {
    /// Returns the first write to a page of `range`.
    fn overlapping(&self, range: &Range<u64>) -> Option<&Write> {
        self.writes.iter().find(|write| {
            write.range.start / PAGE_BYTES < range.end.div_ceil(PAGE_BYTES)
                && range.start / PAGE_BYTES < write.range.end.div_ceil(PAGE_BYTES)
        })
    }

    fn set_read_wait(&mut self, id: u64, wait: Option<Duration>) {
        if let Some(write) = self.writes.iter_mut().find(|write| write.id == id) {
            write.read_wait = wait;
        }
    }
}

impl CacheReads {
    /// Records that the kernel may cache the data of a read, which the caller reads after this call. Waits for writes
    /// to its pages.
    pub fn begin_read(&self, range: Range<u64>) {
        let mut state = self.state.lock();
        self.wait_for_writes(&mut state, &range);
        state.was_read = true;
    }

    fn wait_for_writes(&self, state: &mut MutexGuard<'_, State>, range: &Range<u64>) {
        let mut deadline = None;
        while let Some(write) = state.overlapping(range) {
            base::waiting::about_to_wait();
            let Some(wait) = write.read_wait else {
                self.ended.wait(state);
                continue;
            };
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + wait);
            if Instant::now() >= deadline {
                return;
            }
            self.ended.wait_until(state, deadline);
        }
    }

    /// Begins a write that bypasses the kernel's cache. The caller changes the file while it has the result.
    /// `invalidate` makes the kernel write and drop its cached data, and returns whether it has done so.
    pub fn begin_write(
        &self,
        range: Range<u64>,
        mut invalidate: impl FnMut() -> bool,
    ) -> BypassingWrite<'_> {
        let mut state = self.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        state.writes.push(Write { id, range, read_wait: Some(READ_WAIT) });
        let write = BypassingWrite { reads: self, id };
        for nth in 0..INVALIDATIONS_MAX {
            if !std::mem::take(&mut state.was_read) {
                break;
            }
            state.set_read_wait(id, Some(READ_WAIT * 4_u32.pow(nth)));
            drop(state);
            let is_done = invalidate();
            state = self.state.lock();
            if !is_done {
                state.was_read = true;
                break;
            }
        }
        state.set_read_wait(id, None);
        drop(state);
        write
    }
}

/// A write that bypasses the kernel's cache. Reads of its pages wait until this is dropped.
#[derive(Debug)]
pub struct BypassingWrite<'a> {
    reads: &'a CacheReads,
    id: u64,
}

impl BypassingWrite<'_> {
    /// Ends the write. Returns whether the kernel may have cached data that it had read before the change.
    pub fn end(self) -> bool {
        std::mem::take(&mut self.reads.state.lock().was_read)
    }
}

impl Drop for BypassingWrite<'_> {
    fn drop(&mut self) {
        self.reads.state.lock().writes.retain(|write| write.id != self.id);
        self.reads.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;

    use super::*;

    const PAGE: Range<u64> = 0..4096;
    const SOON: Duration = Duration::from_millis(50);
    const HANG: Duration = Duration::from_secs(60);

    #[test]
    fn a_write_invalidates_what_was_read_before_it_changes_the_file() {
        let reads = CacheReads::default();
        let count = Cell::new(0);
        let invalidate = || {
            count.set(count.get() + 1);
            true
        };
        assert!(!reads.begin_write(PAGE, invalidate).end());
        assert_eq!(count.get(), 0, "nothing was read");
        reads.begin_read(1 << 20..2 << 20);
        assert!(!reads.begin_write(PAGE, invalidate).end());
        assert_eq!(count.get(), 1);
        assert!(!reads.begin_write(PAGE, invalidate).end());
        assert_eq!(count.get(), 1, "nothing was read since");
    }

    #[test]
    fn a_read_waits_for_a_write_of_its_pages_only() {
        let reads = CacheReads::default();
        let write = reads.begin_write(PAGE, || true);
        reads.begin_read(1 << 20..2 << 20);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                reads.begin_read(PAGE);
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(SOON).is_err());
            assert!(write.end(), "other pages were read");
            receiver.recv_timeout(HANG).unwrap();
        });
    }

    #[test]
    fn a_read_during_the_invalidation_does_not_wait_for_the_write() {
        let reads = CacheReads::default();
        reads.begin_read(PAGE);
        let count = Cell::new(0);
        let write = reads.begin_write(PAGE, || {
            count.set(count.get() + 1);
            if count.get() == 1 {
                // The invalidation waits for the read, and the read for the invalidation.
                reads.begin_read(PAGE);
            }
            true
        });
        assert_eq!(count.get(), 2, "the read's data is invalidated, too");
        assert!(!write.end());
    }

    #[test]
    fn what_could_not_be_invalidated_is_reported_at_the_end() {
        let reads = CacheReads::default();
        reads.begin_read(PAGE);
        assert!(reads.begin_write(PAGE, || false).end());
        reads.begin_read(PAGE);
        let always_read = || {
            reads.begin_read(PAGE);
            true
        };
        assert!(reads.begin_write(PAGE, always_read).end());
        assert!(!reads.begin_write(PAGE, || true).end());
    }
}
