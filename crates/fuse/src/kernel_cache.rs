//! The ranges of a file that the kernel may have cached, kept apart from writes that bypass its
//! cache. Not here: the requests, and the invalidation.
//!
//! The kernel drops the cached pages of a range before it sends a write that bypasses its cache. A
//! program can read such a page again before the write changes the file. That would leave old data
//! in the cache; and once the program stores to another part of the page through a mapping, the
//! kernel writes the old data over the new one:
//!
//! ```text
//! writer    drop pages ── send ───────────────────────── change
//! mapping                        read old page ── store ──────── write page
//! ```
//!
//! So the write makes the kernel write and drop what it has read since, before the change. Reads of
//! the write's pages wait during the change. Data that the kernel writes meanwhile stays in its
//! cache, too, and the write that bypasses it may be the later one. So what was written during the
//! change is dropped after it, before the write is answered.
//!
//! The kernel drops a page once the reads of it are answered. So a write that invalidates pages
//! must not hold anything that such a read needs, and that includes the thread that is to serve it:
//! see [`Deferred`](crate::deferred::Deferred).

use std::ops::{Deref, Range};
use std::time::{Duration, Instant};

use base::Ranges;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// The unit of the kernel's cache, in bytes. Larger pages only make more reads wait on kernels with
/// small ones.
const PAGE_BYTES: u64 = 64 << 10;

/// The times for which reads wait for each invalidation of a write before it changes the file, one
/// after the other. An invalidation may wait for a page that such a read has locked. Without these
/// waits, reads could come between for ever.
const READ_WAITS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(16),
];

/// The number of cached ranges of a file that are told apart.
const RANGES_MAX: usize = 64;

/// The ranges of a file that the kernel may have cached, and the writes that bypass its cache.
#[derive(Debug, Default)]
pub struct KernelCache {
    state: Mutex<State>,
    /// Notified when a write has changed the file.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The pages that the kernel may have cached since it was last told to drop them.
    cached: Ranges,
    last_id: u64,
    /// The number of the last invalidation that was begun.
    last_invalidation: u64,
    writes: Vec<Write>,
}

/// A write that bypasses the kernel's cache.
#[derive(Debug)]
struct Write {
    id: u64,
    pages: Range<u64>,
    phase: Phase,
    /// The number of its last invalidation.
    seen: u64,
    /// The number of the invalidation under way, if pages were recorded as cached when it was
    /// begun. Other writes no longer find them recorded, but the kernel may still have them.
    dropping: Option<u64>,
}

/// The phase of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The write invalidates pages before it changes the file. Reads wait for this time.
    Before(Duration),
    /// The write changes the file. Reads wait until it has.
    Changing,
    /// The write invalidates pages after it has changed the file. Reads do not wait.
    After,
}

/// Returns the pages that contain the bytes of `range`.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Write {
    /// Returns the time for which reads of its pages wait. The maximum stands for the whole change.
    fn read_wait(&self) -> Duration {
        match self.phase {
            Phase::Before(wait) => wait,
            Phase::Changing => Duration::MAX,
            Phase::After => Duration::ZERO,
        }
    }
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

    /// Adds a write and returns its id.
    fn add_write(&mut self, pages: Range<u64>, phase: Phase) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.writes.push(Write { id, pages, phase, seen: 0, dropping: None });
        id
    }

    fn write(&mut self, id: u64) -> Option<&mut Write> {
        self.writes.iter_mut().find(|write| write.id == id)
    }

    /// Returns whether a write has an invalidation of any of these pages under way that was begun
    /// after number `seen`.
    fn is_dropping(&self, pages: &Range<u64>, seen: u64) -> bool {
        self.writes.iter().any(|write| {
            write.dropping.is_some_and(|number| number > seen) && overlap(&write.pages, pages)
        })
    }

    /// Returns whether the kernel may have cached pages of the write `id` since the write's last
    /// invalidation. The write then begins one.
    fn begin_invalidation(&mut self, id: u64) -> bool {
        let Some(write) = self.write(id) else { return false };
        let (pages, seen) = (write.pages.clone(), write.seen);
        // This write has none under way.
        let is_dropping = self.is_dropping(&pages, seen);
        let is_recorded = self.cached.remove(pages.clone()) > 0;
        if !is_recorded && !is_dropping {
            return false;
        }
        self.last_invalidation += 1;
        let number = self.last_invalidation;
        if let Some(write) = self.write(id) {
            write.seen = number;
            write.dropping = is_recorded.then_some(number);
        }
        true
    }

    /// Ends an invalidation of the write `id`. Pages that the kernel has not dropped are recorded
    /// again.
    fn end_invalidation(&mut self, id: u64, is_done: bool) {
        let Some(write) = self.write(id) else { return };
        write.dropping = None;
        let pages = write.pages.clone();
        if !is_done {
            self.add_cached(pages);
        }
    }

    fn set_phase(&mut self, id: u64, phase: Phase) {
        if let Some(write) = self.write(id) {
            write.phase = phase;
        }
    }
}

