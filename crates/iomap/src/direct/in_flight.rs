//! What a file knows of its direct requests: the number of those in flight, and the zeroes that
//! they have written after its end. Not here: the requests (`request.rs`).

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// The number of direct requests of a file in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlightCount {
    count: AtomicUsize,
    lock: Mutex<()>,
    none: Condvar,
}

impl InFlightCount {
    /// Adds a request. The caller holds the inode's lock.
    pub(super) fn begin(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Subtracts a request that has ended: the format was called, and the cache has no data from
    /// before the request.
    pub(super) fn end(&self) {
        let before = self.count.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a request ends twice");
        if before == 1 {
            // A thread that found the last request in flight waits by now.
            drop(self.lock.lock());
            self.none.notify_all();
        }
    }

    /// Returns whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Waits until there are none. The caller holds the inode's lock alone.
    pub(crate) fn wait_none(&self) {
        if !self.any() {
            return;
        }
        base::waiting::about_to_wait();
        let mut guard = self.lock.lock();
        while self.any() {
            self.none.wait(&mut guard);
        }
    }
}

/// The number of direct reads of a file in flight, in two counters. New reads are counted in one of
/// them, so that the other one reaches zero also while reads overlap without end.
#[derive(Debug, Default)]
pub(crate) struct DirectReads {
    counts: [AtomicUsize; 2],
    /// The counter of new reads.
    current: AtomicUsize,
}

/// The counter of a direct read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedIn(usize);

impl DirectReads {
    /// Counts a read, before it maps its range.
    pub(crate) fn begin(&self) -> CountedIn {
        let current = self.current.load(Ordering::Relaxed);
        self.counts[current].fetch_add(1, Ordering::AcqRel);
        CountedIn(current)
    }

    /// Counts the end of a read.
    pub(crate) fn end(&self, counted: CountedIn) {
        let before = self.counts[counted.0].fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a read ends twice");
    }

    /// Clears the counters in `in_flight` that are zero: all reads that were counted in them
    /// earlier have ended. Returns whether any is left.
    ///
    /// A read stays in one counter. So the reads that had begun at some time have ended once each
    /// counter was zero at any time since, wherever new reads are counted.
    pub(crate) fn look(&self, in_flight: &mut [bool; 2]) -> bool {
        let is_used = |counter: usize| self.counts[counter].load(Ordering::Acquire) > 0;
        for (counter, in_flight) in in_flight.iter_mut().enumerate() {
            *in_flight = *in_flight && is_used(counter);
        }
        let current = self.current.load(Ordering::Relaxed);
        let other = 1 - current;
        if in_flight[current] && !is_used(other) {
            self.current.store(other, Ordering::Relaxed);
        }
        in_flight.contains(&true)
    }
}

/// The zeroes on the device after the end of a file, as far as they are known: the size, and the
/// end of its block. Nothing but zeroes is written after the end of a file, but what the block held
/// before the first write is unknown.
#[derive(Debug, Default)]
pub(crate) struct ZeroedTail(Mutex<Option<(u64, u64)>>);

impl ZeroedTail {
    /// Returns whether a write from byte `at` on, in the block that ends with byte `block_end`,
    /// continues the last write, in a file of `size` bytes. The caller holds the inode's lock
    /// alone.
    pub(super) fn is_continued_by(&self, at: u64, size: u64, block_end: u64) -> bool {
        at == size && *self.0.lock() == Some((size, block_end))
    }

    /// Clears the known tail: a write begins that may fail.
    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Records that the file ends with byte `end`, with zeroes up to `block_end`.
    pub(super) fn set(&self, end: u64, block_end: u64) {
        *self.0.lock() = Some((end, block_end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_reads_have_ended_although_reads_overlap_without_end() {
        let reads = DirectReads::default();
        let (mut first, mut last) = (reads.begin(), reads.begin());
        let mut in_flight = [true; 2];
        let mut looks = 0;
        while reads.look(&mut in_flight) {
            looks += 1;
            assert!(looks < 4, "{reads:?}");
            reads.end(first);
            (first, last) = (last, reads.begin());
        }
        reads.end(first);
        reads.end(last);
        assert!(!reads.look(&mut [true; 2]));
    }

    #[test]
    fn a_read_is_in_flight_until_it_ends_whatever_the_others_do() {
        let reads = DirectReads::default();
        for others in 0..4 {
            let earlier = reads.begin();
            let mut in_flight = [true; 2];
            for _ in 0..10 {
                let later: Vec<_> = (0..others).map(|_| reads.begin()).collect();
                assert!(reads.look(&mut in_flight), "{reads:?}");
                later.into_iter().for_each(|read| reads.end(read));
                assert!(reads.look(&mut in_flight), "{reads:?}");
            }
            reads.end(earlier);
            assert!(!reads.look(&mut in_flight), "{reads:?}");
        }
    }
}
