//! References to folios: what is in them, as far as it is there.
//! Not here: filling them (`fill.rs`).

use std::fmt;
use std::sync::Arc;

use crate::cache::PageCache;
use crate::frame::{Frame, Put};
use crate::mapping::Mapping;
use crate::state::FolioState;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// A reference to a folio. While it is held the folio keeps its memory and its place in its file,
/// and reclaim leaves it alone.
pub struct FolioHandle<C: AsRef<PageCache>> {
    cache: C,
    frame: u32,
}

/// A reference that can go anywhere.
pub type Folio = FolioHandle<Arc<PageCache>>;

/// A reference for the time that its mapping is borrowed: cheaper to take than a [`Folio`].
pub type FolioRef<'a> = FolioHandle<&'a Arc<PageCache>>;

impl<C: AsRef<PageCache>> FolioHandle<C> {
    /// The caller gives a reference to the folio of `frame` that it has taken.
    #[inline]
    pub(crate) fn new(cache: C, frame: u32) -> Self {
        Self { cache, frame }
    }

    #[inline]
    pub(crate) fn frame(&self) -> &Frame {
        self.cache.as_ref().pool.frame(self.frame)
    }

    pub(crate) fn frame_number(&self) -> u32 {
        self.frame
    }

    pub(crate) fn cache(&self) -> &PageCache {
        self.cache.as_ref()
    }

    /// The index of the first page in the file.
    #[inline]
    pub fn index(&self) -> u64 {
        self.frame().place().index
    }

    /// The number of pages.
    pub fn pages(&self) -> u64 {
        self.frame().place().pages()
    }

    /// The byte of the file at which the folio begins.
    #[inline]
    pub fn position(&self) -> u64 {
        self.index() << PAGE_SHIFT
    }

    /// The number of bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no folio is empty")]
    pub fn len(&self) -> usize {
        PAGE_SIZE << self.frame().place().order
    }

    /// The bytes from `start` within the folio on: at most `length_max`, to the end of the folio or
    /// the first block that is not uptodate. In a file that is written to, they are for those who
    /// hold the inode's lock; others have them [lent](Folio::lend).
    #[inline]
    pub fn bytes(&self, start: usize, length_max: usize) -> &[u8] {
        let frame = self.frame();
        let length = (PAGE_SIZE << frame.place().order).saturating_sub(start).min(length_max);
        let length = if frame.is_uptodate() { length } else { uptodate(frame, start, length) };
        if length == 0 {
            return &[];
        }
        let memory = self.cache.as_ref().pool.memory(self.frame);
        // SAFETY: the range lies within the folio, whose memory stays what it is while this
        // reference is held (R1); its blocks are uptodate, and nobody writes to such while somebody
        // has bytes of them (R5).
        unsafe { std::slice::from_raw_parts(memory.add(start).as_ptr(), length) }
    }

    /// Notes that somebody came to read this folio; reclaim keeps those that are come back to.
    #[inline]
    pub fn visit(&self) {
        self.frame().visit();
    }

    /// Keeps a folio in the cache that uncached reads and writes have made: somebody else uses it.
    #[inline]
    pub fn keep(&self) {
        self.frame().keep();
    }

    /// Has the folio leave the cache with its last reference if uncached reads and writes have made
    /// it and nobody else has [kept](Self::keep) it. What is dirty, on its way to the device, locked
    /// or lent is referred to.
    pub fn done_with(&self) {
        self.frame().set_done();
    }

    /// Whether uncached reads and writes have made the folio, and nobody else has kept it.
    pub fn is_dropbehind(&self) -> bool {
        self.frame().is_dropbehind()
    }

    /// Takes the mark that asks for the next readahead window; one reader gets it.
    #[inline]
    pub fn take_readahead(&self) -> bool {
        self.frame().take_readahead()
    }

    /// Whether mark `number` (0 to 7) is set. Marks mean what the mapping's user wants them to, and
    /// go with the folio.
    pub fn has_mark(&self, number: u32) -> bool {
        self.frame().has_mark(number)
    }

