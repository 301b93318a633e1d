//! The page cache: its pool, its mappings, and the allocation of folios.

use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::{BlockSize, Error, Result};
use parking_lot::{Mutex, RwLock};

use crate::frame::{Frame, Put};
use crate::mapping::Mapping;
use crate::mmap::faults::Faults;
use crate::options::{CacheOptions, CacheStats, DirtyStats, ORDER_MAX};
use crate::pool::Pool;
use crate::{PAGE_SHIFT, PAGE_SIZE};
use base::sync::WaitQueue;

/// The number of wait queues that all folios share.
const BUCKETS: usize = 64;
/// The number of times an allocation evicts folios again because other threads allocated the freed
/// memory first.
const ATTEMPTS_MAX: u32 = 16;

/// A cache of folios under one byte limit, shared by any number of mappings.
pub struct PageCache {
    pub(crate) pool: Pool,
    /// The number of pages in [`PoolBlock`](crate::PoolBlock)s.
    pub(crate) block_pages: AtomicU64,
    /// Mappings that have or had folios, by id. Reclaim finds the mapping of a folio here.
    pub(crate) mappings: RwLock<HashMap<u64, Weak<Mapping>>>,
    /// The clock hand of reclaim: the number of the next batch of frames.
    pub(crate) hand: AtomicU32,
    /// Dirty bytes.
    pub(crate) dirty: AtomicU64,
    /// Bytes under writeback.
    pub(crate) writeback: AtomicU64,
    /// Bytes in folios that are dirty or under writeback.
    pub(crate) held: AtomicU64,
    /// The frame at which the search for folios in their files' memory continues.
    pub(crate) mapped_hand: AtomicU32,
    /// The fault server. It exists while the cache has map windows.
    faults: Mutex<Weak<Faults>>,
    folio_order_max: u8,
    next_mapping: AtomicU64,
    buckets: [WaitQueue; BUCKETS],
}

impl PageCache {
    /// Creates an empty cache. Reserves its address space; memory is used only as folios need it.
    pub fn new(options: CacheOptions) -> Result<Arc<Self>> {
        if options.folio_order_max > ORDER_MAX {
            return Err(Error::InvalidArgument("the folio order is greater than 9"));
        }
        Ok(Arc::new(Self {
            pool: Pool::new(options.bytes_max)?,
            block_pages: AtomicU64::new(0),
            mappings: RwLock::default(),
            hand: AtomicU32::new(0),
            dirty: AtomicU64::new(0),
            writeback: AtomicU64::new(0),
            held: AtomicU64::new(0),
            mapped_hand: AtomicU32::new(0),
            faults: Mutex::default(),
            folio_order_max: options.folio_order_max,
            next_mapping: AtomicU64::new(1),
            buckets: std::array::from_fn(|_| WaitQueue::default()),
        }))
    }

    /// Returns the server of the faults in this cache's map windows, and starts it if there is
    /// none. It runs until the last window drops its reference.
    pub(crate) fn faults(&self) -> Result<Arc<Faults>> {
        let mut faults = self.faults.lock();
        if let Some(faults) = faults.upgrade() {
            return Ok(faults);
        }
        let started = Faults::start()?;
        *faults = Arc::downgrade(&started);
        Ok(started)
    }

    /// Creates an empty mapping for one file whose blocks have `block_size` bytes. Its folios are
    /// at least as large as a block.
    pub fn new_mapping(self: &Arc<Self>, block_size: BlockSize) -> Arc<Mapping> {
        let id = self.next_mapping.fetch_add(1, Ordering::Relaxed);
        Mapping::new(Arc::clone(self), id, block_size)
    }

    /// Returns the greatest order of folios. Only folios of mappings with larger blocks are larger.
    pub fn folio_order_max(&self) -> u8 {
        self.folio_order_max
    }

    /// Returns the number of pages that fit into the cache.
    pub fn pages_max(&self) -> u64 {
        self.pool.frames().len() as u64
    }

    /// Returns the counters.
    pub fn stats(&self) -> CacheStats {
        CacheStats { dirty: self.dirty_stats(), ..self.pool.stats() }
    }

    /// Returns the counts of dirty bytes, bytes under writeback, and their folios. Takes no lock,
    /// so that each write can call it.
    pub fn dirty_stats(&self) -> DirtyStats {
        DirtyStats {
            bytes_dirty: self.dirty.load(Ordering::Relaxed),
            bytes_writeback: self.writeback.load(Ordering::Relaxed),
            bytes_held: self.held.load(Ordering::Relaxed),
        }
    }

    /// Returns the wait queue of `frame`'s folio, which it shares with other folios.
    pub(crate) fn bucket(&self, frame: u32) -> &WaitQueue {
        &self.buckets[frame as usize % BUCKETS]
    }

    /// Returns the address of `frame`'s memory.
    pub(crate) fn memory(&self, frame: u32) -> NonNull<u8> {
        self.pool.memory(frame)
    }

    /// Frees memory that the caller has [allocated](Self::allocate).
    pub(crate) fn free(&self, frame: u32, order: u8) {
        self.pool.free(frame, order);
    }

    /// Does what `put` requires after the caller has dropped a reference to the folio of `frame`.
    #[cold]
    pub(crate) fn finish_put(&self, frame: u32, put: Put) {
        match put {
            Put::Held => {}
            Put::Last => self.pool.free(frame, self.pool.frame(frame).span().order),
            Put::Behind => self.drop_behind(frame),
        }
    }

    /// Evicts a DONE folio, unless another thread has taken a reference to it again.
    fn drop_behind(&self, frame: u32) {
        // A hint, since this thread holds no reference any more.
        let owner = self.pool.frame(frame).owner();
        // A mapping that is being dropped frees its folios itself.
        let mapping = self.mappings.read().get(&owner).and_then(Weak::upgrade);
        if let Some(span) = mapping.and_then(|mapping| mapping.claim(frame, Frame::claim_behind)) {
            self.pool.free(frame, span.order);
            self.pool.count_dropped((PAGE_SIZE as u64) << span.order);
        }
    }

    /// Allocates memory for a folio of `order`, or of the next smaller order that is available,
    /// down to `order_min`. Returns the first frame and the order. Evicts folios, but does not
    /// wait: returns `None` if all memory is in use.
    pub(crate) fn allocate(&self, order: u8, order_min: u8) -> Option<(u32, u8)> {
        debug_assert!(order_min <= order && order <= ORDER_MAX);
        if let Some(frame) = self.pool.allocate(order) {
            return Some((frame, order));
        }
        if self.make_room(order, false) {
            if let Some(frame) = self.pool.allocate(order) {
                return Some((frame, order));
            }
        }
        for order in (order_min..order).rev() {
            if let Some(frame) = self.pool.allocate(order) {
                return Some((frame, order));
            }
        }
        // Other threads may allocate the memory that is freed here.
        for _ in 0..ATTEMPTS_MAX {
            if !self.make_room(order_min, true) {
                break;
            }
            if let Some(frame) = self.pool.allocate(order_min) {
                return Some((frame, order_min));
            }
        }
        None
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        let (resident, max) = (stats.bytes_resident >> PAGE_SHIFT, stats.bytes_max >> PAGE_SHIFT);
        write!(f, "PageCache({resident} of {max} pages)")
    }
}
