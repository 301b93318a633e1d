//! Writes to locked folios of file data, and their replacement and removal.
//! Not here: the choice of what is written, and writeback (`dirty.rs`).

use std::ops::Range;
use std::ptr::NonNull;

use crate::PAGE_SIZE;
use crate::cache::PageCache;
use crate::fill::LockedFolio;
use crate::folio::{Folio, FolioHandle};
use crate::frame::Put;
use crate::mapping::Mapping;
use crate::state::FolioState;
use crate::streaming;

impl<C: AsRef<PageCache>> FolioHandle<C> {
    /// Returns how many of `length` bytes from `start` on are in adjacent blocks that are uptodate,
    /// or that are not if `uptodate` is false. A hint, unless the folio is locked.
    pub fn uptodate_run(&self, start: usize, length: usize, uptodate: bool) -> usize {
        let frame = self.frame();
        let run_of_all = |all: bool| if all == uptodate { length } else { 0 };
        if frame.is_uptodate() {
            return run_of_all(true);
        }
        let state = FolioState::of(frame);
        state.map_or_else(|| run_of_all(false), |state| state.run(start, length, uptodate))
    }

    /// Returns how many of `length` bytes from `start` on are in adjacent blocks that are dirty, or
    /// that are not if `dirty` is false. A hint, unless the folio is locked.
    pub fn dirty_run(&self, start: usize, length: usize, dirty: bool) -> usize {
        let frame = self.frame();
        let run_of_all = |all: bool| if all == dirty { length } else { 0 };
        if !frame.is_dirty() {
            return run_of_all(false);
        }
        let state = FolioState::of(frame);
        state.map_or_else(|| run_of_all(true), |state| state.dirty_run(start, length, dirty))
    }
}

impl LockedFolio {
    /// Waits until no block is under writeback. No writeback starts before the folio is unlocked.
    pub fn wait_writeback(&self) {
        self.folio().wait_writeback();
    }

    /// Returns whether bytes of the folio are lent. Borrowers do not hold the inode's lock.
    pub fn is_lent(&self) -> bool {
        self.folio().frame().is_lent()
    }

    /// Returns the address of the bytes in `range`, to be written to, whether or not they are
    /// uptodate. The folio is not under writeback, and not lent: no device reads it, and no reader
    /// has a reference to its bytes. Programs may store to it through windows (W3), so no reference
    /// to the bytes may be made.
    fn memory_of(&self, range: &Range<usize>) -> NonNull<u8> {
        self.check_writable();
        assert!(range.start <= range.end && range.end <= self.folio().len(), "not in the folio");
        self.folio().frame().set_blank(false);
        let memory = self.folio().cache().pool.memory(self.folio().frame_number());
        // SAFETY: the range is within the folio.
        unsafe { memory.add(range.start) }
    }

    /// Writes `data` from byte `start` on. If it is `streamed` and long, it is written around the
    /// processor's caches, which is faster for data that is not used again soon.
    ///
    /// # Safety
    /// During the call, no other thread of the library reads the folio's uptodate blocks: the
    /// caller holds the inode's lock alone (R5).
    pub unsafe fn copy_in(&mut self, start: usize, data: &[u8], streamed: bool) {
        let to = self.memory_of(&(start..start + data.len())).as_ptr();
        // SAFETY: the range is within the folio, to which this holds a reference. It is locked, and
        // no piece of it is being filled, so no other thread of the library writes to it; the
        // caller promises that none reads it. `data` is the caller's memory, not that of a folio.
        unsafe {
            if streamed {
                streaming::copy(to, data);
            } else {
                to.copy_from_nonoverlapping(data.as_ptr(), data.len());
            }
        }
    }

    /// Writes zeroes to the bytes in `range`.
    ///
    /// # Safety
    /// As for [`copy_in`](Self::copy_in).
    pub unsafe fn zero(&mut self, range: Range<usize>) {
        if range.is_empty() || self.folio().frame().is_blank() {
            return;
        }
        let whole = range == (0..self.folio().len());
        debug_assert!(!whole || !self.folio().frame().is_storable(), "stores would not be zeroes");
        // SAFETY: as for `copy_in`.
        unsafe { self.memory_of(&range).as_ptr().write_bytes(0, range.len()) };
        self.folio().frame().set_blank(whole);
    }

