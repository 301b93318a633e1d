//! Reclaim: a clock that visits the frames in the order of memory and evicts folios that are unused
//! and were not visited again. Frames that are evicted in succession are adjacent, which makes room
//! for large folios. Not here: the use of the freed memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::buddy::free_order;
use crate::cache::PageCache;
use crate::frame::Frame;
use crate::mapping::Mapping;
use crate::options::ORDER_MAX;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// Frames that the hand passes at a time. As large as the largest folio, so that no folio is in two
/// batches.
const BATCH: u32 = 1 << ORDER_MAX;
/// Rounds after which even a folio that was visited again just before is evicted.
const ROUNDS: u64 = 3;
/// Reclaim for an optional large folio stops after it has freed this multiple of the requested
/// pages.
const FREED_FACTOR: u64 = 2;

/// Claimed folios that are freed together: first frame and order.
type Claimed = SmallVec<[(u32, u8); 64]>;

impl PageCache {
    /// Evicts folios until there is free memory for a folio of `order`. Returns whether there is.
    /// Unless the memory is `needed`, gives up after freeing [`FREED_FACTOR`] times as many pages.
    pub(crate) fn make_room(&self, order: u8, needed: bool) -> bool {
        let frames = self.pool.frames().len() as u32;
        let batches = frames.div_ceil(BATCH);
        let freed_max = if needed { u64::MAX } else { FREED_FACTOR << order };
        let mut freed = 0;
        let mut last = None;
        for _ in 0..u64::from(batches) * ROUNDS {
            let batch = self.hand.fetch_add(1, Ordering::Relaxed) % batches;
            freed += self.evict(batch * BATCH, frames.min((batch + 1) * BATCH), &mut last);
            if self.pool.has(order) {
                return true;
            }
            if freed >= freed_max {
                return false;
            }
        }
        false
    }

    /// Evicts all evictable folios in the frames `from..end`. Returns the number of frames freed.
    /// `last` caches the mapping of the last folio.
    fn evict(&self, from: u32, end: u32, last: &mut Option<Arc<Mapping>>) -> u64 {
        let mut claimed = Claimed::new();
        let mut at = from;
        while at < end {
            let frame = self.pool.frame(at);
            // These are hints: `claim` decides whether the folio is evicted.
            let pages = if frame.is_live() {
                if frame.is_evictable() {
                    claimed.extend(self.claim(at, last));
                }
                1 << frame.span().order
            } else {
                1 << free_order(frame).unwrap_or(0)
            };
            at += pages;
        }
        let frames = claimed.iter().map(|(_, order)| 1 << order).sum();
        if frames > 0 {
            self.pool.free_all(&claimed);
            self.pool.count_reclaimed(claimed.len() as u64, frames << PAGE_SHIFT);
        }
        frames
    }

    /// Removes the folio that `frame` heads from its mapping, if it is unused.
    fn claim(&self, frame: u32, last: &mut Option<Arc<Mapping>>) -> Option<(u32, u8)> {
        let owner = self.pool.frame(frame).owner();
        if last.as_ref().is_none_or(|mapping| mapping.id() != owner) {
            // A mapping that is being dropped frees its folios itself. Replacing `last` may drop
            // the previous mapping, which takes the lock of `mappings`: so release it first.
            let mapping = self.mappings.read().get(&owner)?.upgrade();
            *last = mapping;
        }
        last.as_ref()?.claim(frame, Frame::claim).map(|span| (frame, span.order))
    }
}

const _: () = assert!(PAGE_SIZE << ORDER_MAX == 2 << 20);