impl KernelCache {
    /// Records that the kernel may cache the data of a read, which the caller reads after this
    /// call. Waits for writes that change its pages.
    pub fn begin_read(&self, range: Range<u64>) {
        let pages = pages(&range);
        let mut state = self.state.lock();
        self.wait_for_writes(&mut state, &pages);
        state.add_cached(pages);
    }

    /// Records that the kernel may have cached the data of a write, with which the caller changes
    /// the file after this call.
    pub fn begin_cached_write(&self, range: Range<u64>) {
        self.state.lock().add_cached(pages(&range));
    }

    fn wait_for_writes(&self, state: &mut MutexGuard<'_, State>, pages: &Range<u64>) {
        let mut deadline = None;
        loop {
            let in_the_way = state.writes.iter().filter(|write| overlap(&write.pages, pages));
            let wait = in_the_way.map(Write::read_wait).max().unwrap_or_default();
            if wait.is_zero() {
                return;
            }
            base::waiting::about_to_wait();
            if wait == Duration::MAX {
                self.changed.wait(state);
                continue;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + wait);
            if Instant::now() >= deadline {
                return;
            }
            self.changed.wait_until(state, deadline);
        }
    }

    /// Begins a write that bypasses the kernel's cache, if the kernel has cached none of its pages.
    /// The caller changes the file while it has the result. Returns `None` if the write has to
    /// invalidate pages first.
    pub fn begin_write<C: Deref<Target: AsRef<Self>>>(
        cache: C,
        range: &Range<u64>,
    ) -> Option<BypassingWrite<C>> {
        let pages = pages(range);
        let mut state = (*cache).as_ref().state.lock();
        let is_recorded = state.cached.missing(&pages) < pages.end - pages.start;
        if is_recorded || state.is_dropping(&pages, 0) {
            return None;
        }
        let id = state.add_write(pages, Phase::Changing);
        drop(state);
        Some(BypassingWrite { cache, id })
    }

    /// Begins a write that bypasses the kernel's cache. The caller changes the file while it has
    /// the result. `invalidate` makes the kernel write and drop its cached data of a range, and
    /// returns whether it has done so.
    pub fn invalidate_and_begin_write<C: Deref<Target: AsRef<Self>>>(
        cache: C,
        range: &Range<u64>,
        mut invalidate: impl FnMut(Range<u64>) -> bool,
    ) -> BypassingWrite<C> {
        let pages = pages(range);
        let [first_wait, ..] = READ_WAITS;
        let mut state = (*cache).as_ref().state.lock();
        let id = state.add_write(pages.clone(), Phase::Before(first_wait));
        drop(state);
        let write = BypassingWrite { cache, id };
        for wait in READ_WAITS {
            let mut state = write.state();
            if !state.begin_invalidation(id) {
                break;
            }
            state.set_phase(id, Phase::Before(wait));
            drop(state);
            let is_done = invalidate(bytes(&pages));
            write.state().end_invalidation(id, is_done);
            if !is_done {
                break;
            }
        }
        write.state().set_phase(id, Phase::Changing);
        write
    }
}

impl AsRef<KernelCache> for KernelCache {
    fn as_ref(&self) -> &KernelCache {
        self
    }
}

/// Returns the bytes of `pages`.
fn bytes(pages: &Range<u64>) -> Range<u64> {
    pages.start * PAGE_BYTES..pages.end.saturating_mul(PAGE_BYTES)
}

/// A write that bypasses the kernel's cache. Reads of its pages wait until it ends or is dropped.
#[derive(Debug)]
pub struct BypassingWrite<C: Deref<Target: AsRef<KernelCache>>> {
    cache: C,
    id: u64,
}

impl<C: Deref<Target: AsRef<KernelCache>>> BypassingWrite<C> {
    /// Ends the change. Returns the pages that the kernel may have cached before it, if there are
    /// any. They have to be invalidated before the write is answered.
    pub fn end(self) -> Option<StalePages<C>> {
        let mut state = self.state();
        if !state.begin_invalidation(self.id) {
            return None;
        }
        state.set_phase(self.id, Phase::After);
        drop(state);
        self.cache().changed.notify_all();
        Some(StalePages { write: self, is_done: false })
    }

    fn cache(&self) -> &KernelCache {
        (*self.cache).as_ref()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.cache().state.lock()
    }
}

impl<C: Deref<Target: AsRef<KernelCache>>> Drop for BypassingWrite<C> {
    fn drop(&mut self) {
        self.state().writes.retain(|write| write.id != self.id);
        self.cache().changed.notify_all();
    }
}

/// Pages that the kernel may have cached before a write changed them. Unless they are invalidated,
/// they stay recorded for the next write.
#[derive(Debug)]
pub struct StalePages<C: Deref<Target: AsRef<KernelCache>>> {
    write: BypassingWrite<C>,
    is_done: bool,
}

impl<C: Deref<Target: AsRef<KernelCache>>> StalePages<C> {
    /// Invalidates the pages by `invalidate`, which returns whether the kernel has dropped them.
    pub fn invalidate(mut self, invalidate: impl FnOnce(Range<u64>) -> bool) {
        let id = self.write.id;
        let pages = self.write.state().write(id).map(|write| write.pages.clone());
        self.is_done = pages.is_some_and(|pages| invalidate(bytes(&pages)));
    }
}

