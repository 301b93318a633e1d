//! The mapping of one file: its cached folios.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use base::BlockSize;
use base::locks::{Rank, RankedMutex};

use crate::cache::PageCache;
use crate::dirty::DirtyFolios;
use crate::fill::{self, LockedFolio};
use crate::folio::{Folio, FolioRef};
use crate::frame::{Frame, Span};
use crate::mmap::mapped::Mapped;
use crate::tree::{InsertError, Tree};
use crate::{ORDER_MAX, PAGE_SHIFT};

/// The number of attempts of an insertion. An attempt fails if another thread inserts a folio
/// first.
const ATTEMPTS_MAX: u32 = 16;

/// The cached folios of one file. Dropping it frees them. A folio that has references is freed with
/// the last one.
pub struct Mapping {
    pub(crate) tree: Tree,
    cache: Arc<PageCache>,
    id: u64,
    block_size: BlockSize,
    order_min: AtomicU8,
    this: Weak<Mapping>,
    /// Held to change the tree.
    pub(crate) changes: RankedMutex<Changes>,
    pub(crate) dirty: RankedMutex<DirtyFolios>,
    pub(crate) mapped: Mapped,
}

/// State that is protected by a mapping's lock, in addition to the tree.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Whether the mapping is in the cache's list. The first folio adds it: most inodes that are
    /// looked up are never read.
    registered: bool,
}

/// The result of an insertion.
#[derive(Debug)]
pub enum Insertion {
    /// The folio was inserted. It is locked and contains no data.
    New(LockedFolio),
    /// There is already a folio with this page.
    Exists {
        /// The index of the page after that folio's last one.
        end: u64,
    },
    /// All memory is in use.
    NoMemory,
}

impl Mapping {
    pub(crate) fn new(cache: Arc<PageCache>, id: u64, block_size: BlockSize) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            tree: Tree::default(),
            cache,
            id,
            block_size,
            order_min: AtomicU8::new(block_size.shift().saturating_sub(PAGE_SHIFT) as u8),
            this: Weak::clone(this),
            changes: RankedMutex::new(Rank::Mapping, Changes::default()),
            dirty: RankedMutex::new(Rank::Mapping, DirtyFolios::default()),
            mapped: Mapped::default(),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns another reference to this mapping.
    pub(crate) fn to_arc(&self) -> Arc<Self> {
        self.this.upgrade().expect("it is not dropped while it is used")
    }

    /// Returns the cache that contains the folios.
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// Returns the size of the file's blocks.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Returns the order of the smallest folios. These contain one block, or one page if blocks are
    /// smaller, unless [`set_order_min`](Self::set_order_min) was called.
    pub fn order_min(&self) -> u8 {
        self.order_min.load(Ordering::Relaxed)
    }

    /// Sets the order of the smallest folios, at most [`ORDER_MAX`], if it was less. The mapping
    /// has no folios, and none is inserted during the call.
    pub fn set_order_min(&self, order: u8) {
        assert!(order <= ORDER_MAX, "the order of a folio");
        debug_assert!(!self.has_cached(0..u64::MAX), "folios that are too small");
        self.order_min.fetch_max(order, Ordering::Relaxed);
    }

    /// Returns the order of the largest folios.
    pub fn order_max(&self) -> u8 {
        self.cache.folio_order_max().max(self.order_min())
    }

