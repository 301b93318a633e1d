//! One file's cached folios.

use std::fmt;
use std::sync::{Arc, Weak};

use base::BlockSize;
use base::locks::{Rank, RankedMutex};

use crate::PAGE_SHIFT;
use crate::cache::PageCache;
use crate::dirty::DirtyFolios;
use crate::fill::{self, LockedFolio};
use crate::folio::{Folio, FolioRef};
use crate::frame::{Frame, Place};
use crate::mmap::Mapped;
use crate::tree::{Refusal, Tree};

/// How often an insertion that others overtake is tried again.
const ATTEMPTS_MAX: u32 = 16;

/// The cached folios of one file. Dropping it frees them; folios that are still referred to then are
/// freed with the last reference.
pub struct Mapping {
    pub(crate) tree: Tree,
    cache: Arc<PageCache>,
    id: u64,
    block_size: BlockSize,
    this: Weak<Mapping>,
    /// Held to change the tree.
    pub(crate) changes: RankedMutex<Changes>,
    pub(crate) dirty: RankedMutex<DirtyFolios>,
    pub(crate) mapped: Mapped,
}

/// What belongs to the lock of a mapping, beside its tree.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Whether the cache knows the mapping. It learns of it with the first folio: most files that
    /// are looked at are never read.
    registered: bool,
}

/// What became of an insertion.
#[derive(Debug)]
pub enum Insertion {
    /// The folio is in the mapping, locked, without any data.
    New(LockedFolio),
    /// There is a folio already; it ends before this page.
    Exists {
        /// The index of the page after its last one.
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
            this: Weak::clone(this),
            changes: RankedMutex::new(Rank::Mapping, Changes::default()),
            dirty: RankedMutex::new(Rank::Mapping, DirtyFolios::default()),
            mapped: Mapped::default(),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Another reference to this.
    pub(crate) fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("it is not dropped while it is used")
    }

    /// The cache that the folios are from.
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// The size of the file's blocks.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The order of the smallest folios: those that hold one block.
    pub fn order_min(&self) -> u8 {
        self.block_size.shift().saturating_sub(PAGE_SHIFT) as u8
    }

    /// The order of the largest folios.
    pub fn order_max(&self) -> u8 {
        self.cache.folio_order_max().max(self.order_min())
    }

