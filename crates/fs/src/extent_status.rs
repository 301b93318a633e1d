//! Cached spans of an inode's map, and the lock of the map. A thread holds the lock while it reads
//! or changes the map on disk. Not here: reading and changing the map.
//!
//! Invariants (`M` for map):
//!
//! - **M1.** The map on disk changes only under the exclusive lock. Before the lock is released,
//!   cached spans of the changed range are updated or removed. So no cached span is ever stale.
//! - **M2.** The generation changes before the lock is released. A caller reads the number before
//!   it requests a mapping. The mapping is valid for as long as the number stays the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::locks::{Rank, RankedRwLock, RankedWriteGuard};
use base::{FileBlock, Result};

use crate::extents::{RUNS_AT_ONCE, Run, Span};

/// The spans of one inode that were last looked up, so that a sequential reader seldom reads the
/// map.
#[derive(Debug)]
pub struct ExtentStatus {
    known: RankedRwLock<Known>,
    generation: AtomicU64,
    /// The number of uses of spans.
    clock: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    spans: Vec<KnownSpan>,
}

#[derive(Debug)]
struct KnownSpan {
    span: Arc<Span>,
    /// The clock at the last use.
    used: AtomicU64,
}

/// The exclusive lock of an inode's map. A drop without [`finish`](Self::finish) removes all cached
/// spans, since the state of the map is unknown.
#[derive(Debug)]
pub struct MapChange<'a> {
    known: RankedWriteGuard<'a, Known>,
    status: &'a ExtentStatus,
    is_finished: bool,
}

impl ExtentStatus {
    const SPANS_MAX: usize = Self::RUNS_MAX / RUNS_AT_ONCE;
    /// The maximum number of runs in all spans except the newest. A run has 32 bytes.
    const RUNS_MAX: usize = 4096;

    /// Returns an empty cache whose lock has `rank`.
    pub fn new(rank: Rank) -> Self {
        let known = RankedRwLock::new(rank, Known::default());
        Self { known, generation: AtomicU64::new(0), clock: AtomicU64::new(0) }
    }

    /// Returns the generation, which changes when a returned mapping may be stale.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the cached span around `at`.
    pub fn cached(&self, at: FileBlock) -> Option<Arc<Span>> {
        self.find(&self.known.read(), at)
    }

    fn find(&self, known: &Known, at: FileBlock) -> Option<Arc<Span>> {
        let found = known.spans.iter().rfind(|known| known.span.contains(at))?;
        found.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(Arc::clone(&found.span))
    }

    /// Returns the span around `at`: the cached one, or the one that `load` reads from the map on
    /// disk.
    pub fn lookup(&self, at: FileBlock, load: impl FnOnce() -> Result<Span>) -> Result<Arc<Span>> {
        let known = self.known.read();
        if let Some(span) = self.find(&known, at) {
            return Ok(span);
        }
        let span = Arc::new(load()?);
        let generation = self.generation();
        drop(known);
        self.insert(Arc::clone(&span), generation);
        Ok(span)
    }

    /// Adds a span that was loaded when the generation was `generation`. Does nothing if the lock
    /// is held.
    fn insert(&self, span: Arc<Span>, generation: u64) {
        // Waiting for the exclusive lock would make other readers wait behind this thread.
        let Some(mut known) = self.known.try_write() else { return };
        // M1. A change since then may have changed this part of the map.
        if self.generation() != generation {
            return;
        }
        let spans = &mut known.spans;
        if spans.iter().any(|known| known.span.start == span.start && known.span.end == span.end) {
            return;
        }
        let used = self.clock.fetch_add(1, Ordering::Relaxed).into();
        spans.push(KnownSpan { span, used });
        let mut runs: usize = spans.iter().map(|known| known.span.runs.len()).sum();
        while spans.len() > Self::SPANS_MAX || (spans.len() > 1 && runs > Self::RUNS_MAX) {
            let before_newest = spans[..spans.len() - 1].iter().enumerate();
            let oldest = before_newest.min_by_key(|(_, known)| known.used.load(Ordering::Relaxed));
            let Some((oldest, _)) = oldest else { break };
            runs -= spans.remove(oldest).span.runs.len();
        }
    }

    /// Takes the exclusive lock.
    pub fn change(&self) -> MapChange<'_> {
        MapChange { known: self.known.write(), status: self, is_finished: false }
    }

    /// [`change`](Self::change) for a caller that holds the lock of another inode's map. The caller
    /// orders the two locks.
    pub fn change_second(&self) -> MapChange<'_> {
        MapChange { known: self.known.write_nested(), status: self, is_finished: false }
    }
}

