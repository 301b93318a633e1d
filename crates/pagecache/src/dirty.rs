//! Dirty folios of a mapping, and folios under writeback.
//! Not here: writing to folios (`write.rs`), and when and where they are written back.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::cache::PageCache;
use crate::fill::LockedFolio;
use crate::folio::{Folio, FolioRef};
use crate::frame::{Frame, Put};
use crate::mapping::Mapping;
use crate::state::FolioState;
use base::sync::WaitQueue;

/// The folios of one mapping that are dirty or under writeback (`frame.rs`, R6).
#[derive(Debug, Default)]
pub(crate) struct DirtyFolios {
    dirty: FolioSet,
    writeback: FolioSet,
    /// Bytes in dirty blocks.
    bytes: u64,
}

/// Frames by the index of their folio's first page. Each entry holds a reference.
#[derive(Debug, Default)]
struct FolioSet(BTreeMap<u64, u32>);

impl FolioSet {
    /// Returns the first folio that has any of `pages`.
    fn first(&self, cache: &PageCache, pages: &Range<u64>) -> Option<u32> {
        if pages.is_empty() {
            return None;
        }
        let before = self.0.range(..pages.start).next_back().map(|(_, number)| *number);
        let before = before.filter(|number| cache.pool.frame(*number).span().end() > pages.start);
        before.or_else(|| self.0.range(pages.clone()).next().map(|(_, number)| *number))
    }
}

/// Flags, sets and references change together (R6). `frame` heads the folio, and `index` is that of
/// its first page. Callers have the folio locked, except at the end of a writeback.
impl DirtyFolios {
    /// Records that blocks of the folio with `bytes` bytes have become dirty.
    fn add(&mut self, frame: &Frame, index: u64, number: u32, bytes: u64) {
        self.bytes += bytes;
        if !frame.is_dirty() {
            frame.set_dirty(true);
            frame.get_again();
            self.dirty.0.insert(index, number);
        }
    }

    /// Records that blocks of the folio with `bytes` bytes have become clean. If the folio is not
    /// `still_dirty`, it leaves the set, and the caller drops the set's reference.
    fn subtract(&mut self, frame: &Frame, index: u64, bytes: u64, still_dirty: bool) {
        self.bytes -= bytes;
        if !still_dirty {
            self.dirty.0.remove(&index);
            frame.set_dirty(false);
        }
    }

    /// Replaces a dirty folio by its copy, which `new` heads. The caller drops the set's reference
    /// to the old folio.
    fn replace(&mut self, old: &Frame, new: &Frame, index: u64, number: u32) {
        new.get_again();
        new.set_dirty(true);
        old.set_dirty(false);
        self.dirty.0.insert(index, number);
    }

    /// Moves a folio with `bytes` dirty bytes from the dirty set to the writeback set. The
    /// reference moves with it.
    fn start_writeback(&mut self, frame: &Frame, index: u64, number: u32, bytes: u64) {
        self.dirty.0.remove(&index);
        self.writeback.0.insert(index, number);
        self.bytes -= bytes;
        frame.start_writeback();
    }

    /// Ends the writeback of a folio. The caller drops the set's reference.
    fn end_writeback(&mut self, frame: &Frame, index: u64, bucket: &WaitQueue) {
        self.writeback.0.remove(&index);
        // Under the lock of the sets, since the folio may become dirty again at once.
        frame.end_writeback(bucket);
    }
}

/// Ranges of dirty bytes within a folio, whole blocks, in order.
pub type DirtyRanges = SmallVec<[Range<usize>; 4]>;

impl Mapping {
    /// Marks all blocks dirty that have bytes of `range`. They are uptodate.
    pub fn set_dirty(&self, folio: &LockedFolio, range: Range<usize>) {
        let (frame, length) = (folio.folio().frame(), folio.folio().len());
        let range = folio.whole_blocks(range);
        let was_dirty = frame.is_dirty();
        let added = match FolioState::of(frame) {
            None if was_dirty => 0,
            None if range == (0..length) => length,
            None => FolioState::attach(frame, length, self.block_size().shift()).set_dirty(range),
            Some(state) => state.set_dirty(range),
        };
        if added == 0 {
            return;
        }
        let (index, number) = (folio.folio().index(), folio.folio().frame_number());
        let mut folios = self.dirty.lock();
        self.cache().dirty.fetch_add(added as u64, Ordering::Relaxed);
        if !was_dirty {
            self.cache().held.fetch_add(length as u64, Ordering::Relaxed);
        }
        folios.add(frame, index, number, added as u64);
    }

    /// Marks the blocks in `range` clean without writing them back.
    pub fn set_clean(&self, folio: &LockedFolio, range: Range<usize>) {
        let (frame, length) = (folio.folio().frame(), folio.folio().len());
        if !frame.is_dirty() || range.is_empty() {
            return;
        }
        self.protect(folio);
        let state = FolioState::attach(frame, length, self.block_size().shift());
        let removed = state.set_clean(range);
        let still_dirty = state.dirty_run(0, length, false) < length;
        let mut folios = self.dirty.lock();
        self.cache().dirty.fetch_sub(removed as u64, Ordering::Relaxed);
        folios.subtract(frame, folio.folio().index(), removed as u64, still_dirty);
        if !still_dirty {
            self.cache().held.fetch_sub(length as u64, Ordering::Relaxed);
            drop(folios);
            let put = frame.put();
            debug_assert_eq!(put, Put::Held, "the caller holds a reference");
        }
    }

    /// Replaces `old` by `new` in the dirty set, if `old` is dirty. The caller has both locked.
    pub(crate) fn move_dirty(&self, old: &Folio, new: &Folio) {
        if !old.frame().is_dirty() {
            return;
        }
        let mut folios = self.dirty.lock();
        folios.replace(old.frame(), new.frame(), new.index(), new.frame_number());
        drop(folios);
        let put = old.frame().put();
        debug_assert_eq!(put, Put::Held, "the caller holds a reference");
    }

