//! The ranges of a file that the kernel may have cached, kept apart from writes that bypass its cache. Not here: the
//! requests, and the invalidation.
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
//! wait from then on until the write has ended. Data that the kernel writes meanwhile stays in its cache, too, and the
//! write that bypasses it may be the later one. So what was written during the change is dropped after it.
//!
//! An invalidation can take longer than a write may wait, since the threads that it needs may be waiting as well. It is made later
//! nevertheless, and one that was requested at the end of the write follows it, so that old data does not stay.

use std::ops::Range;
use std::time::{Duration, Instant};

use base::Ranges;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// The unit of the kernel's cache, in bytes. Larger pages only make more reads wait on kernels with small ones.
const PAGE_BYTES: u64 = 64 << 10;

/// The number of times that a write invalidates what the kernel has read before it changes the file. Reads rarely come
/// between, since they wait.
const INVALIDATIONS_MAX: u32 = 5;

/// The time for which a read waits for the first invalidation of a write, which may wait for a page that this read has
/// locked, or for a thread that serves requests. For each further one, reads wait four times as long.
const READ_WAIT: Duration = Duration::from_millis(2);

/// The number of cached ranges of a file that are told apart.
const RANGES_MAX: usize = 64;

/// The ranges of a file that the kernel may have cached, and the writes that bypass its cache.
#[derive(Debug, Default)]
pub struct KernelCache {
    state: Mutex<State>,
    /// Notified when a write has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The pages that the kernel may have cached since it last invalidated them.
    cached: Ranges,
    last_id: u64,
    writes: Vec<Write>,
}

/// A write that bypasses the kernel's cache.
#[derive(Debug)]
struct Write {
    id: u64,
    pages: Range<u64>,
    /// The time for which reads wait while the write invalidates. `None` once it changes the file.
    read_wait: Option<Duration>,
    /// Whether another write is invalidating pages of this one.
    is_shared: bool,
}

/// Returns the pages that contain the bytes of `range`.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl State {
    fn add_cached(&mut self, pages: Range<u64>) {
        if self.cached.missing(&pages) == 0 {
            return;
        }
        self.cached.insert(pages);
        if self.cached.iter().nth(RANGES_MAX).is_some() {
            let first = self.cached.first().unwrap_or(0);
            let end = self.cached.iter().last().map_or(0, |range| range.end);
            self.cached.insert(first..end);
        }
    }

    /// Returns whether the kernel may have cached pages of the write `id`, which then invalidates them.
    fn take_cached(&mut self, id: u64) -> bool {
        let Some(write) = self.writes.iter_mut().find(|write| write.id == id) else {
            return false;
        };
        let pages = write.pages.clone();
        let is_shared = std::mem::take(&mut write.is_shared);
        let is_cached = self.cached.remove(pages.clone()) > 0;
        if is_cached {
            for other in &mut self.writes {
                other.is_shared |= other.id != id && overlap(&other.pages, &pages);
            }
        }
        is_cached || is_shared
    }

    fn set_read_wait(&mut self, id: u64, wait: Option<Duration>) {
        if let Some(write) = self.writes.iter_mut().find(|write| write.id == id) {
            write.read_wait = wait;
        }
    }
}

impl KernelCache {
    /// Records that the kernel may cache the data of a read, which the caller reads after this call. Waits for writes
    /// to its pages.
    pub fn begin_read(&self, range: Range<u64>) {
        let pages = pages(&range);
        let mut state = self.state.lock();
        self.wait_for_writes(&mut state, &pages);
        state.add_cached(pages);
    }

    /// Records that the kernel may have cached the data of a write, with which the caller changes the file after this
    /// call.
    pub fn begin_cached_write(&self, range: Range<u64>) {
        self.state.lock().add_cached(pages(&range));
    }

    fn remove(&self, id: u64) {
        self.state.lock().writes.retain(|write| write.id != id);
        self.ended.notify_all();
    }

    fn wait_for_writes(&self, state: &mut MutexGuard<'_, State>, pages: &Range<u64>) {
        let mut deadline = None;
        while let Some(write) = state.writes.iter().find(|write| overlap(&write.pages, pages)) {
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
    /// `invalidate` makes the kernel write and drop its cached data of a range, and returns whether it has done so.
    pub fn begin_write<F: FnMut(Range<u64>) -> bool>(
        &self,
        range: Range<u64>,
        invalidate: F,
    ) -> BypassingWrite<'_, F> {
        let pages = pages(&range);
        let mut state = self.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        let read_wait = Some(READ_WAIT);
        state.writes.push(Write { id, pages: pages.clone(), read_wait, is_shared: false });
        let mut write = BypassingWrite { cache: self, id, pages, invalidate };
        for nth in 0..INVALIDATIONS_MAX {
            if !state.take_cached(id) {
                break;
            }
            state.set_read_wait(id, Some(READ_WAIT * 4_u32.pow(nth)));
            drop(state);
            let is_done = write.invalidate();
            state = self.state.lock();
            if !is_done {
                break;
            }
        }
        state.set_read_wait(id, None);
        drop(state);
        write
    }
}

/// A write that bypasses the kernel's cache. Reads of its pages wait until it ends or is dropped.
#[derive(Debug)]
pub struct BypassingWrite<'a, F> {
    cache: &'a KernelCache,
    id: u64,
    pages: Range<u64>,
    invalidate: F,
}

