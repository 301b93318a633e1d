//! Readahead windows, which follow from the reads of a file so far.
//! Not here: the reads of a window (`populate.rs`).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use pagecache::{Mapping, ORDER_MAX, PAGE_SHIFT};
use parking_lot::Mutex;

use crate::caching::{Caching, drop_behind};
use crate::read::cluster::clusters_at_ends;
use crate::read::context::ReadContext;

/// The smallest readahead window, in pages: 128 KiB.
const PAGES_MIN: u64 = 32;
/// The length of the first readahead window of a sequence, as a multiple of the request.
const FIRST: u64 = 4;
/// The divisor of the cache size that limits a readahead window.
const CACHE_SHARE: u64 = 8;

/// The state of readahead of one open file. The threads that read through the open file share it.
#[derive(Debug)]
pub struct Readahead {
    /// The last page that was read. With concurrent readers, the last page of one of them.
    previous: AtomicU64,
    /// Locked on misses and marked folios only.
    recent: Mutex<Recent>,
}

/// The last readahead window, in pages; empty while reads are random.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Recent {
    start: u64,
    end: u64,
    /// The first page of the window that an uncached read has not reached. From there on, the
    /// window may have dropbehind folios, which only the reader or this state removes from the
    /// cache soon.
    unread: Option<u64>,
}

/// A readahead window: pages to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadaheadWindow {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// A page. The first folio from there on gets the mark that starts the next window.
    pub(crate) mark: Option<u64>,
    /// The maximum order of its folios.
    pub(crate) order: u8,
}

impl Default for Readahead {
    fn default() -> Self {
        // Page 0 follows this page.
        Self { previous: AtomicU64::new(u64::MAX), recent: Mutex::default() }
    }
}