    /// Returns the first dirty folio that has any of `pages`. It may be under writeback by another
    /// thread by the time that the caller has locked it.
    pub fn next_dirty(&self, pages: Range<u64>) -> Option<FolioRef<'_>> {
        let folios = self.dirty.lock();
        let number = folios.dirty.first(self.cache(), &pages)?;
        Some(self.get_from_set(number))
    }

    /// Returns the first folio under writeback that has any of `pages`.
    pub fn next_under_writeback(&self, pages: Range<u64>) -> Option<FolioRef<'_>> {
        let folios = self.dirty.lock();
        let number = folios.writeback.first(self.cache(), &pages)?;
        Some(self.get_from_set(number))
    }

    /// Returns whether any folio of `pages` is dirty or under writeback.
    pub fn has_unwritten(&self, pages: &Range<u64>) -> bool {
        let folios = self.dirty.lock();
        let sets = [&folios.dirty, &folios.writeback];
        sets.iter().any(|set| set.first(self.cache(), pages).is_some())
    }

    /// Takes a reference to a folio of one of the sets. The caller has the sets locked, so their
    /// reference lasts.
    fn get_from_set(&self, number: u32) -> FolioRef<'_> {
        self.cache().pool.frame(number).get_again();
        FolioRef::new(self.cache(), number)
    }

    /// Returns the number of bytes in dirty blocks.
    pub fn bytes_dirty(&self) -> u64 {
        self.dirty.lock().bytes
    }

    /// Makes a dirty folio clean and starts its writeback. The caller then submits it. A later
    /// writer waits for the writeback and makes the folio dirty again (docs/design/io.md, invariant
    /// 6). Returns the ranges to be written, or `None` if the folio is not dirty.
    pub fn start_writeback(
        &self,
        folio: &LockedFolio,
    ) -> Option<(Arc<WritebackFolio>, DirtyRanges)> {
        let (frame, length) = (folio.folio().frame(), folio.folio().len());
        if !frame.is_dirty() {
            return None;
        }
        // A store through a window from here on is a fault, which waits for the writeback.
        self.protect(folio);
        let mut ranges = DirtyRanges::new();
        match FolioState::of(frame) {
            None => ranges.push(0..length),
            Some(state) => {
                let mut at = 0;
                while at < length {
                    at += state.dirty_run(at, length - at, false);
                    let dirty = state.dirty_run(at, length - at, true);
                    if dirty > 0 {
                        ranges.push(at..at + dirty);
                    }
                    at += dirty;
                }
                state.set_clean(0..length);
            }
        }
        let bytes: u64 = ranges.iter().map(|range| range.len() as u64).sum();
        let (index, number) = (folio.folio().index(), folio.folio().frame_number());
        let mut folios = self.dirty.lock();
        self.cache().dirty.fetch_sub(bytes, Ordering::Relaxed);
        self.cache().writeback.fetch_add(bytes, Ordering::Relaxed);
        folios.start_writeback(frame, index, number, bytes);
        drop(folios);
        // It takes over the reference of the dirty set.
        let folio = Folio::new(Arc::clone(self.cache()), number);
        let mapping = self.to_arc();
        Some((Arc::new(WritebackFolio { mapping, folio, bytes }), ranges))
    }

    /// Empties the dirty set of a mapping that is being dropped.
    pub(crate) fn drop_dirty(&self) {
        let mut folios = self.dirty.lock();
        let dirty = std::mem::take(&mut folios.dirty);
        let bytes = std::mem::take(&mut folios.bytes);
        drop(folios);
        self.cache().dirty.fetch_sub(bytes, Ordering::Relaxed);
        for number in dirty.0.into_values() {
            let folio = FolioRef::new(self.cache(), number);
            self.cache().held.fetch_sub(folio.len() as u64, Ordering::Relaxed);
        }
    }
}

/// A folio under writeback. Dropping the last reference to this ends the writeback.
#[derive(Debug)]
pub struct WritebackFolio {
    mapping: Arc<Mapping>,
    folio: Folio,
    /// The number of bytes under writeback.
    bytes: u64,
}

impl WritebackFolio {
    /// Returns the folio.
    pub fn folio(&self) -> &Folio {
        &self.folio
    }

    /// Returns the address of the bytes in `range`. No thread writes to them until this is dropped
    /// (R5).
    ///
    /// # Panics
    /// If `range` is not within the folio.
    pub fn memory(&self, range: &Range<usize>) -> NonNull<u8> {
        assert!(range.start <= range.end && range.end <= self.folio.len(), "not in the folio");
        let start = self.folio.cache().pool.memory(self.folio.frame_number());
        // SAFETY: a byte of the folio, or the one after its last.
        unsafe { start.add(range.start) }
    }
}

impl Drop for WritebackFolio {
    fn drop(&mut self) {
        let cache = self.mapping.cache();
        let bucket = cache.bucket(self.folio.frame_number());
        let mut folios = self.mapping.dirty.lock();
        cache.writeback.fetch_sub(self.bytes, Ordering::Relaxed);
        cache.held.fetch_sub(self.folio.len() as u64, Ordering::Relaxed);
        folios.end_writeback(self.folio.frame(), self.folio.index(), bucket);
    }
}

impl LockedFolio {
    /// Returns `range`, extended to whole blocks.
    fn whole_blocks(&self, range: Range<usize>) -> Range<usize> {
        let block = self.block_size().len();
        range.start / block * block..range.end.next_multiple_of(block)
    }
}

#[cfg(all(test, loom))]
mod model;
