//! Brings folios' pages into their file's memory, and takes them out.
//! Not here: showing them (`window.rs`).

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use base::{Error, Result};
use parking_lot::RwLock;

use super::file_memory::FileMemory;
use super::window::{Area, MapWindow};
use crate::cache::PageCache;
use crate::fill::LockedFolio;
use crate::frame::{Frame, Place};
use crate::mapping::Mapping;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// Each folio in its file's memory takes up to two of the host's mappings, of which a process has
/// 65,530 by default.
pub(crate) const FOREIGN_MAX: u32 = 8192;
/// How many are taken out at a time when there are too many.
const SHED: u32 = FOREIGN_MAX / 8;

/// What a mapping has of windows.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    /// From the first window on.
    memory: OnceLock<FileMemory>,
    windows: RwLock<Vec<Arc<Area>>>,
    count: AtomicUsize,
}

impl Mapped {
    pub(crate) fn add(&self, area: &Arc<Area>) {
        self.windows.write().push(Arc::clone(area));
        self.count.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn remove(&self, area: &Arc<Area>) {
        let mut windows = self.windows.write();
        if let Some(at) = windows.iter().position(|window| Arc::ptr_eq(window, area)) {
            windows.swap_remove(at);
            self.count.fetch_sub(1, Ordering::Release);
        }
    }
}

/// The pages of a folio, from the first on.
fn first_pages(place: Place, pages: u32) -> Range<u64> {
    place.index..place.index + u64::from(pages)
}

impl Mapping {
    /// A window onto `pages` of the file, which has `size` bytes. It can be stored to or not. The
    /// caller holds the inode's lock alone.
    pub fn open_window(
        &self,
        pages: Range<u64>,
        can_be_stored_to: bool,
        size: u64,
    ) -> Result<MapWindow> {
        let memory = match self.mapped.memory.get() {
            Some(memory) => memory,
            None => {
                let memory = FileMemory::new(size)?;
                self.mapped.memory.get_or_init(|| memory)
            }
        };
        MapWindow::new(self.this(), memory, pages, can_be_stored_to)
    }

    /// Whether there are windows. Certain, if not, under the inode's lock.
    #[inline]
    pub fn has_windows(&self) -> bool {
        self.mapped.count.load(Ordering::Acquire) > 0
    }

    /// Whether there are windows, or were, and what they stored may still be there.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.mapped.memory.get().is_some()
    }

    /// Brings a folio's pages into the file's memory, as far as the file reaches, so that windows can
    /// show them.
    pub fn place(&self, folio: &LockedFolio) -> Result<()> {
        let memory = self.mapped.memory.get().ok_or(Error::InvalidArgument("no window"))?;
        assert!(folio.is_unfilled(), "pieces of the folio are being filled");
        let (frame, place) = (folio.folio().frame(), folio.folio().frame().place());
        let (placed, wanted) = (frame.pages_in_file(), self.pages_wanted(memory, place));
        if placed >= wanted {
            return Ok(());
        }
        let pool = &self.cache().pool;
        if pool.foreign.load(Ordering::Relaxed) >= FOREIGN_MAX {
            self.cache().shed();
        }
        let pages = place.index + u64::from(placed)..place.index + u64::from(wanted);
        memory.make(&pages)?;
        self.set_foreign(frame);
        let (arena, part) = pool.part(folio.folio().frame_number(), placed..wanted);
        // SAFETY: the folio is locked and no piece of it is being filled: nobody writes to it. The
        // pages are no other folio's (W1).
        let moved = unsafe { arena.move_to(part, Some((memory.fd(), pages.start << PAGE_SHIFT))) };
        if moved.is_err() {
            memory.punch(&pages);
            self.cache().shed();
            return moved;
        }
        frame.set_pages_in_file(wanted);
        Ok(())
    }

    /// Has a new folio, locked and without data, lie in the file's memory at once, if it is to be there:
    /// so nothing is copied later.
    pub(crate) fn place_new(&self, number: u32, place: Place) {
        let Some(memory) = self.mapped.memory.get() else { return };
        let pool = &self.cache().pool;
        let wanted = self.pages_wanted(memory, place);
        let pages = first_pages(place, wanted);
        let is_seen = |area: &Arc<Area>| area.sees(&pages);
        if wanted == 0
            || pool.foreign.load(Ordering::Relaxed) >= FOREIGN_MAX
            || !self.mapped.windows.read().iter().any(is_seen)
            || memory.make(&pages).is_err()
        {
            return;
        }
        let frame = pool.frame(number);
        self.set_foreign(frame);
        let (arena, part) = pool.part(number, 0..wanted);
        // SAFETY: the folio is locked, and no block of it uptodate: nobody uses it. The pages are no
        // other folio's (W1).
        match unsafe { arena.take_from(part, memory.fd(), pages.start << PAGE_SHIFT) } {
            Ok(()) => {
                frame.set_pages_in_file(wanted);
                if u64::from(wanted) == place.pages() {
                    frame.set_blank(true);
                }
            }
            Err(_) => memory.punch(&pages),
        }
    }

    fn pages_wanted(&self, memory: &FileMemory, place: Place) -> u32 {
        memory.pages_end().saturating_sub(place.index).min(place.pages()) as u32
    }

