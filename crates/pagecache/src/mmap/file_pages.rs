//! Folios' pages in their file's memory: moving them there, and out of it.
//! Not here: showing them in windows (`window.rs`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{Error, Result};

use super::area::Area;
use super::file_memory::FileMemory;
use super::window::MapWindow;
use crate::cache::PageCache;
use crate::fill::LockedFolio;
use crate::frame::{Frame, Span};
use crate::mapping::Mapping;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// The maximum number of folios in their files' memory. Each takes up to two of the process's
/// mappings, of which Linux permits 65,530 by default.
pub(crate) const FOREIGN_MAX: u32 = 8192;
/// The number of folios that are moved out of their files' memory at a time once there are too
/// many.
const SHED: u32 = FOREIGN_MAX / 8;

/// Returns the first `pages` pages of a folio.
fn first_pages(span: Span, pages: u32) -> Range<u64> {
    span.index..span.index + u64::from(pages)
}

impl Mapping {
    /// Creates a map window for `pages` of the file, which has `size` bytes. The caller holds the
    /// inode's lock alone.
    pub fn open_window(
        &self,
        pages: Range<u64>,
        is_writable: bool,
        size: u64,
    ) -> Result<MapWindow> {
        let memory = match self.mapped.memory.get() {
            Some(memory) => memory,
            None => {
                let memory = FileMemory::new(size)?;
                self.mapped.memory.get_or_init(|| memory)
            }
        };
        MapWindow::new(self.to_arc(), memory, pages, is_writable)
    }

    /// Returns whether there are windows. `false` is certain under the inode's lock.
    #[inline]
    pub fn has_windows(&self) -> bool {
        self.mapped.count.load(Ordering::Acquire) > 0
    }