impl Readahead {
    /// Returns the last page that was read.
    #[inline]
    pub(crate) fn previous(&self) -> u64 {
        self.previous.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_previous(&self, page: u64) {
        self.previous.store(page, Ordering::Relaxed);
    }

    /// Returns the window for a request of `pages` pages from `page` on, of which the first is not
    /// cached.
    pub(crate) fn window(
        &self,
        context: &ReadContext<'_>,
        page: u64,
        pages: u64,
    ) -> ReadaheadWindow {
        let limits = Limits::of(context);
        let previous = self.previous();
        let window = self
            .advance(context, page, |recent| recent.miss(page, pages, previous, limits.pages_max));
        self.widen(context, limits.fit(window))
    }

    /// Returns the window after the one whose marked folio begins at `page`, which the reader has
    /// reached. Returns `None` at the end of the file.
    pub(crate) fn next_window(
        &self,
        context: &ReadContext<'_>,
        page: u64,
    ) -> Option<ReadaheadWindow> {
        let limits = Limits::of(context);
        let window = self.advance(context, page, |recent| recent.advance(page, limits.pages_max));
        let window = limits.fit(window);
        (window.start < window.end).then(|| self.widen(context, window))
    }

    /// Returns `window` with the whole clusters at its ends.
    fn widen(&self, context: &ReadContext<'_>, window: ReadaheadWindow) -> ReadaheadWindow {
        let widened = whole_clusters(context, window);
        if widened.end > window.end && window.mark.is_some() {
            let mut recent = self.recent.lock();
            // Unless another reader has moved on.
            if (window.start..widened.end).contains(&recent.end) {
                recent.end = widened.end;
            }
        }
        widened
    }

    /// Returns the window that `next` computes for a reader that has reached `page`. Removes
    /// dropbehind folios from the cache that an uncached read has passed, or will not reach any
    /// more.
    fn advance(
        &self,
        context: &ReadContext<'_>,
        page: u64,
        next: impl FnOnce(&mut Recent) -> ReadaheadWindow,
    ) -> ReadaheadWindow {
        let mut recent = self.recent.lock();
        let before = *recent;
        let window = next(&mut recent);
        let passed = recent.pass(&before, page, context.options.caching);
        drop(recent);
        drop_behind(context.mapping, passed);
        window
    }

    /// Returns whether `page` is likely to be read next.
    pub(crate) fn expects(&self, page: u64) -> bool {
        let recent = self.recent.lock();
        (recent.unread.unwrap_or(recent.start)..recent.end).contains(&page)
    }

    /// Ends readahead: removes folios that were read ahead of uncached reads from `mapping`, the
    /// file's cache.
    pub fn stop(&self, mapping: &Mapping) {
        let recent = std::mem::take(&mut *self.recent.lock());
        if let Some(unread) = recent.unread {
            drop_behind(mapping, unread..recent.end);
        }
    }
}

/// Returns the window of only the `pages` pages from `page` on.
pub(crate) fn exact_window(context: &ReadContext<'_>, page: u64, pages: u64) -> ReadaheadWindow {
    whole_clusters(context, Limits::of(context).fit(exact(page, pages)))
}

/// Returns `window` with the whole clusters at its ends, as far as they are in the file, and with
/// an order for folios that contain whole clusters.
fn whole_clusters(context: &ReadContext<'_>, window: ReadaheadWindow) -> ReadaheadWindow {
    let ends = clusters_at_ends(context, window.start << PAGE_SHIFT..window.end << PAGE_SHIFT);
    let (mut start, mut end, mut order) = (window.start, window.end, u32::from(window.order));
    for cluster in ends.into_iter().flatten() {
        start = start.min(cluster.start >> PAGE_SHIFT);
        end = end.max(cluster.end.div_ceil(1 << PAGE_SHIFT));
        let pages = (cluster.end - cluster.start).div_ceil(1 << PAGE_SHIFT);
        order = order.max(pages.ilog2());
    }
    let order = order.min(ORDER_MAX.into()) as u8;
    Limits::of(context).fit(ReadaheadWindow { start, end, order, ..window })
}

impl Recent {
    fn pages(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the window for a miss.
    fn miss(&mut self, page: u64, pages: u64, previous: u64, pages_max: u64) -> ReadaheadWindow {
        // Requests of several threads may be a little out of order.
        let reach = self.start..self.end.saturating_add(self.pages());
        let in_order = previous == page || previous.wrapping_add(1) == page;
        if !in_order && !reach.contains(&page) {
            *self = Self::default();
            return exact(page, pages.min(pages_max));
        }
        let size = if reach.contains(&page) { self.grown(pages_max) } else { PAGES_MIN };
        let size = size.max(pages.saturating_mul(FIRST)).min(pages_max);
        let end = window_end(page, size, pages_max);
        *self = Self { start: page, end, ..*self };
        self.window(Some(page.saturating_add(pages)))
    }

    /// Returns the window after this one.
    fn advance(&mut self, page: u64, pages_max: u64) -> ReadaheadWindow {
        let start = if (self.start..self.end).contains(&page) { self.end } else { page };
        let end = window_end(start, self.grown(pages_max), pages_max);
        *self = Self { start, end, ..*self };
        self.window(Some(start))
    }

    /// Moves the unread part of the previous window, `before`, to this one, for a reader that has
    /// reached `page`. Returns the pages that the reader has passed, or will not reach any more.
    fn pass(&mut self, before: &Self, page: u64, caching: Caching) -> Range<u64> {
        let is_next = self.pages() > 0 && self.start <= before.end && page <= before.end;
        let unread = before.unread.filter(|unread| is_next && *unread <= page);
        if self.pages() > 0 && (unread.is_some() || caching == Caching::Dropbehind) {
            self.unread = Some(page);
        } else {
            self.unread = None;
        }
        match before.unread {
            Some(first) if unread.is_some() => first..page,
            Some(first) => first..before.end,
            None => 0..0,
        }
    }

    fn grown(&self, pages_max: u64) -> u64 {
        let pages = self.pages();
        let factor = if pages < pages_max / 16 { 4 } else { 2 };
        (pages * factor).max(PAGES_MIN).min(pages_max)
    }

    fn window(&self, mark: Option<u64>) -> ReadaheadWindow {
        // At least two folios, so that one can be copied while the other is read.
        let order = self.pages().checked_ilog2().map_or(0, |log| log.saturating_sub(1));
        ReadaheadWindow {
            start: self.start,
            end: self.end,
            mark,
            order: order.min(ORDER_MAX.into()) as u8,
        }
    }
}

/// Returns the end of a window of about `size` pages from `start` on. It is a multiple of the size,
/// so that folios of the maximum order fit into the next windows.
fn window_end(start: u64, size: u64, pages_max: u64) -> u64 {
    let end = start.saturating_add(size);
    let unit = 1 << size.ilog2();
    let down = end / unit * unit;
    if down.saturating_sub(start) >= size / 2 || down + unit - start > pages_max {
        down.max(start + size / 2)
    } else {
        down + unit
    }
}

/// Returns the window for a read that is not part of a sequence.
fn exact(page: u64, pages: u64) -> ReadaheadWindow {
    let order = pages.checked_ilog2().unwrap_or(0).min(ORDER_MAX.into()) as u8;
    ReadaheadWindow { start: page, end: page.saturating_add(pages.max(1)), mark: None, order }
}

/// The bounds of a window.
struct Limits {
    /// The maximum number of pages.
    pages_max: u64,
    /// The page after the file's last one.
    pages_end: u64,
    /// The number of pages in the smallest folio.
    pages_min: u64,
}

impl Limits {
    fn of(context: &ReadContext<'_>) -> Self {
        let pages_min = 1 << context.mapping.order_min();
        let share = context.mapping.cache().pages_max() / CACHE_SHARE;
        let option = u64::from(context.options.readahead_bytes_max) >> PAGE_SHIFT;
        Self {
            pages_max: option.min(share).max(pages_min),
            pages_end: context.size().div_ceil(1 << PAGE_SHIFT),
            pages_min,
        }
    }

