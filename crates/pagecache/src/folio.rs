//! References to folios, and access to their uptodate bytes.
//! Not here: filling folios (`fill.rs`).

use std::fmt;
use std::sync::Arc;

use crate::cache::PageCache;
use crate::frame::{Frame, Put};
use crate::mapping::Mapping;
use crate::state::FolioState;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// A reference to a folio. While it exists, the folio keeps its memory and its pages of the file,
/// and is not reclaimed.
pub struct FolioHandle<C: AsRef<PageCache>> {
    cache: C,
    frame: u32,
}

/// A reference that owns its cache, and can be sent anywhere.
pub type Folio = FolioHandle<Arc<PageCache>>;

/// A reference that borrows its mapping: cheaper to take than a [`Folio`].
pub type FolioRef<'a> = FolioHandle<&'a Arc<PageCache>>;

impl<C: AsRef<PageCache>> FolioHandle<C> {
    /// Returns the owner of a reference to the folio of `frame`, which the caller has taken.
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

    /// Returns the index of the first page in the file.
    #[inline]
    pub fn index(&self) -> u64 {
        self.frame().span().index
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> u64 {
        self.frame().span().pages()
    }

    /// Returns the byte of the file at which the folio begins.
    #[inline]
    pub fn position(&self) -> u64 {
        self.index() << PAGE_SHIFT
    }

    /// Returns the number of bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no folio is empty")]
    pub fn len(&self) -> usize {
        PAGE_SIZE << self.frame().span().order
    }

    /// Returns the number of uptodate bytes from `start` within the folio on: at most `length_max`,
    /// to the end of the folio or the first block that is not uptodate.
    #[inline]
    pub fn uptodate_len(&self, start: usize, length_max: usize) -> usize {
        let frame = self.frame();
        let length = (PAGE_SIZE << frame.span().order).saturating_sub(start).min(length_max);
        if frame.is_uptodate() { length } else { uptodate(frame, start, length) }
    }

    /// Copies the [uptodate bytes](Self::uptodate_len) from `start` within the folio on, as far as
    /// `into` has room. Returns their number. For a file that is written to, the caller holds the
    /// inode's lock; other readers [borrow](Mapping::lend) the bytes. Programs may concurrently
    /// store to the folio through windows: of such a byte, the copy has the old or the new value.
    #[inline]
    pub fn copy_to(&self, start: usize, into: &mut [u8]) -> usize {
        let length = self.uptodate_len(start, into.len());
        if length > 0 {
            let memory = self.cache.as_ref().pool.memory(self.frame);
            // SAFETY: the range is within the folio, which keeps its memory while this reference
            // exists (R1). Its blocks are uptodate, and the library does not write to them now
            // (R5). Programs may (W3), so there is no reference to the bytes, only a copy by
            // address. `into` is the caller's memory, not that of a folio.
            unsafe { memory.add(start).as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), length) };
        }
        length
    }

    /// Returns the [uptodate bytes](Self::uptodate_len) from `start` within the folio on.
    ///
    /// # Safety
    /// While the result is used, nothing is stored to these bytes, by the library or through a
    /// window: the folio is lent, or its mapping has metadata, whose uptodate blocks are never
    /// written to, and no windows (R5).
    #[inline]
    pub unsafe fn bytes(&self, start: usize, length_max: usize) -> &[u8] {
        let length = self.uptodate_len(start, length_max);
        if length == 0 {
            return &[];
        }
        let memory = self.cache.as_ref().pool.memory(self.frame);
        // SAFETY: the range is within the folio, which keeps its memory while this reference exists
        // (R1), and is initialised, since it is uptodate. The caller promises that it does not
        // change.
        unsafe { std::slice::from_raw_parts(memory.add(start).as_ptr(), length) }
    }

    /// Records a visit by a reader. Reclaim keeps folios that are visited again.
    #[inline]
    pub fn visit(&self) {
        self.frame().visit();
    }

    /// Keeps a dropbehind folio in the cache, since another access uses it.
    #[inline]
    pub fn keep(&self) {
        self.frame().keep();
    }

    /// Makes a dropbehind folio that no other access has [kept](Self::keep) leave the cache with
    /// its last reference. Folios that are dirty, under writeback, locked or lent have references.
    pub fn set_done(&self) {
        self.frame().set_done();
    }

    /// Returns whether the folio is dropbehind: only uncached reads and writes have used it.
    pub fn is_dropbehind(&self) -> bool {
        self.frame().is_dropbehind()
    }

    /// Clears the mark that starts the next readahead window. Returns true to one reader only.
    #[inline]
    pub fn take_readahead(&self) -> bool {
        self.frame().take_readahead()
    }

    /// Returns whether mark `number` (0 to 7) is set. The mapping's user defines the meaning of
    /// marks; they are dropped with the folio.
    pub fn has_mark(&self, number: u32) -> bool {
        self.frame().has_mark(number)
    }

    /// Sets mark `number`.
    pub fn set_mark(&self, number: u32) {
        self.frame().set_mark(number);
    }

    /// Returns whether blocks are under writeback, which begins under the folio's lock.
    pub fn is_under_writeback(&self) -> bool {
        self.frame().is_under_writeback()
    }

    /// Waits until no blocks are under writeback.
    pub fn wait_writeback(&self) {
        self.frame().wait_writeback(self.cache().bucket(self.frame));
    }

    /// Waits until no blocks are under writeback, unless the request that this thread serves is
    /// cancelled ([`base::cancellation`]).
    pub fn wait_writeback_cancellable(&self) -> base::Result<()> {
        self.frame().wait_writeback_cancellable(self.cache().bucket(self.frame))
    }

    /// Waits until no thread fills the folio.
    pub fn wait_unlocked(&self) {
        self.frame().wait_unlocked(self.cache().bucket(self.frame));
    }
}

