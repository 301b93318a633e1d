//! The memory of a cache: an arena of frames, their descriptors, and the free lists.
//! Not here: the use of folios, and their eviction.

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
use crate::{PAGE_SHIFT, PAGE_SIZE};
use base::sync::Ordering;

/// The maximum number of frames in an arena, 256 GiB. A tree's entries can represent no more.
const FRAMES_MAX: u64 = 1 << 26;
/// The smallest limit of a cache, in bytes. It has room for a few of the largest blocks.
const BYTES_MIN: u64 = 512 << 10;
/// The greatest order of a block of frames that is divided into nodes. Nodes never become folios
/// again. If they are together, they break up few of the blocks that large folios need.
const NODES_ORDER_MAX: u32 = 6;
/// Such a block has at most the number of all frames divided by this.
const NODES_SHARE: usize = 128;
/// The end of the list of free nodes.
const NO_NODE: u32 = u32::MAX;

/// The pool. It reserves all of its address space at once, but its memory only as it is used.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The descriptors, an array of [`Frame`]. Zeroed memory is a valid array.
    descriptors: Region,
    /// The frames themselves.
    arena: Region,
    frames: usize,
    lists: RankedMutex<Lists>,
    /// The number of folios whose memory is foreign. Each takes one or two mappings of this
    /// process.
    pub(crate) foreign: AtomicU32,
}

/// The free lists and the counters.
#[derive(Debug)]
struct Lists {
    buddy: Buddy,
    /// The first free node, or [`NO_NODE`].
    nodes: u32,
    stats: CacheStats,
}

