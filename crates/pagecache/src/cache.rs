//! A cache as a whole: its pool, its mappings, and finding memory for a folio.

use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::{BlockSize, Error, Result};
use parking_lot::{Mutex, RwLock};

use crate::frame::{Frame, Put};
use crate::mapping::Mapping;
use crate::mmap::Faults;
use crate::options::{CacheOptions, CacheStats, DirtyStats, ORDER_MAX};
use crate::pool::Pool;
use crate::sync::Bucket;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// How many conditions the waiters for locked folios share.
const BUCKETS: usize = 64;
/// How often memory that others took first is made again.
const ATTEMPTS_MAX: u32 = 16;

/// A cache of folios under one byte limit, shared by any number of mappings.
pub struct PageCache {
    pub(crate) pool: Pool,
    /// The number of pages in [`PoolBlock`](crate::PoolBlock)s.
    pub(crate) block_pages: AtomicU64,
    /// Mappings that have or had folios, by id, so that reclaim finds its way back to them.
    pub(crate) mappings: RwLock<HashMap<u64, Weak<Mapping>>>,
    /// The frame at which reclaim goes on.
    pub(crate) hand: AtomicU32,
    /// Bytes that are dirty, and that are under writeback.
    pub(crate) dirty: AtomicU64,
    pub(crate) writeback: AtomicU64,
    /// The frame at which taking folios out of their files' memory goes on.
    pub(crate) mapped_hand: AtomicU32,
    /// While there are windows.
    faults: Mutex<Weak<Faults>>,
    folio_order_max: u8,
    next_mapping: AtomicU64,
    buckets: [Bucket; BUCKETS],
}

impl PageCache {
    /// An empty cache. Its memory is reserved but used only as folios need it.
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
            mapped_hand: AtomicU32::new(0),
            faults: Mutex::default(),
            folio_order_max: options.folio_order_max,
            next_mapping: AtomicU64::new(1),
            buckets: std::array::from_fn(|_| Bucket::default()),
        }))
    }

    /// Who has the faults of this cache's windows served; the caller keeps it for its window.
    pub(crate) fn faults(&self) -> Result<Arc<Faults>> {
        let mut faults = self.faults.lock();
        if let Some(faults) = faults.upgrade() {
            return Ok(faults);
        }
        let started = Faults::start()?;
        *faults = Arc::downgrade(&started);
        Ok(started)
    }

    /// A mapping without folios, for one file whose blocks have `block_size` bytes. Its folios are
    /// at least as large as a block.
    pub fn new_mapping(self: &Arc<Self>, block_size: BlockSize) -> Arc<Mapping> {
        let id = self.next_mapping.fetch_add(1, Ordering::Relaxed);
        Mapping::new(Arc::clone(self), id, block_size)
    }

    /// The greatest order of the folios of mappings whose blocks are not larger.
    pub fn folio_order_max(&self) -> u8 {
        self.folio_order_max
    }

    /// The number of pages there is memory for.
    pub fn pages_max(&self) -> u64 {
        self.pool.frames().len() as u64
    }

    /// The counters.
    pub fn stats(&self) -> CacheStats {
        CacheStats { dirty: self.dirty_stats(), ..self.pool.stats() }
    }

    /// What the device does not have yet. Takes no lock, so that writers may ask each time.
    pub fn dirty_stats(&self) -> DirtyStats {
        DirtyStats {
            bytes_dirty: self.dirty.load(Ordering::Relaxed),
            bytes_writeback: self.writeback.load(Ordering::Relaxed),
        }
    }

    /// The condition that waiters for `frame`'s folio to be unlocked share with others.
    pub(crate) fn bucket(&self, frame: u32) -> &Bucket {
        &self.buckets[frame as usize % BUCKETS]
    }

    /// The first byte of `frame`'s memory.
    pub(crate) fn memory(&self, frame: u32) -> NonNull<u8> {
        self.pool.memory(frame)
    }

    /// Takes back memory that the caller has [allocated](Self::allocate).
    pub(crate) fn give(&self, frame: u32, order: u8) {
        self.pool.give(frame, order);
    }

    /// Ends what the caller, who gave up a reference to the folio of `frame`, has to end.
    #[cold]
    pub(crate) fn end(&self, frame: u32, put: Put) {
        match put {
            Put::Held => {}
            Put::Last => self.pool.give(frame, self.pool.frame(frame).place().order),
            Put::Behind => self.drop_behind(frame),
        }
    }

    /// Takes a folio that is done with out of the cache, unless somebody came to it again.
    fn drop_behind(&self, frame: u32) {
        // A hint, as all that is known of a folio without a reference.
        let owner = self.pool.frame(frame).owner();
        // A mapping that is being dropped frees its folios itself.
        let mapping = self.mappings.read().get(&owner).and_then(Weak::upgrade);
        if let Some(place) = mapping.and_then(|mapping| mapping.claim(frame, Frame::claim_behind)) {
            self.pool.give(frame, place.order);
            self.pool.count_dropped((PAGE_SIZE as u64) << place.order);
        }
    }

    /// Finds memory for a folio of `order`, or as near to it as there is, but not below `order_min`.
    /// Gives the first frame and the order. Does not wait for anybody: when everything is in use
    /// there is none.
    pub(crate) fn allocate(&self, order: u8, order_min: u8) -> Option<(u32, u8)> {
        debug_assert!(order_min <= order && order <= ORDER_MAX);
        if let Some(frame) = self.pool.take(order) {
            return Some((frame, order));
        }
        if self.make_room(order, false) {
            if let Some(frame) = self.pool.take(order) {
                return Some((frame, order));
            }
        }
        for order in (order_min..order).rev() {
            if let Some(frame) = self.pool.take(order) {
                return Some((frame, order));
            }
        }
        // Others may take what is freed here.
        for _ in 0..ATTEMPTS_MAX {
            if !self.make_room(order_min, true) {
                break;
            }
            if let Some(frame) = self.pool.take(order_min) {
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