    /// Marks the blocks in `range`, whole blocks, uptodate.
    pub fn set_uptodate(&mut self, range: Range<usize>) {
        self.check_writable();
        let (frame, length) = (self.folio().frame(), self.folio().len());
        if frame.is_uptodate() {
            return;
        }
        if range == (0..length) {
            return frame.set_uptodate();
        }
        let state = FolioState::attach(frame, length, self.block_size().shift());
        state.set_uptodate(range);
        if state.is_complete() {
            frame.set_uptodate();
        }
    }

    fn check_writable(&self) {
        assert!(self.is_unfilled(), "pieces of the folio are being filled");
        let frame = self.folio().frame();
        assert!(!frame.is_under_writeback() && !frame.is_lent(), "under writeback or lent");
    }
}

impl Mapping {
    /// Returns whether the mapping still contains this folio. A folio that was removed never comes
    /// back.
    pub fn holds(&self, folio: &LockedFolio) -> bool {
        folio.folio().frame().is_cached()
    }

    /// Returns the index of the first page of `pages` that is cached. May miss a folio that is
    /// concurrently inserted or removed.
    pub fn next_cached(&self, pages: Range<u64>) -> Option<u64> {
        let first = self.tree.first_present(&self.cache().pool, pages.start, pages.end);
        first.map(|(index, _)| index)
    }

    /// Returns whether any of `pages` is cached. Certain: a folio that is not found is inserted
    /// later.
    pub fn has_cached(&self, pages: Range<u64>) -> bool {
        let _changes = self.changes.lock();
        self.next_cached(pages).is_some()
    }

    /// Replaces a folio that is not under writeback by a copy. Borrowers keep the old folio
    /// unchanged. The error returns the folio, if there is no memory for a copy or the folio was
    /// removed from the mapping.
    pub fn replace_by_copy(&self, folio: LockedFolio) -> Result<LockedFolio, LockedFolio> {
        let old = folio.folio();
        let pool = &self.cache().pool;
        let span = old.frame().span();
        let Some((number, _)) = self.cache().allocate(span.order, span.order) else {
            return Err(folio);
        };
        let frame = pool.frame(number);
        let (from, to) = (pool.memory(old.frame_number()), pool.memory(number));
        self.protect(&folio);
        // SAFETY: both folios have this size. The old one is locked and protected, so it has no
        // writers; the new one was just allocated.
        unsafe { to.copy_from_nonoverlapping(from, PAGE_SIZE << span.order) };
        frame.set_blank(old.frame().is_blank());
        FolioState::copy(old.frame(), frame);
        let changes = self.changes.lock();
        // Another thread may have removed the folio before this one locked it.
        if !old.frame().is_cached() {
            drop(changes);
            pool.free(number, span.order);
            return Err(folio);
        }
        self.leave_file_memory(&folio);
        self.tree.replace(pool, span, number);
        frame.make_live(self.id(), span);
        frame.copy_dropbehind(old.frame());
        let put = old.frame().uncache();
        debug_assert_eq!(put, Put::Held, "the caller holds a reference");
        drop(changes);
        let new = Folio::new(std::sync::Arc::clone(self.cache()), number);
        if old.frame().is_uptodate() {
            new.frame().set_uptodate();
        }
        self.move_dirty(old, &new);
        Ok(LockedFolio::new(new, self.block_size()))
    }

    /// Removes a folio that is not under writeback from the mapping. Its dirty blocks are not
    /// written back. Holders of references keep it unchanged; lookups do not find it any more.
    pub fn remove(&self, folio: LockedFolio) {
        let frame = folio.folio().frame();
        debug_assert!(!frame.is_under_writeback(), "a folio under writeback belongs to its file");
        self.set_clean(&folio, 0..folio.folio().len());
        let _changes = self.changes.lock();
        if frame.is_cached() {
            self.leave_file_memory(&folio);
            self.tree.remove(&self.cache().pool, frame.span());
            let put = frame.uncache();
            debug_assert_eq!(put, Put::Held, "the caller holds a reference");
        }
    }
}