impl<C: Deref<Target: AsRef<KernelCache>>> Drop for StalePages<C> {
    fn drop(&mut self) {
        self.write.state().end_invalidation(self.write.id, self.is_done);
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

    fn begin(
        cache: &KernelCache,
        invalidate: impl FnMut(Range<u64>) -> bool,
    ) -> BypassingWrite<&KernelCache> {
        KernelCache::invalidate_and_begin_write(cache, &PAGE, invalidate)
    }

    /// Counts the invalidations of a write to the first page, before it changes the file and at its
    /// end.
    fn invalidations(cache: &KernelCache, during: impl FnOnce()) -> (u32, u32) {
        let others = cache.state.lock().writes.len();
        let count = Cell::new(0);
        let invalidate = |range| {
            assert_eq!(range, 0..PAGE_BYTES);
            count.set(count.get() + 1);
            true
        };
        let at_once = KernelCache::begin_write(cache, &PAGE);
        let needs_none = at_once.is_some();
        let write = at_once.unwrap_or_else(|| begin(cache, invalidate));
        let before = count.get();
        assert_eq!(needs_none, before == 0);
        during();
        if let Some(stale) = write.end() {
            stale.invalidate(invalidate);
        }
        assert_eq!(cache.state.lock().writes.len(), others);
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
    fn a_write_does_not_rely_on_an_invalidation_under_way() {
        let cache = KernelCache::default();
        cache.begin_read(PAGE);
        let inner = Cell::new((0, 0));
        let first = begin(&cache, |_| {
            // The kernel may not have dropped the page yet.
            inner.set(invalidations(&cache, || {}));
            true
        });
        assert_eq!(inner.get(), (1, 0), "a write that began during the invalidation");
        cache.begin_cached_write(PAGE);
        let last = begin(&cache, |_| true);
        assert!(first.end().is_none(), "the kernel has dropped the page for the other write");
        cache.begin_cached_write(PAGE);
        let stale = last.end().unwrap();
        assert_eq!(invalidations(&cache, || {}), (1, 0), "after the change of another write");
        stale.invalidate(|_| true);
        assert_eq!(invalidations(&cache, || {}), (0, 0));
    }

    #[test]
    fn many_ranges_become_one() {
        let cache = KernelCache::default();
        let page = |number: u64| number * PAGE_BYTES..number * PAGE_BYTES + 1;
        for number in 1..=RANGES_MAX as u64 {
            cache.begin_read(page(2 * number));
        }
        let is_cached = |number| {
            let write = KernelCache::begin_write(&cache, &page(number));
            if write.is_some() {
                return false;
            }
            let write = KernelCache::invalidate_and_begin_write(&cache, &page(number), |range| {
                assert_eq!(range.start, page(number).start);
                true
            });
            assert!(write.end().is_none());
            true
        };
        assert!(!is_cached(5));
        cache.begin_read(page(1000));
        assert!(is_cached(7) && is_cached(999) && !is_cached(0) && !is_cached(1001));
        assert!(!is_cached(7));
    }

    #[test]
    fn a_read_waits_for_the_change_of_its_pages_only() {
        let cache = KernelCache::default();
        let write = KernelCache::begin_write(&cache, &PAGE).unwrap();
        cache.begin_read(1 << 20..2 << 20);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cache.begin_read(PAGE);
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(SOON).is_err());
            cache.begin_cached_write(PAGE);
            let stale = write.end();
            receiver.recv_timeout(HANG).unwrap();
            drop(stale);
        });
    }

    #[test]
    fn a_read_during_the_invalidation_does_not_wait_for_the_write() {
        let cache = KernelCache::default();
        cache.begin_read(PAGE);
        let count = Cell::new(0);
        let write = begin(&cache, |_| {
            count.set(count.get() + 1);
            if count.get() == 1 {
                // The invalidation waits for the read, and the read for the invalidation.
                cache.begin_read(PAGE);
            }
            true
        });
        assert_eq!(count.get(), 2, "the read's data is invalidated, too");
        assert!(write.end().is_none());
    }

    #[test]
    fn reads_that_come_again_and_again_do_not_stop_a_write() {
        let cache = KernelCache::default();
        cache.begin_read(PAGE);
        let write = begin(&cache, |_| {
            cache.begin_read(PAGE);
            true
        });
        assert!(write.end().is_some());
    }

    #[test]
    fn what_could_not_be_invalidated_is_invalidated_at_the_end() {
        let cache = KernelCache::default();
        cache.begin_read(PAGE);
        let count = Cell::new(0);
        let write = begin(&cache, |_| {
            count.set(count.get() + 1);
            false
        });
        assert_eq!(count.get(), 1);
        write.end().unwrap().invalidate(|_| false);
        // The next write tries it again.
        assert_eq!(invalidations(&cache, || {}), (1, 0));
    }
}