/// Returns how many of `length` bytes from `start` on are uptodate in a folio that is uptodate only
/// in part.
#[cold]
fn uptodate(frame: &Frame, start: usize, length: usize) -> usize {
    FolioState::of(frame).map_or(0, |state| state.run(start, length, true))
}

impl FolioRef<'_> {
    /// Returns this reference as one that owns its cache.
    pub fn into_owned(self) -> Folio {
        let folio = Folio::new(Arc::clone(self.cache), self.frame);
        // `folio` takes over its reference.
        std::mem::forget(self);
        folio
    }

    /// Returns another reference to the folio, which owns its cache.
    pub(crate) fn to_owned(&self) -> Folio {
        self.frame().get_again();
        Folio::new(Arc::clone(self.cache), self.frame)
    }
}

impl Folio {
    /// Returns another reference to the folio, which borrows `cache`. This must be the folio's
    /// cache.
    pub(crate) fn borrowed<'a>(&self, cache: &'a Arc<PageCache>) -> FolioRef<'a> {
        debug_assert!(Arc::ptr_eq(cache, &self.cache));
        self.frame().get_again();
        FolioRef::new(cache, self.frame)
    }
}

impl Mapping {
    /// Lends a folio of this mapping: its bytes do not change while it is lent, even after the
    /// inode's lock is released. The caller holds the inode's lock.
    pub fn lend(&self, folio: FolioRef<'_>) -> LentFolio {
        if self.has_windows() {
            // A fault makes a folio storable under the folio's lock, and only if it is not lent.
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

/// A folio whose bytes do not change while this exists (`frame.rs`, R5).
#[derive(Debug)]
pub struct LentFolio(Folio);

impl LentFolio {
    /// Returns the [uptodate bytes](FolioHandle::uptodate_len) from `start` within the folio on.
    pub fn bytes(&self, start: usize, length_max: usize) -> &[u8] {
        // SAFETY: the folio is lent, so writers do not change it, and it was protected from stores
        // before (W3).
        unsafe { self.0.bytes(start, length_max) }
    }
}

impl Clone for LentFolio {
    fn clone(&self) -> Self {
        self.0.clone().lend()
    }
}

impl Drop for LentFolio {
    fn drop(&mut self) {
        self.0.frame().end_lending();
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
            self.cache.as_ref().finish_put(self.frame, put);
        }
    }
}

impl<C: AsRef<PageCache>> fmt::Debug for FolioHandle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = self.frame().span();
        write!(f, "Folio(page {}, order {})", span.index, span.order)
    }
}
