//! Making room: a clock that goes over the frames in the order of memory and evicts the folios that
//! nobody uses and nobody came back to. Frames that are evicted one after another lie beside one
//! another, so room for large folios comes by itself.
//! Not here: which folio a freed block serves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::buddy::free_order;
use crate::cache::PageCache;
use crate::frame::Frame;
use crate::mapping::Mapping;
use crate::options::ORDER_MAX;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// Frames that the hand goes over at a time: the largest folio, so that none straddles two steps.
const STEP: u32 = 1 << ORDER_MAX;
/// Rounds after which even a folio that was visited again just before has come up for eviction.
const ROUNDS: u64 = 3;
/// How many times a folio's pages reclaim may free to make room for it while a smaller one would
/// do.
const GENEROSITY: u64 = 2;

/// Folios that were claimed, and are to be given back to the pool together.
type Claimed = SmallVec<[(u32, u8); 64]>;

impl PageCache {
    /// Evicts until there is room for a folio of `order`; whether there was at the end. Unless the
    /// room is `needed`, gives up when freeing some multiple of it has not helped.
    pub(crate) fn make_room(&self, order: u8, needed: bool) -> bool {
        let frames = self.pool.frames().len() as u32;
        let steps = frames.div_ceil(STEP);
        let enough = if needed { u64::MAX } else { GENEROSITY << order };
        let mut freed = 0;
        let mut last = None;
        for _ in 0..u64::from(steps) * ROUNDS {
            let step = self.hand.fetch_add(1, Ordering::Relaxed) % steps;
            freed += self.evict(step * STEP, frames.min((step + 1) * STEP), &mut last);
            if self.pool.has(order) {
                return true;
            }
            if freed >= enough {
                return false;
            }
        }
        false
    }

    /// Evicts what it can of the frames `from..end`; gives the number of frames freed. `last` is
    /// the mapping of the folio evicted before.
    fn evict(&self, from: u32, end: u32, last: &mut Option<Arc<Mapping>>) -> u64 {
        let mut claimed = Claimed::new();
        let mut at = from;
        while at < end {
            let frame = self.pool.frame(at);
            // All of this is a hint: whether the folio really goes is decided by `claim`.
            let pages = if frame.is_live() {
                if frame.is_evictable() {
                    claimed.extend(self.claim(at, last));
                }
                1 << frame.place().order
            } else {
                1 << free_order(frame).unwrap_or(0)
            };
            at += pages;
        }
        let frames = claimed.iter().map(|(_, order)| 1 << order).sum();
        if frames > 0 {
            self.pool.give_all(&claimed);
            self.pool.count_reclaimed(claimed.len() as u64, frames << PAGE_SHIFT);
        }
        frames
    }

    /// Takes the folio that `frame` heads out of its mapping, if nobody uses it.
    fn claim(&self, frame: u32, last: &mut Option<Arc<Mapping>>) -> Option<(u32, u8)> {
        let owner = self.pool.frame(frame).owner();
        if last.as_ref().is_none_or(|mapping| mapping.id() != owner) {
            // A mapping that is being dropped frees its folios itself. The one before may be dropped
            // here, which takes the lock of `mappings`.
            let mapping = self.mappings.read().get(&owner)?.upgrade();
            *last = mapping;
        }
        last.as_ref()?.claim(frame, Frame::claim).map(|place| (frame, place.order))
    }
}

const _: () = assert!(PAGE_SIZE << ORDER_MAX == 2 << 20);