    /// Returns the folio with page `index`, if there is one. Takes no lock. May miss a folio that
    /// is concurrently inserted or removed; `insert` does not.
    #[inline]
    pub fn get(&self, index: u64) -> Option<FolioRef<'_>> {
        let number = self.tree.find(&self.cache.pool, index)?;
        match self.cache.pool.frame(number).try_get(self.id, index) {
            Ok(()) => Some(FolioRef::new(&self.cache, number)),
            Err(put) => {
                self.cache.finish_put(number, put);
                None
            }
        }
    }

    /// Returns the folio with page `index`, locked, if there is one. Misses a folio only if it is
    /// concurrently inserted or removed: unlike `get`, finds it if a copy replaces it.
    pub fn get_locked(&self, index: u64) -> Option<LockedFolio> {
        loop {
            match self.get(index) {
                Some(folio) => {
                    let folio = self.lock(&folio);
                    if self.holds(&folio) {
                        return Some(folio);
                    }
                }
                None if self.has_cached(index..index + 1) => {}
                None => return None,
            }
        }
    }

    /// Inserts a folio that begins with page `index`. Its order is the greatest one up to `order`
    /// that the alignment of `index`, existing folios and the memory allow.
    ///
    /// # Panics
    /// If `index` is not aligned to the [smallest order](Self::order_min).
    pub fn insert(&self, index: u64, order: u8) -> Insertion {
        let order_min = self.order_min();
        assert!(index % (1 << order_min) == 0, "a folio smaller than a block");
        let aligned = index.trailing_zeros().min(u32::from(self.order_max())) as u8;
        let mut order = order.clamp(order_min, self.order_max()).min(aligned);
        for _ in 0..ATTEMPTS_MAX {
            if let Some(folio) = self.get(index) {
                return Insertion::Exists { end: folio.index() + folio.pages() };
            }
            // Without the lock: right unless another thread inserts a folio here concurrently.
            let end = Span { index, order }.end();
            if let Some((present, _)) = self.tree.first_present(&self.cache.pool, index, end) {
                let room = (present - index).checked_ilog2().unwrap_or(0) as u8;
                order = room.clamp(order_min, order);
            }
            let Some((number, order)) = self.cache.allocate(order, order_min) else {
                return Insertion::NoMemory;
            };
            let span = Span { index, order };
            match self.insert_at(span, number) {
                Ok(()) => {
                    let folio = Folio::new(Arc::clone(&self.cache), number);
                    self.move_new_to_file_memory(number, span);
                    return Insertion::New(LockedFolio::new(folio, self.block_size));
                }
                Err(refusal) => {
                    self.cache.pool.free(number, order);
                    match refusal {
                        Refusal::Exists(end) => return Insertion::Exists { end },
                        Refusal::Overlaps => {}
                        Refusal::NoNodes if self.cache.make_room(0, true) => {}
                        Refusal::NoNodes => return Insertion::NoMemory,
                    }
                }
            }
        }
        Insertion::NoMemory
    }

    /// Inserts a folio into the tree and makes it live.
    fn insert_at(&self, span: Span, number: u32) -> Result<(), Refusal> {
        let mut changes = self.changes.lock();
        match self.tree.insert(&self.cache.pool, span, number) {
            // Readers that find the frame in the tree before this see that it is not live.
            Ok(()) => self.cache.pool.frame(number).make_live(self.id, span),
            Err(InsertError::NoNodes) => return Err(Refusal::NoNodes),
            Err(InsertError::Exists(existing)) => {
                // Certain, since frames in the tree are live while its lock is held (R2, R3).
                let existing = self.cache.pool.frame(existing).span();
                return Err(if existing.index <= span.index {
                    Refusal::Exists(existing.end())
                } else {
                    Refusal::Overlaps
                });
            }
        }
        if !changes.registered {
            changes.registered = true;
            self.cache.mappings.write().insert(self.id, Weak::clone(&self.this));
        }
        Ok(())
    }

    /// Locks a folio of this mapping. Waits while another thread has it locked.
    pub fn lock(&self, folio: &FolioRef<'_>) -> LockedFolio {
        fill::lock(folio, self.block_size)
    }

    /// Locks a folio of this mapping if no other thread has it locked.
    pub fn try_lock(&self, folio: &FolioRef<'_>) -> Option<LockedFolio> {
        fill::try_lock(folio, self.block_size)
    }

    /// Returns another reference to a folio of this mapping, borrowed from the mapping.
    pub fn borrow(&self, folio: &Folio) -> FolioRef<'_> {
        folio.borrowed(&self.cache)
    }

    /// Removes all folios that contain pages of `from..end` from the mapping, as a whole. Holders
    /// of references keep them unchanged; lookups do not find them any more. For metadata, whose
    /// folios are never dirty.
    pub fn invalidate(&self, from: u64, end: u64) {
        let _changes = self.changes.lock();
        while let Some((_, number)) = self.tree.first_present(&self.cache.pool, from, end) {
            // Certain, since frames in the tree are live while its lock is held (R2, R3).
            let frame = self.cache.pool.frame(number);
            self.tree.remove(&self.cache.pool, frame.span());
            self.cache.finish_put(number, frame.uncache());
        }
    }

    /// Removes an unused folio from the mapping, if `number` heads one and `claim` claims it.
    /// `claim` is called under the lock. The caller returns the folio to the pool.
    pub(crate) fn claim(&self, number: u32, claim: fn(&Frame) -> bool) -> Option<Span> {
        let _changes = self.changes.lock();
        let frame = self.cache.pool.frame(number);
        // A hint until the tree, which is locked, confirms it (R2).
        let span = frame.span();
        if self.tree.find(&self.cache.pool, span.index) != Some(number) || !claim(frame) {
            return None;
        }
        let span = frame.span();
        self.leave_file_memory_claimed(frame);
        self.tree.remove(&self.cache.pool, span);
        Some(span)
    }
}

/// The reason why a folio was not inserted.
enum Refusal {
    /// There is a folio with the first page. It ends before this page.
    Exists(u64),
    /// There is a folio with a later page.
    Overlaps,
    /// There is no memory for tree nodes.
    NoNodes,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.drop_dirty();
        let changes = self.changes.lock();
        if changes.registered {
            self.cache.mappings.write().remove(&self.id);
        }
        self.tree.clear(&self.cache.pool, &mut |number| {
            let put = self.cache.pool.frame(number).uncache();
            self.cache.finish_put(number, put);
        });
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({}, {:?})", self.id, self.block_size)
    }
}