impl MapChange<'_> {
    /// Records that the map now has `run`, or a hole, from `start` to `end`.
    pub fn record(&mut self, start: FileBlock, end: FileBlock, run: Option<Run>) {
        let known = &mut self.known.spans;
        for known in known.iter_mut().filter(|known| known.span.start < end) {
            if known.span.end > start {
                Arc::make_mut(&mut known.span).set(start, end, run);
            }
        }
        known.retain(|known| known.span.runs.len() <= ExtentStatus::RUNS_MAX);
        self.outdate();
    }

    /// Removes the cached spans from `start` on, since the map has changed there.
    pub fn invalidate_from(&mut self, start: FileBlock) {
        self.known.spans.retain(|known| known.span.end <= start);
        self.outdate();
    }

    /// Changes the generation (M2).
    fn outdate(&self) {
        self.status.generation.fetch_add(1, Ordering::Release);
    }

    /// Releases the lock. The caller has recorded all changes of the map on disk.
    pub fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for MapChange<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.known.spans.clear();
            self.outdate();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::FsBlock;

    fn blocks(start: u64, end: u64) -> (FileBlock, FileBlock) {
        (FileBlock(start), FileBlock(end))
    }

    /// Returns a cache with these spans of ten blocks, which are holes.
    fn cache_with(spans: impl IntoIterator<Item = u64>) -> ExtentStatus {
        let status = ExtentStatus::new(Rank::Format(0));
        for index in spans {
            let (start, end) = blocks(index * 10, index * 10 + 10);
            status.lookup(start, || Ok(Span::hole(start, end))).unwrap();
        }
        status
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_used_spans() {
        let status = cache_with([]);
        for index in 0..100 {
            let (start, end) = blocks(index * 10, index * 10 + 10);
            status.lookup(start, || Ok(Span::hole(start, end))).unwrap();
            assert!(status.cached(FileBlock(0)).is_some());
        }
        assert!(status.cached(FileBlock(100)).is_none());
        assert_eq!(status.known.read().spans.len(), ExtentStatus::SPANS_MAX);
    }

    #[test]
    fn later_lookups_see_a_change_and_returned_spans_do_not() {
        let status = cache_with([0, 1]);
        let (before, generation) = (status.cached(FileBlock(5)).unwrap(), status.generation());
        let mut change = status.change();
        let (start, end) = blocks(8, 12);
        let run = Run { start, length: 4, block: FsBlock(100), unwritten: true };
        change.record(start, end, Some(run));
        change.finish();
        assert_ne!(status.generation(), generation);
        assert!(before.runs.is_empty());
        for at in [8, 11] {
            let span = status.cached(FileBlock(at)).unwrap();
            assert_eq!(span.runs.len(), 1, "{at}");
        }
    }

    #[test]
    fn a_failed_change_removes_all_cached_spans() {
        let status = cache_with([0]);
        let generation = status.generation();
        drop(status.change());
        assert!(status.cached(FileBlock(0)).is_none());
        assert_ne!(status.generation(), generation);
    }

    #[test]
    fn spans_of_shifted_blocks_are_invalidated() {
        let status = cache_with([0, 1, 2]);
        let generation = status.generation();
        let mut change = status.change();
        change.invalidate_from(FileBlock(15));
        change.finish();
        assert_ne!(status.generation(), generation);
        let is_known = [5, 12, 15, 25].map(|at| status.cached(FileBlock(at)).is_some());
        assert_eq!(is_known, [true, false, false, false]);
    }

    #[test]
    fn a_span_that_was_loaded_before_a_change_is_not_cached_after_it() {
        let status = ExtentStatus::new(Rank::Format(0));
        let (start, end) = blocks(0, 10);
        let (span, generation) = (Arc::new(Span::hole(start, end)), status.generation());
        let mut change = status.change();
        change.record(FileBlock(20), FileBlock(21), None);
        change.finish();
        status.insert(Arc::clone(&span), generation);
        assert!(status.cached(start).is_none());
        status.insert(span, status.generation());
        assert!(status.cached(start).is_some());
    }

    #[test]
    fn a_cached_span_is_never_older_than_the_map() {
        let status = ExtentStatus::new(Rank::Format(0));
        // Stands for the map: the volume block that file block 0 has.
        let disk = AtomicU64::new(1);
        let (start, end) = blocks(0, 1);
        let run = |block| Run { start, length: 1, block: FsBlock(block), unwritten: false };
        let load = || {
            let runs = vec![run(disk.load(Ordering::Relaxed))];
            Ok(Span { start, end, runs })
        };
        let read = || status.lookup(start, load).unwrap().runs[0].block.0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut last = 0;
                for _ in 0..10_000 {
                    let seen = read();
                    assert!(seen >= last, "{seen} after {last}");
                    last = seen;
                }
            });
            for block in 2..=1000 {
                {
                    let mut change = status.change();
                    disk.store(block, Ordering::Relaxed);
                    if block % 3 != 0 {
                        change.record(start, end, Some(run(block)));
                        change.finish();
                    }
                }
                // Otherwise the drop removes the cached span, and the read loads it again.
                assert_eq!(read(), block);
            }
        });
    }
}