impl<F: FnMut(Range<u64>) -> bool> BypassingWrite<'_, F> {
    /// Ends the write. Invalidates what the kernel may have cached before the change.
    pub fn end(mut self) {
        let is_cached = self.cache.state.lock().take_cached(self.id);
        self.cache.remove(self.id);
        if is_cached {
            self.invalidate();
        }
    }

    /// Invalidates the pages of the write. Those that the kernel has not dropped stay recorded. Returns whether it has
    /// dropped all.
    fn invalidate(&mut self) -> bool {
        let Range { start, end } = self.pages;
        let is_done = (self.invalidate)(start * PAGE_BYTES..end.saturating_mul(PAGE_BYTES));
        if !is_done {
            self.cache.state.lock().add_cached(self.pages.clone());
        }
        is_done
    }
}

impl<F> Drop for BypassingWrite<'_, F> {
    fn drop(&mut self) {
        self.cache.remove(self.id);
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

    /// Counts the invalidations of a write to the first page, before it changes the file and at its end.
    fn invalidations(cache: &KernelCache, during: impl FnOnce()) -> (u32, u32) {
        let count = Cell::new(0);
        let write = cache.begin_write(PAGE, |range| {
            assert_eq!(range, 0..PAGE_BYTES);
            count.set(count.get() + 1);
            true
        });
        let before = count.get();
        during();
        write.end();
        (before, count.get() - before)
    }

    #[test]
    fn a_write_invalidates_what_was_read_before_it_changes_the_file() {
        let cache = KernelCache::default();
        assert_eq!(invalidations(&cache, || {}), (0, 0), "nothing was read");
        cache.begin_read(1 << 20..2 << 20);
        assert_eq!(invalidations(&cache, || {}), (0, 0), "other pages were read");
        cache.begin_read(5000..5001);
        assert_eq!(invalidations(&cache, || {}), (1, 0));
        assert_eq!(invalidations(&cache, || {}), (0, 0), "nothing was read since");
    }

    #[test]
    fn what_the_kernel_has_written_during_a_write_is_invalidated_at_its_end() {
        let cache = KernelCache::default();
        assert_eq!(invalidations(&cache, || cache.begin_cached_write(PAGE)), (0, 1));
        cache.begin_cached_write(PAGE);
        assert_eq!(invalidations(&cache, || {}), (1, 0));
        assert_eq!(invalidations(&cache, || cache.begin_cached_write(1 << 20..2 << 20)), (0, 0));
    }

    #[test]
    fn a_write_does_not_rely_on_the_invalidation_of_another_write() {
        let cache = KernelCache::default();
        let other = || {
            cache.begin_cached_write(PAGE);
            assert_eq!(invalidations(&cache, || {}), (1, 0));
        };
        // The kernel may not have dropped the page yet when the first write ends.
        assert_eq!(invalidations(&cache, other), (0, 1));
    }

    #[test]
    fn many_ranges_become_one() {
        let cache = KernelCache::default();
        let page = |number: u64| number * PAGE_BYTES..number * PAGE_BYTES + 1;
        for number in 1..=RANGES_MAX as u64 {
            cache.begin_read(page(2 * number));
        }
        let is_cached = |number| {
            let count = Cell::new(0);
            let invalidate = |_| {
                count.set(count.get() + 1);
                true
            };
            cache.begin_write(page(number), invalidate).end();
            count.get() == 1
        };
        assert!(!is_cached(5));
        cache.begin_read(page(1000));
        assert!(is_cached(7) && is_cached(999) && !is_cached(0) && !is_cached(1001));
        assert!(!is_cached(7));
    }

    #[test]
    fn a_read_waits_for_a_write_of_its_pages_only() {
        let cache = KernelCache::default();
        let write = cache.begin_write(PAGE, |_| true);
        cache.begin_read(1 << 20..2 << 20);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cache.begin_read(PAGE);
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(SOON).is_err());
            write.end();
            receiver.recv_timeout(HANG).unwrap();
        });
    }

    #[test]
    fn a_read_during_the_invalidation_does_not_wait_for_the_write() {
        let cache = KernelCache::default();
        cache.begin_read(PAGE);
        let count = Cell::new(0);
        let write = cache.begin_write(PAGE, |_| {
            count.set(count.get() + 1);
            if count.get() == 1 {
                // The invalidation waits for the read, and the read for the invalidation.
                cache.begin_read(PAGE);
            }
            true
        });
        assert_eq!(count.get(), 2, "the read's data is invalidated, too");
        write.end();
        assert_eq!(count.get(), 2);
    }

    #[test]
    fn what_could_not_be_invalidated_is_invalidated_at_the_end() {
        let cache = KernelCache::default();
        cache.begin_read(PAGE);
        let count = Cell::new(0);
        let write = cache.begin_write(PAGE, |_| {
            count.set(count.get() + 1);
            false
        });
        assert_eq!(count.get(), 1);
        write.end();
        assert_eq!(count.get(), 2);
        // The next write tries it again.
        assert_eq!(invalidations(&cache, || {}), (1, 0));
    }
}