    /// Sets mark `number`.
    pub fn set_mark(&self, number: u32) {
        self.frame().set_mark(number);
    }

    /// Whether blocks are on their way to the device. It begins under the folio's lock.
    pub fn is_under_writeback(&self) -> bool {
        self.frame().is_under_writeback()
    }

    /// Waits while blocks are on their way to the device.
    pub fn wait_writeback(&self) {
        self.frame().wait_writeback(self.cache().bucket(self.frame));
    }

    /// Waits while blocks are on their way to the device, unless the request that this thread serves is
    /// cancelled ([`base::cancellation`]).
    pub fn wait_writeback_cancellable(&self) -> base::Result<()> {
        self.frame().wait_writeback_cancellable(self.cache().bucket(self.frame))
    }

    /// Waits while somebody fills the folio.
    pub fn wait_unlocked(&self) {
        self.frame().wait_unlocked(self.cache().bucket(self.frame));
    }
}

/// How many of `length` bytes from `start` on are uptodate in a folio that is not as a whole.
#[cold]
fn uptodate(frame: &Frame, start: usize, length: usize) -> usize {
    FolioState::of(frame).map_or(0, |state| state.run(start, length, true))
}

impl FolioRef<'_> {
    /// Makes this a reference that can go anywhere.
    pub fn into_owned(self) -> Folio {
        let folio = Folio::new(Arc::clone(self.cache), self.frame);
        // Its count is the other's now.
        std::mem::forget(self);
        folio
    }

    /// A reference to the same folio that can go anywhere.
    pub(crate) fn to_owned(&self) -> Folio {
        self.frame().get_again();
        Folio::new(Arc::clone(self.cache), self.frame)
    }
}

impl Folio {
    /// A reference to the same folio that borrows `cache`, which must be its own.
    pub(crate) fn borrowed<'a>(&self, cache: &'a Arc<PageCache>) -> FolioRef<'a> {
        debug_assert!(Arc::ptr_eq(cache, &self.cache));
        self.frame().get_again();
        FolioRef::new(cache, self.frame)
    }
}

impl Mapping {
    /// Lends a folio of this mapping: its bytes stay as they are even for who does not hold the inode's
    /// lock, which the caller does.
    pub fn lend(&self, folio: FolioRef<'_>) -> LentFolio {
        if self.has_windows() {
            // A fault makes it one that can be stored to under its lock, and not if it is lent.
            let locked = self.lock(&folio);
            self.protect(&locked);
            let lent = folio.into_owned().lend();
            drop(locked);
            return lent;
        }
        folio.into_owned().lend()
    }
}

impl Folio {
    fn lend(self) -> LentFolio {
        self.frame().lend();
        LentFolio(self)
    }
}

/// A folio whose bytes nobody changes while this is held (`frame.rs`, R5).
#[derive(Debug)]
pub struct LentFolio(Folio);

impl LentFolio {
    /// The bytes from `start` within the folio on, as in [`FolioHandle::bytes`].
    pub fn bytes(&self, start: usize, length_max: usize) -> &[u8] {
        self.0.bytes(start, length_max)
    }
}

impl Clone for LentFolio {
    fn clone(&self) -> Self {
        self.0.clone().lend()
    }
}

impl Drop for LentFolio {
    fn drop(&mut self) {
        self.0.frame().take_back();
    }
}

impl Clone for Folio {
    fn clone(&self) -> Self {
        self.frame().get_again();
        Self::new(Arc::clone(&self.cache), self.frame)
    }
}

impl<C: AsRef<PageCache>> Drop for FolioHandle<C> {
    #[inline]
    fn drop(&mut self) {
        let put = self.frame().put();
        if put != Put::Held {
            self.cache.as_ref().end(self.frame, put);
        }
    }
}

impl<C: AsRef<PageCache>> fmt::Debug for FolioHandle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.frame().place();
        write!(f, "Folio(page {}, order {})", place.index, place.order)
    }
}
