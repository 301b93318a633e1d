//! The memory of a cache: an arena of frames, their descriptors, and which of them are free.
//! Not here: what folios are used for, and making room by evicting them.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use base::locks::{Rank, RankedMutex};
use base::{Error, Result};

use crate::buddy::{Block, Buddy};
use crate::frame::Frame;
use crate::node::{NODES_PER_FRAME, Node, NodeId, Nodes};
use crate::options::{CacheStats, ORDER_MAX};
use crate::region::Region;
use crate::state::FolioState;
use crate::sync::Ordering;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// The most frames of an arena, 256 GiB: what a tree's entries can name.
const FRAMES_MAX: u64 = 1 << 26;
/// The least limit of a cache, in bytes: a few of the largest blocks.
const BYTES_MIN: u64 = 512 << 10;
/// Nodes are carved from blocks of at most this order, and of at most one part in so many of all
/// frames. Nodes never go back to the pool: kept together, they spoil few of the blocks that large
/// folios need.
const NODES_ORDER_MAX: u32 = 6;
const NODES_SHARE: usize = 128;
/// The end of the list of free nodes.
const NO_NODE: u32 = u32::MAX;

/// The pool. Its memory is reserved at once, but takes up room only as it is used.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Descriptors, an array of [`Frame`]. Zeroed memory is a valid one.
    descriptors: Region,
    /// The frames themselves.
    arena: Region,
    frames: usize,
    lists: RankedMutex<Lists>,
    /// Folios whose memory is foreign: each takes one or two of the host's mappings.
    pub(crate) foreign: AtomicU32,
}

/// What is free, and what is not.
#[derive(Debug)]
struct Lists {
    buddy: Buddy,
    nodes: u32,
    stats: CacheStats,
}