    fn set_foreign(&self, frame: &Frame) {
        if frame.set_foreign() {
            self.cache().pool.foreign.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a folio that is locked, and leaves the tree, whose lock the caller holds, out of the file's
    /// memory, and of all windows. Who refers to it keeps its bytes.
    pub(crate) fn leave_file(&self, folio: &LockedFolio) {
        let frame = folio.folio().frame();
        let pages = frame.pages_in_file();
        let (Some(memory), true) = (self.mapped.memory.get(), pages > 0) else { return };
        debug_assert!(!frame.is_storable(), "stored to while it is copied");
        let (arena, part) = self.cache().pool.part(folio.folio().frame_number(), 0..pages);
        // SAFETY: the folio is locked and protected: nobody writes to it. If the host refuses, what is
        // read from it by those who came before is zeroes.
        let moved = unsafe { arena.move_to(part, None) };
        debug_assert_eq!(moved, Ok(()));
        memory.punch(&first_pages(frame.place(), pages));
        frame.set_pages_in_file(0);
    }

    /// [`leave_file`](Self::leave_file) for a folio that the caller has claimed.
    pub(crate) fn leave_file_claimed(&self, frame: &Frame) {
        let pages = frame.pages_in_file();
        if let (Some(memory), true) = (self.mapped.memory.get(), pages > 0) {
            memory.punch(&first_pages(frame.place(), pages));
            frame.set_pages_in_file(0);
        }
    }

    /// Lets windows have a folio's dirty blocks stored to without a fault (W3).
    pub fn allow_stores(&self, folio: &LockedFolio) {
        let frame = folio.folio().frame();
        debug_assert!(frame.is_dirty() && !frame.is_under_writeback() && !frame.is_lent());
        frame.set_blank(false);
        frame.set_storable(true);
    }

    /// Has the next store to the folio through a window be a fault, and makes what was stored past the
    /// file's end zeroes.
    pub fn protect(&self, folio: &LockedFolio) {
        let frame = folio.folio().frame();
        if !frame.is_storable() {
            return;
        }
        let place = frame.place();
        for window in self.mapped.windows.read().iter() {
            window.protect(&(place.index..place.end()));
        }
        frame.set_storable(false);
        let size = self.mapped.memory.get().map_or(0, FileMemory::size);
        if size % PAGE_SIZE as u64 != 0
            && (place.index..place.end()).contains(&(size >> PAGE_SHIFT))
        {
            let start = (size - folio.folio().position()) as usize;
            let memory = self.cache().pool.memory(folio.folio().frame_number());
            let length = start.next_multiple_of(PAGE_SIZE) - start;
            // SAFETY: in the folio, which is locked, and was dirty, and not lent, until here. Bytes
            // past the file's end are read by nobody.
            unsafe { memory.add(start).write_bytes(0, length) };
        }
    }

    /// Sets the size of the file's memory. The caller holds the inode's lock alone. If the file becomes smaller,
    /// the caller zeroes the bytes past its end.
    pub fn set_mapped_size(&self, size: u64) {
        if let Some(memory) = self.mapped.memory.get() {
            memory.set_size(size);
        }
    }

    /// Removes the pages past the end of a file that has become smaller from its windows, where accesses to them
    /// get SIGBUS. Nothing past the block of the end is cached any more.
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
            let (frame, place) = (folio.folio().frame(), folio.folio().frame().place());
            let kept = page.saturating_sub(place.index).min(place.pages()) as u32;
            let placed = frame.pages_in_file();
            if placed > kept {
                folio.wait_writeback();
                self.protect(&folio);
                let (arena, part) =
                    self.cache().pool.part(folio.folio().frame_number(), kept..placed);
                // SAFETY: the folio is locked; past the file's end nobody reads it.
                let renewed = unsafe { arena.renew(part) };
                debug_assert_eq!(renewed, Ok(()));
                frame.set_pages_in_file(kept);
            }
            at = place.end();
        }
        // It becomes smaller, which takes no memory.
        let _ = memory.resize();
    }
}

impl Area {
    fn sees(&self, pages: &Range<u64>) -> bool {
        let own = self.pages();
        own.start < pages.end && pages.start < own.end
    }
}

impl PageCache {
    /// Takes some folios out of their files' memory, so that others have room.
    fn shed(&self) {
        let frames = self.pool.frames().len() as u32;
        let (mut shed, mut seen) = (0, 0);
        while shed < SHED && seen < frames {
            let at = self.mapped_hand.load(Ordering::Relaxed) % frames;
            let frame = self.pool.frame(at);
            // All of this is a hint.
            let pages = if frame.is_live() { 1 << frame.place().order } else { 1 };
            self.mapped_hand.store(at + pages, Ordering::Relaxed);
            seen += pages;
            if frame.is_live() && frame.pages_in_file() > 0 && self.take_out(at) {
                shed += 1;
            }
        }
    }

    /// Puts a copy that is not in the file's memory in the place of the folio that `frame` heads, if
    /// nobody has it locked; whether it did.
    fn take_out(&self, number: u32) -> bool {
        let frame = self.pool.frame(number);
        let (owner, place) = (frame.owner(), frame.place());
        let mapping = self.mappings.read().get(&owner).and_then(std::sync::Weak::upgrade);
        let Some(mapping) = mapping else { return false };
        let Some(folio) = mapping.get(place.index) else { return false };
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