    /// Returns whether the file has or had windows. Their stores may still be in the cache.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.mapped.memory.get().is_some()
    }

    /// Moves a folio's pages up to the end of the file into the file's memory, so that windows can
    /// show them.
    pub fn place(&self, folio: &LockedFolio) -> Result<()> {
        let memory = self.mapped.memory.get().ok_or(Error::InvalidArgument("no window"))?;
        assert!(folio.is_unfilled(), "pieces of the folio are being filled");
        let frame = folio.folio().frame();
        let span = frame.span();
        let present = frame.pages_in_file();
        let wanted = pages_wanted(memory, span);
        if present >= wanted {
            return Ok(());
        }
        let pool = &self.cache().pool;
        if pool.foreign.load(Ordering::Relaxed) >= FOREIGN_MAX {
            self.cache().shed();
        }
        let pages = span.index + u64::from(present)..span.index + u64::from(wanted);
        memory.allocate(&pages)?;
        self.set_foreign(frame);
        let (arena, part) = pool.part(folio.folio().frame_number(), present..wanted);
        // SAFETY: the folio is locked and no piece of it is being filled, so no thread writes to
        // it. The pages belong to no other folio (W1).
        let moved = unsafe { arena.move_to(part, Some((memory.fd(), pages.start << PAGE_SHIFT))) };
        if moved.is_err() {
            memory.punch(&pages);
            self.cache().shed();
            return moved;
        }
        frame.set_pages_in_file(wanted);
        Ok(())
    }

    /// Moves a new folio, which is locked and has no data, into the file's memory if a window shows
    /// its pages. Then no data needs to be copied later.
    pub(crate) fn move_new_to_file_memory(&self, number: u32, span: Span) {
        let Some(memory) = self.mapped.memory.get() else { return };
        let pool = &self.cache().pool;
        let wanted = pages_wanted(memory, span);
        let pages = first_pages(span, wanted);
        let has_pages = |area: &Arc<Area>| area.has_any(&pages);
        if wanted == 0
            || pool.foreign.load(Ordering::Relaxed) >= FOREIGN_MAX
            || !self.mapped.windows.read().iter().any(has_pages)
            || memory.allocate(&pages).is_err()
        {
            return;
        }
        let frame = pool.frame(number);
        self.set_foreign(frame);
        let (arena, part) = pool.part(number, 0..wanted);
        // SAFETY: the folio is locked, and no block of it is uptodate, so no other thread uses it.
        // The pages belong to no other folio (W1).
        match unsafe { arena.replace_by_file(part, memory.fd(), pages.start << PAGE_SHIFT) } {
            Ok(()) => {
                frame.set_pages_in_file(wanted);
                if u64::from(wanted) == span.pages() {
                    frame.set_blank(true);
                }
            }
            Err(_) => memory.punch(&pages),
        }
    }

    /// Marks `frame`'s memory as foreign, and counts it.
    fn set_foreign(&self, frame: &Frame) {
        if frame.set_foreign() {
            self.cache().pool.foreign.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves a folio out of the file's memory and all windows, before it leaves the tree. Holders
    /// of references keep its bytes. The caller has the folio locked and protected, and holds the
    /// tree's lock.
    pub(crate) fn leave_file_memory(&self, folio: &LockedFolio) {
        let frame = folio.folio().frame();
        let pages = frame.pages_in_file();
        let (Some(memory), true) = (self.mapped.memory.get(), pages > 0) else { return };
        debug_assert!(!frame.is_storable(), "stored to while it is copied");
        let (arena, part) = self.cache().pool.part(folio.folio().frame_number(), 0..pages);
        // SAFETY: the folio is locked and protected, so no thread writes to it. If the host
        // refuses, holders of references read zeroes.
        let moved = unsafe { arena.move_to(part, None) };
        debug_assert_eq!(moved, Ok(()));
        memory.punch(&first_pages(frame.span(), pages));
        frame.set_pages_in_file(0);
    }

    /// Removes a folio that the caller has claimed from the file's memory. Its bytes are not used
    /// any more.
    pub(crate) fn leave_file_memory_claimed(&self, frame: &Frame) {
        let pages = frame.pages_in_file();
        if let (Some(memory), true) = (self.mapped.memory.get(), pages > 0) {
            memory.punch(&first_pages(frame.span(), pages));
            frame.set_pages_in_file(0);
        }
    }

    /// Permits windows to show a folio's dirty blocks so that stores do not fault (W3).
    pub fn allow_stores(&self, folio: &LockedFolio) {
        let frame = folio.folio().frame();
        debug_assert!(frame.is_dirty() && !frame.is_under_writeback() && !frame.is_lent());
        frame.set_blank(false);
        frame.set_storable(true);
    }

    /// Makes the next store to the folio through a window fault, and zeroes bytes that were stored
    /// past the file's end.
    pub fn protect(&self, folio: &LockedFolio) {
        let frame = folio.folio().frame();
        if !frame.is_storable() {
            return;
        }
        let span = frame.span();
        for window in self.mapped.windows.read().iter() {
            window.protect(&(span.index..span.end()));
        }
        frame.set_storable(false);
        let size = self.mapped.memory.get().map_or(0, FileMemory::size);
        if size % PAGE_SIZE as u64 != 0 && (span.index..span.end()).contains(&(size >> PAGE_SHIFT))
        {
            let start = (size - folio.folio().position()) as usize;
            let memory = self.cache().pool.memory(folio.folio().frame_number());
            let length = start.next_multiple_of(PAGE_SIZE) - start;
            // SAFETY: in the folio, which is locked and, until here, was dirty and not lent. No
            // thread reads bytes past the file's end.
            unsafe { memory.add(start).write_bytes(0, length) };
        }
    }

    /// Sets the size of the file's memory. The caller holds the inode's lock alone. If the file
    /// becomes smaller, the caller zeroes the bytes past its end.
    pub fn set_mapped_size(&self, size: u64) {
        if let Some(memory) = self.mapped.memory.get() {
            memory.set_size(size);
        }
    }

    /// Removes the pages past the end of a file that has become smaller from its windows, where
    /// accesses to them get SIGBUS. Nothing past the block of the end is cached any more.
    pub fn truncate_windows(&self) {
        let Some(memory) = self.mapped.memory.get() else { return };
        let page = memory.pages_end();
        let mut at = page;
        while let Some(found) = self.next_cached(at..u64::MAX >> PAGE_SHIFT) {
            at = found;
            let Some(folio) = self.get(at) else { continue };
            let folio = self.lock(&folio);
            if !self.holds(&folio) {
                continue;
            }
            let frame = folio.folio().frame();
            let span = frame.span();
            let kept = page.saturating_sub(span.index).min(span.pages()) as u32;
            let present = frame.pages_in_file();
            if present > kept {
                folio.wait_writeback();
                self.protect(&folio);
                let (arena, part) =
                    self.cache().pool.part(folio.folio().frame_number(), kept..present);
                // SAFETY: the folio is locked, and no thread reads it past the file's end.
                let renewed = unsafe { arena.renew(part) };
                debug_assert_eq!(renewed, Ok(()));
                frame.set_pages_in_file(kept);
            }
            at = span.end();
        }
        // Cannot fail: shrinking needs no memory.
        let _ = memory.resize();
    }
}

/// Returns how many pages of a folio at `span`, from the first one on, are before the end of the
/// file.
fn pages_wanted(memory: &FileMemory, span: Span) -> u32 {
    memory.pages_end().saturating_sub(span.index).min(span.pages()) as u32
}

impl PageCache {
    /// Moves some folios out of their files' memory, to make room for others.
    fn shed(&self) {
        let frames = self.pool.frames().len() as u32;
        let mut shed = 0;
        let mut visited = 0;
        while shed < SHED && visited < frames {
            let at = self.mapped_hand.load(Ordering::Relaxed) % frames;
            let frame = self.pool.frame(at);
            // These are hints: `move_out` decides.
            let pages = if frame.is_live() { 1 << frame.span().order } else { 1 };
            self.mapped_hand.store(at + pages, Ordering::Relaxed);
            visited += pages;
            if frame.is_live() && frame.pages_in_file() > 0 && self.move_out(at) {
                shed += 1;
            }
        }
    }

    /// Replaces the folio that frame `number` heads by a copy outside of the file's memory, unless
    /// it is locked or under writeback. Returns whether it has done so.
    fn move_out(&self, number: u32) -> bool {
        let frame = self.pool.frame(number);
        let (owner, span) = (frame.owner(), frame.span());
        let mapping = self.mappings.read().get(&owner).and_then(std::sync::Weak::upgrade);
        let Some(mapping) = mapping else { return false };
        let Some(folio) = mapping.get(span.index) else { return false };
        let Some(folio) = mapping.try_lock(&folio) else { return false };
        if folio.folio().frame_number() != number
            || !mapping.holds(&folio)
            || folio.folio().is_under_writeback()
        {
            return false;
        }
        mapping.replace_by_copy(folio).is_ok()
    }
}