impl Pool {
    /// Creates a pool that uses at most `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Result<Self> {
        if bytes_max < BYTES_MIN {
            return Err(Error::InvalidArgument("the cache limit is less than 512 KiB"));
        }
        let frames = (bytes_max / (PAGE_SIZE + size_of::<Frame>()) as u64).min(FRAMES_MAX);
        let refused = |_| Error::NoAddressSpace { bytes_max };
        let frames = usize::try_from(frames).map_err(|_| Error::NoAddressSpace { bytes_max })?;
        let descriptors = Region::new(frames * size_of::<Frame>()).map_err(refused)?;
        let arena = Region::new(frames << PAGE_SHIFT).map_err(refused)?;
        let stats = CacheStats { bytes_max, ..CacheStats::default() };
        // SAFETY: as in `frames`.
        let all =
            unsafe { std::slice::from_raw_parts(descriptors.start().cast().as_ptr(), frames) };
        let lists = Lists { buddy: Buddy::new(all), nodes: NO_NODE, stats };
        let lists = RankedMutex::new(Rank::Pool, lists);
        Ok(Self { descriptors, arena, frames, lists, foreign: AtomicU32::new(0) })
    }

    /// Returns all descriptors.
    #[inline]
    pub(crate) fn frames(&self) -> &[Frame] {
        let start = self.descriptors.start().cast::<Frame>().as_ptr();
        // SAFETY: the region has room for so many frames, has a larger alignment than a frame, and
        // was zeroed, which is a valid frame. It is used for nothing else, and only by shared
        // references.
        unsafe { std::slice::from_raw_parts(start, self.frames) }
    }

    /// Returns the descriptor of `frame`.
    #[inline]
    pub(crate) fn frame(&self, frame: u32) -> &Frame {
        &self.frames()[frame as usize]
    }

    /// Returns the address of `frame`'s memory.
    #[inline]
    pub(crate) fn memory(&self, frame: u32) -> NonNull<u8> {
        assert!((frame as usize) < self.frames, "no such frame");
        // SAFETY: within the arena.
        unsafe { self.arena.start().add((frame as usize) << PAGE_SHIFT) }
    }

    /// Allocates memory for a folio of `order`, and returns its first frame. Returns `None` if
    /// there is none.
    pub(crate) fn allocate(&self, order: u8) -> Option<u32> {
        let lists = &mut *self.lists.lock();
        let block = lists.buddy.allocate(self.frames(), order)?;
        self.frame(block.start).set_blank(block.blank);
        let stats = &mut lists.stats;
        stats.folios[usize::from(order)] += 1;
        stats.bytes_resident += (PAGE_SIZE as u64) << order;
        stats.bytes_resident_max = stats.bytes_resident_max.max(stats.bytes_resident);
        Some(block.start)
    }

    /// Frees the memory of a folio of `order` that never was live, or whose LIVE the caller has
    /// cleared.
    pub(crate) fn free(&self, frame: u32, order: u8) {
        self.free_all(&[(frame, order)]);
    }

    /// Frees the memory of several folios, each given by its first frame and its order.
    pub(crate) fn free_all(&self, folios: &[(u32, u8)]) {
        for (frame, order) in folios {
            FolioState::detach(self.frame(*frame));
            if self.frame(*frame).is_foreign() {
                self.renew(*frame, *order);
            }
        }
        let lists = &mut *self.lists.lock();
        for (frame, order) in folios {
            if self.frame(*frame).is_foreign() {
                // It could not be renewed. Its memory is still that of a file, so it must not be
                // allocated again.
                continue;
            }
            let blank = self.frame(*frame).is_blank();
            lists.buddy.free(self.frames(), Block { start: *frame, order: *order, blank });
            lists.stats.folios[usize::from(*order)] -= 1;
            lists.stats.bytes_resident -= (PAGE_SIZE as u64) << order;
        }
    }

    /// Replaces the foreign memory of an unused folio by memory of the arena's own, unless the host
    /// refuses.
    fn renew(&self, frame: u32, order: u8) {
        // SAFETY: the caller owns the frame.
        if unsafe { self.arena.renew(self.arena_range(frame, 0..1 << order)) }.is_ok() {
            self.frame(frame).set_renewed();
            self.foreign.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the arena, and the range of its bytes that are `pages` of the folio that `frame`
    /// heads.
    pub(crate) fn part(&self, frame: u32, pages: Range<u32>) -> (&Region, Range<usize>) {
        (&self.arena, self.arena_range(frame, pages))
    }

    fn arena_range(&self, frame: u32, pages: Range<u32>) -> Range<usize> {
        let byte = |page: u32| (frame as usize + page as usize) << PAGE_SHIFT;
        byte(pages.start)..byte(pages.end)
    }

    /// Returns whether there is free memory for a folio of `order`.
    pub(crate) fn has(&self, order: u8) -> bool {
        self.lists.lock().buddy.has(order)
    }

    /// Counts folios that reclaim has evicted.
    pub(crate) fn count_reclaimed(&self, folios: u64, bytes: u64) {
        let stats = &mut self.lists.lock().stats;
        stats.folios_reclaimed += folios;
        stats.bytes_reclaimed += bytes;
    }

    /// Counts a dropbehind folio that has left the cache.
    pub(crate) fn count_dropped(&self, bytes: u64) {
        let stats = &mut self.lists.lock().stats;
        stats.folios_dropped += 1;
        stats.bytes_dropped += bytes;
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> CacheStats {
        self.lists.lock().stats
    }

    fn add_free_node(&self, lists: &mut Lists, id: NodeId) {
        self.node(id).next_free.store(lists.nodes, Ordering::Relaxed);
        lists.nodes = id.0;
    }

    /// Allocates a block of frames and divides it into free nodes. The frames are never freed
    /// again.
    fn carve_nodes(&self, lists: &mut Lists) -> Option<()> {
        let share = (self.frames / NODES_SHARE).checked_ilog2().unwrap_or(0).min(NODES_ORDER_MAX);
        let order = (0..=share as u8).rev().find(|&order| lists.buddy.has(order))?;
        let start = lists.buddy.allocate(self.frames(), order)?.start;
        lists.stats.bytes_index += (PAGE_SIZE as u64) << order;
        for frame in start..start + (1 << order) {
            // SAFETY: the frame has just been allocated, and is never freed.
            unsafe { self.memory(frame).write_bytes(0, PAGE_SIZE) };
            for index in 0..NODES_PER_FRAME {
                self.add_free_node(lists, NodeId::new(frame, index));
            }
        }
        Some(())
    }
}

impl Nodes for Pool {
    #[inline]
    fn node(&self, id: NodeId) -> &Node {
        debug_assert!(id.index() < NODES_PER_FRAME);
        let frame = self.memory(id.frame()).cast::<Node>();
        // SAFETY: ids come from `carve_nodes`, which allocated the frame for ever and made it
        // empty nodes. Nodes are changed through atomics only. Ids are kept in entries, which are
        // only in such nodes and in trees' roots (tree.rs, T1).
        unsafe { frame.add(id.index() as usize).as_ref() }
    }

    fn allocate_node(&self) -> Option<NodeId> {
        let lists = &mut *self.lists.lock();
        if lists.nodes == NO_NODE {
            self.carve_nodes(lists)?;
        }
        let id = NodeId(lists.nodes);
        lists.nodes = self.node(id).next_free.load(Ordering::Relaxed);
        Some(id)
    }

    fn free_node(&self, id: NodeId) {
        let lists = &mut *self.lists.lock();
        self.add_free_node(lists, id);
    }
}

const _: () = assert!(BYTES_MIN >> PAGE_SHIFT > 1 << 4 && ORDER_MAX < 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_allocates_no_more_than_its_limit_and_counts_the_bytes() {
        let pool = Pool::new(BYTES_MIN).expect("memory");
        let mut held = Vec::new();
        for order in [4, 2, 0] {
            while let Some(frame) = pool.allocate(order) {
                held.push((frame, order));
            }
        }
        let stats = pool.stats();
        assert_eq!(stats.bytes_resident, (pool.frames as u64) << PAGE_SHIFT);
        assert!(stats.bytes_resident + (pool.frames * size_of::<Frame>()) as u64 <= BYTES_MIN);
        assert_eq!(pool.allocate_node(), None);
        pool.free_all(&held);
        let stats = pool.stats();
        assert_eq!((stats.bytes_resident, stats.folios), (0, [0; 10]));
        assert!(stats.bytes_resident_max > 0);
        assert!(Pool::new(BYTES_MIN - 1).is_err());
    }

    #[test]
    fn freed_nodes_are_used_again_and_counted() {
        let pool = Pool::new(BYTES_MIN).expect("memory");
        let ids: Vec<NodeId> = (0..40).map(|_| pool.allocate_node().expect("memory")).collect();
        let bytes_index = pool.stats().bytes_index;
        assert!(bytes_index <= 4 << PAGE_SHIFT);
        for id in ids {
            pool.free_node(id);
        }
        for _ in 0..40 {
            assert!(pool.node(pool.allocate_node().expect("memory")).is_empty());
        }
        assert_eq!(pool.stats().bytes_index, bytes_index);
    }
}