    /// Returns the part of `window` that is in the file, in whole folios of the smallest size.
    fn fit(&self, window: ReadaheadWindow) -> ReadaheadWindow {
        let start = window.start / self.pages_min * self.pages_min;
        let end = window.end.min(self.pages_end).next_multiple_of(self.pages_min);
        ReadaheadWindow { start, end, ..window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 1024;

    fn miss(recent: &mut Recent, page: u64, pages: u64, previous: u64) -> (u64, u64, Option<u64>) {
        let window = recent.miss(page, pages, previous, MAX);
        (window.start, window.end, window.mark)
    }

    #[test]
    fn a_file_read_from_its_start_is_read_ahead_from_the_first_page() {
        let mut recent = Recent::default();
        assert_eq!(miss(&mut recent, 0, 1, u64::MAX), (0, 32, Some(1)));
        let window = recent.advance(16, MAX);
        assert_eq!((window.start, window.end, window.mark), (32, 128, Some(32)));
    }

    #[test]
    fn a_random_read_reads_only_the_request_and_ends_the_sequence() {
        let mut recent = Recent::default();
        miss(&mut recent, 0, 1, u64::MAX);
        assert_eq!(miss(&mut recent, 500, 3, 0), (500, 503, None));
        assert_eq!(recent, Recent::default());
        assert_eq!(miss(&mut recent, 900, 5000, 502), (900, 900 + MAX, None));
        // A read that continues it starts a sequence.
        assert_eq!(miss(&mut recent, 1924, 1, 1923).2, Some(1925));
    }

    #[test]
    fn large_requests_begin_with_large_windows() {
        let mut recent = Recent::default();
        assert_eq!(miss(&mut recent, 0, 16, u64::MAX), (0, 64, Some(16)));
        assert_eq!(miss(&mut Recent::default(), 0, 9999, u64::MAX), (0, MAX, Some(9999)));
    }

    #[test]
    fn windows_grow_to_the_limit_and_become_aligned() {
        let mut recent = Recent::default();
        miss(&mut recent, 0, 1, u64::MAX);
        let mut last = recent;
        for round in 0..12 {
            let window = recent.advance(last.start, MAX);
            assert_eq!(window.start, last.end);
            assert!((32..=MAX).contains(&recent.pages()), "{recent:?}");
            if round > 6 {
                assert_eq!((window.start % MAX, recent.pages(), window.order), (0, MAX, 9));
            }
            last = recent;
        }
    }

    #[test]
    fn reads_of_one_open_file_that_are_out_of_order_continue_the_sequence() {
        let mut recent = Recent::default();
        miss(&mut recent, 0, 32, u64::MAX);
        let end = recent.end;
        let (start, _, mark) = miss(&mut recent, end + 32, 32, 7);
        assert_eq!((start, mark), (end + 32, Some(end + 64)));
    }

    #[test]
    fn no_window_is_larger_than_the_limit_or_empty() {
        for pages_max in [1, 2, 3, 16, 31, 33, 1000] {
            let mut recent = Recent::default();
            let mut page = 0;
            for step in 0..200_u64 {
                let window = if step % 3 == 0 {
                    recent.miss(page, 1 + step % 7, page.wrapping_sub(1), pages_max)
                } else {
                    recent.advance(page, pages_max)
                };
                let pages = window.end - window.start;
                assert!((1..=pages_max).contains(&pages), "{pages} of {pages_max}");
                page = window.end - step % pages;
            }
        }
    }
}