impl Pool {
    /// A pool that uses at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Result<Self> {
        if bytes_max < BYTES_MIN {
            return Err(Error::InvalidArgument("the cache limit is less than 512 KiB"));
        }
        let frames = (bytes_max / (PAGE_SIZE + size_of::<Frame>()) as u64).min(FRAMES_MAX);
        let frames = usize::try_from(frames).map_err(|_| Error::OutOfMemory)?;
        let descriptors = Region::new(frames * size_of::<Frame>())?;
        let arena = Region::new(frames << PAGE_SHIFT)?;
        let stats = CacheStats { bytes_max, ..CacheStats::default() };
        // SAFETY: as in `frames`.
        let all =
            unsafe { std::slice::from_raw_parts(descriptors.start().cast().as_ptr(), frames) };
        let lists = Lists { buddy: Buddy::new(all), nodes: NO_NODE, stats };
        let lists = RankedMutex::new(Rank::Pool, lists);
        Ok(Self { descriptors, arena, frames, lists, foreign: AtomicU32::new(0) })
    }

    /// All descriptors.
    #[inline]
    pub(crate) fn frames(&self) -> &[Frame] {
        let start = self.descriptors.start().cast::<Frame>().as_ptr();
        // SAFETY: the region has room for that many, is aligned to far more than a frame, and began
        // as zeroes, which is a valid frame. It is used for nothing else, and only shared.
        unsafe { std::slice::from_raw_parts(start, self.frames) }
    }

    /// The descriptor of `frame`.
    #[inline]
    pub(crate) fn frame(&self, frame: u32) -> &Frame {
        &self.frames()[frame as usize]
    }

    /// The first byte of `frame`'s memory.
    #[inline]
    pub(crate) fn memory(&self, frame: u32) -> NonNull<u8> {
        assert!((frame as usize) < self.frames, "no such frame");
        // SAFETY: within the arena.
        unsafe { self.arena.start().add((frame as usize) << PAGE_SHIFT) }
    }

    /// Takes memory for a folio of `order`.
    pub(crate) fn take(&self, order: u8) -> Option<u32> {
        let lists = &mut *self.lists.lock();
        let block = lists.buddy.take(self.frames(), order)?;
        self.frame(block.start).set_blank(block.blank);
        let stats = &mut lists.stats;
        stats.folios[usize::from(order)] += 1;
        stats.bytes_resident += (PAGE_SIZE as u64) << order;
        stats.bytes_resident_max = stats.bytes_resident_max.max(stats.bytes_resident);
        Some(block.start)
    }

    /// Takes back the memory of a folio of `order` that never came to life, or that the caller has
    /// ended.
    pub(crate) fn give(&self, frame: u32, order: u8) {
        self.give_all(&[(frame, order)]);
    }

    /// Takes back the memory of several folios.
    pub(crate) fn give_all(&self, ended: &[(u32, u8)]) {
        for (frame, order) in ended {
            FolioState::detach(self.frame(*frame));
            if self.frame(*frame).is_foreign() {
                self.make_new(*frame, *order);
            }
        }
        let lists = &mut *self.lists.lock();
        for (frame, order) in ended {
            if self.frame(*frame).is_foreign() {
                // It could not be made new: nobody must get it.
                continue;
            }
            let blank = self.frame(*frame).is_blank();
            lists.buddy.give(self.frames(), Block { start: *frame, order: *order, blank });
            lists.stats.folios[usize::from(*order)] -= 1;
            lists.stats.bytes_resident -= (PAGE_SIZE as u64) << order;
        }
    }

    /// Makes the memory of a folio that nobody uses any more the arena's own again, if the host lets
    /// that be.
    fn make_new(&self, frame: u32, order: u8) {
        // SAFETY: the caller owns the frame.
        if unsafe { self.arena.renew(self.place_in_arena(frame, 0..1 << order)) }.is_ok() {
            self.frame(frame).made_new();
            self.foreign.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The arena, and which bytes of it are `pages` of the folio that `frame` heads.
    pub(crate) fn part(&self, frame: u32, pages: Range<u32>) -> (&Region, Range<usize>) {
        (&self.arena, self.place_in_arena(frame, pages))
    }

    fn place_in_arena(&self, frame: u32, pages: Range<u32>) -> Range<usize> {
        let byte = |page: u32| (frame as usize + page as usize) << PAGE_SHIFT;
        byte(pages.start)..byte(pages.end)
    }

    /// Whether there is memory for a folio of `order`.
    pub(crate) fn has(&self, order: u8) -> bool {
        self.lists.lock().buddy.has(order)
    }

    /// Counts what reclaim has given back.
    pub(crate) fn count_reclaimed(&self, folios: u64, bytes: u64) {
        let stats = &mut self.lists.lock().stats;
        stats.folios_reclaimed += folios;
        stats.bytes_reclaimed += bytes;
    }

    /// Counts a folio that uncached reads and writes have left behind.
    pub(crate) fn count_dropped(&self, bytes: u64) {
        let stats = &mut self.lists.lock().stats;
        stats.folios_dropped += 1;
        stats.bytes_dropped += bytes;
    }

    /// The counters.
    pub(crate) fn stats(&self) -> CacheStats {
        self.lists.lock().stats
    }

    fn put_node(&self, lists: &mut Lists, id: NodeId) {
        self.node(id).next_free.store(lists.nodes, Ordering::Relaxed);
        lists.nodes = id.0;
    }

    /// Makes nodes of a block of frames, for good.
    fn carve_nodes(&self, lists: &mut Lists) -> Option<()> {
        let share = (self.frames / NODES_SHARE).checked_ilog2().unwrap_or(0).min(NODES_ORDER_MAX);
        let order = (0..=share as u8).rev().find(|&order| lists.buddy.has(order))?;
        let start = lists.buddy.take(self.frames(), order)?.start;
        lists.stats.bytes_index += (PAGE_SIZE as u64) << order;
        for frame in start..start + (1 << order) {
            // SAFETY: the pool has just given the frame out, to this function, for good.
            unsafe { self.memory(frame).write_bytes(0, PAGE_SIZE) };
            for place in 0..NODES_PER_FRAME {
                self.put_node(lists, NodeId::new(frame, place));
            }
        }
        Some(())
    }
}

impl Nodes for Pool {
    #[inline]
    fn node(&self, id: NodeId) -> &Node {
        debug_assert!(id.place() < NODES_PER_FRAME);
        let frame = self.memory(id.frame()).cast::<Node>();
        // SAFETY: ids come from `carve_nodes`, which found the frame's memory unused for good and
        // made it empty nodes; nodes are changed through atomics only. Entries, which is where
        // ids are kept, lie in such nodes and in trees' roots only (tree.rs, T1).
        unsafe { frame.add(id.place() as usize).as_ref() }
    }

    fn take_node(&self) -> Option<NodeId> {
        let lists = &mut *self.lists.lock();
        if lists.nodes == NO_NODE {
            self.carve_nodes(lists)?;
        }
        let id = NodeId(lists.nodes);
        lists.nodes = self.node(id).next_free.load(Ordering::Relaxed);
        Some(id)
    }

    fn give_node(&self, id: NodeId) {
        let lists = &mut *self.lists.lock();
        self.put_node(lists, id);
    }
}

const _: () = assert!(BYTES_MIN >> PAGE_SHIFT > 1 << 4 && ORDER_MAX < 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_hands_out_no_more_than_its_limit_and_counts_it() {
        let pool = Pool::new(BYTES_MIN).expect("memory");
        let mut held = Vec::new();
        for order in [4, 2, 0] {
            while let Some(frame) = pool.take(order) {
                held.push((frame, order));
            }
        }
        let stats = pool.stats();
        assert_eq!(stats.bytes_resident, (pool.frames as u64) << PAGE_SHIFT);
        assert!(stats.bytes_resident + (pool.frames * size_of::<Frame>()) as u64 <= BYTES_MIN);
        assert_eq!(pool.take_node(), None);
        pool.give_all(&held);
        let stats = pool.stats();
        assert_eq!((stats.bytes_resident, stats.folios), (0, [0; 10]));
        assert!(stats.bytes_resident_max > 0);
        assert!(Pool::new(BYTES_MIN - 1).is_err());
    }

    #[test]
    fn nodes_are_used_again_and_count() {
        let pool = Pool::new(BYTES_MIN).expect("memory");
        let ids: Vec<NodeId> = (0..40).map(|_| pool.take_node().expect("memory")).collect();
        let bytes_index = pool.stats().bytes_index;
        assert!(bytes_index <= 4 << PAGE_SHIFT);
        for id in ids {
            pool.give_node(id);
        }
        for _ in 0..40 {
            assert!(pool.node(pool.take_node().expect("memory")).is_empty());
        }
        assert_eq!(pool.stats().bytes_index, bytes_index);
    }
}