    /// The folio with page `index`, if there is one. Takes no lock. May miss a folio that is
    /// inserted or removed at the same time; `insert` is certain.
    #[inline]
    pub fn get(&self, index: u64) -> Option<FolioRef<'_>> {
        let number = self.tree.find(&self.cache.pool, index)?;
        match self.cache.pool.frame(number).try_get(self.id, index) {
            Ok(()) => Some(FolioRef::new(&self.cache, number)),
            Err(put) => {
                self.cache.end(number, put);
                None
            }
        }
    }

    /// The folio with page `index`, locked, if there is one. Certain, unless it is inserted or removed just
    /// now: a copy may take a folio's place at any time.
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

    /// Makes a folio that begins with page `index`, of the greatest order up to `order` that its
    /// alignment, its neighbours and the memory allow. `index` is aligned to the smallest order.
    pub fn insert(&self, index: u64, order: u8) -> Insertion {
        let order_min = self.order_min();
        assert!(index % (1 << order_min) == 0, "a folio smaller than a block");
        let aligned = index.trailing_zeros().min(u32::from(self.order_max())) as u8;
        let mut order = order.clamp(order_min, self.order_max()).min(aligned);
        for _ in 0..ATTEMPTS_MAX {
            if let Some(folio) = self.get(index) {
                return Insertion::Exists { end: folio.index() + folio.pages() };
            }
            // Without the lock, but right unless others insert just here and now.
            let end = Place { index, order }.end();
            if let Some((present, _)) = self.tree.first_present(&self.cache.pool, index, end) {
                let room = (present - index).checked_ilog2().unwrap_or(0) as u8;
                order = room.clamp(order_min, order);
            }
            let Some((number, order)) = self.cache.allocate(order, order_min) else {
                return Insertion::NoMemory;
            };
            let place = Place { index, order };
            match self.insert_at(place, number) {
                Ok(()) => {
                    let folio = Folio::new(Arc::clone(&self.cache), number);
                    self.place_new(number, place);
                    return Insertion::New(LockedFolio::new(folio, self.block_size));
                }
                Err(refused) => {
                    self.cache.pool.give(number, order);
                    match refused {
                        Refused::Exists(end) => return Insertion::Exists { end },
                        Refused::Overlaps => {}
                        Refused::NoNodes if self.cache.make_room(0, true) => {}
                        Refused::NoNodes => return Insertion::NoMemory,
                    }
                }
            }
        }
        Insertion::NoMemory
    }

    /// Puts a folio into the tree and makes it live.
    fn insert_at(&self, place: Place, number: u32) -> Result<(), Refused> {
        let mut changes = self.changes.lock();
        match self.tree.insert(&self.cache.pool, place, number) {
            // Until then, readers who find the frame in the tree see that it is not live.
            Ok(()) => self.cache.pool.frame(number).make_live(self.id, place),
            Err(Refusal::NoNodes) => return Err(Refused::NoNodes),
            Err(Refusal::Exists(existing)) => {
                // Certain, since what is in the tree is live while its lock is held (R2, R3).
                let existing = self.cache.pool.frame(existing).place();
                return Err(if existing.index <= place.index {
                    Refused::Exists(existing.end())
                } else {
                    Refused::Overlaps
                });
            }
        }
        if !changes.registered {
            changes.registered = true;
            self.cache.mappings.write().insert(self.id, Weak::clone(&self.this));
        }
        Ok(())
    }

    /// Locks a folio of this mapping, waiting for others who have it locked.
    pub fn lock(&self, folio: &FolioRef<'_>) -> LockedFolio {
        fill::lock(folio, self.block_size)
    }

    /// Locks a folio of this mapping if nobody else has.
    pub fn try_lock(&self, folio: &FolioRef<'_>) -> Option<LockedFolio> {
        fill::try_lock(folio, self.block_size)
    }

    /// Another reference, borrowed from this mapping, to a folio of it.
    pub fn borrow(&self, folio: &Folio) -> FolioRef<'_> {
        folio.borrowed(&self.cache)
    }

    /// Takes the folios that hold pages of `from..end` out of the mapping, whole. Who refers to one
    /// keeps it as it is; nobody else finds it any more. For metadata, whose folios are never dirty.
    pub fn forget(&self, from: u64, end: u64) {
        let _changes = self.changes.lock();
        while let Some((_, number)) = self.tree.first_present(&self.cache.pool, from, end) {
            // Certain, since what is in the tree is live while its lock is held (R2, R3).
            let frame = self.cache.pool.frame(number);
            self.tree.remove(&self.cache.pool, frame.place());
            self.cache.end(number, frame.uncache());
        }
    }

    /// Takes a folio that nobody uses out of the mapping, if `number` heads one and `claim`, which is
    /// called under the lock, gets it. The caller returns it to the pool.
    pub(crate) fn claim(&self, number: u32, claim: fn(&Frame) -> bool) -> Option<Place> {
        let _changes = self.changes.lock();
        let frame = self.cache.pool.frame(number);
        // A hint until the tree, which is locked, confirms it (R2).
        let place = frame.place();
        if self.tree.find(&self.cache.pool, place.index) != Some(number) || !claim(frame) {
            return None;
        }
        let place = frame.place();
        self.leave_file_claimed(frame);
        self.tree.remove(&self.cache.pool, place);
        Some(place)
    }
}

/// Why a folio was not inserted.
enum Refused {
    /// A folio that has the first page ends before this one.
    Exists(u64),
    /// A folio has some page after the first.
    Overlaps,
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
            self.cache.end(number, put);
        });
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({}, {:?})", self.id, self.block_size)
    }
}
