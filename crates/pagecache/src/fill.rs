//! Filling folios: who has one locked hands its blocks out in pieces, each to be filled from
//! somewhere; when the last piece is done, the folio is unlocked.
//! Not here: where the data comes from.

use std::ptr::NonNull;

use base::BlockSize;

use crate::PAGE_SHIFT;
use crate::folio::{Folio, FolioRef};
use crate::state::FolioState;

/// A folio that the holder has locked: nobody else writes to it, and readers get only those of its
/// blocks that are uptodate already. Dropping it unlocks the folio as soon as the pieces that were
/// taken are done.
#[derive(Debug)]
pub struct LockedFolio {
    folio: Folio,
    block_size: BlockSize,
    /// The first byte that was neither taken nor skipped.
    cursor: usize,
    lock: Lock,
}

/// Who unlocks a folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lock {
    /// The [`LockedFolio`].
    Ours,
    /// Whoever takes the last pending byte off the state.
    Shared,
    /// The one piece that is the whole folio.
    Given,
}

impl LockedFolio {
    /// The caller has `folio` locked, and gives the lock.
    pub(crate) fn new(folio: Folio, block_size: BlockSize) -> Self {
        Self { folio, block_size, cursor: 0, lock: Lock::Ours }
    }

    /// The folio.
    pub fn folio(&self) -> &Folio {
        &self.folio
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Whether no piece was taken.
    pub(crate) fn is_unfilled(&self) -> bool {
        self.lock == Lock::Ours
    }

    /// How many bytes were taken or skipped so far.
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    /// How many bytes are left to be taken or skipped.
    pub fn left(&self) -> usize {
        self.folio.len() - self.cursor
    }

    /// How many of the next `length` bytes, whole blocks, lie before the first block that is
    /// uptodate already.
    pub fn absent(&self, length: usize) -> usize {
        let frame = self.folio.frame();
        if frame.is_uptodate() {
            return 0;
        }
        FolioState::of(frame).map_or(length, |state| state.run(self.cursor, length, false))
    }

    /// Leaves `length` bytes, whole blocks, as they are.
    pub fn skip(&mut self, length: usize) {
        self.check(length);
        self.cursor += length;
    }

    /// Has the first reader of the folio start the next readahead window.
    pub fn set_readahead(&self) {
        self.folio.frame().set_readahead();
    }

    /// Says that the folio, which is new, is here for uncached reads and writes only: it leaves the
    /// cache when they are [done with](crate::FolioHandle::done_with) it, unless somebody else
    /// [keeps](crate::FolioHandle::keep) it.
    pub fn set_dropbehind(&self) {
        self.folio.frame().set_dropbehind();
    }

    /// Takes the next `length` bytes, whole blocks of which none is uptodate, to be filled.
    ///
    /// When the piece is the whole folio and `skip_state` is set, no per-block state is made.
    pub fn take(&mut self, length: usize, skip_state: bool) -> FillPiece {
        self.check(length);
        assert_eq!(self.absent(length), length, "a piece that is uptodate already");
        let start = self.cursor;
        self.cursor += length;
        let frame = self.folio.frame();
        let whole = length == self.folio.len() && FolioState::of(frame).is_none();
        if whole && (skip_state || length == self.block_size.len()) {
            self.lock = Lock::Given;
        } else {
            let state = FolioState::attach(frame, self.folio.len(), self.block_size.shift());
            if self.lock == Lock::Ours {
                // One more, so that pieces that are done at once do not unlock the folio.
                state.add_pending(1);
                self.lock = Lock::Shared;
            }
            state.add_pending(length as u32);
        }
        FillPiece {
            folio: Some(self.folio.clone()),
            start,
            length,
            whole: self.lock == Lock::Given,
        }
    }

    fn check(&self, length: usize) {
        assert!(
            length > 0 && length <= self.left() && length % self.block_size.len() == 0,
            "not whole blocks of what is left"
        );
    }
}

impl Drop for LockedFolio {
    fn drop(&mut self) {
        match self.lock {
            Lock::Ours => unlock(&self.folio, false),
            Lock::Shared => end_pending(&self.folio, 1),
            Lock::Given => {}
        }
    }
}

/// Some blocks of a locked folio that are to be filled, by the holder alone. Dropping it leaves them
/// without data.
#[derive(Debug)]
pub struct FillPiece {
    /// Taken when the piece is done.
    folio: Option<Folio>,
    start: usize,
    length: usize,
    whole: bool,
}

impl FillPiece {
    /// The number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "no piece is empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// The memory, to be written to. Nobody else has access to it until the piece is done.
    pub fn as_ptr(&mut self) -> NonNull<u8> {
        let folio = self.folio();
        folio.frame().set_blank(false);
        let start = folio.cache().pool.memory(folio.frame_number());
        // SAFETY: `start` is a byte of the folio.
        unsafe { start.add(self.start) }
    }

    /// The memory; what is in it is left over from others.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        // SAFETY: the piece lies within the folio, to which a reference is held. The folio is
        // locked, pieces of it do not overlap (its `LockedFolio` only moves on), and none of the
        // blocks is uptodate, so nobody else has access (R5).
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), length) }
    }

    /// Fills the piece with zeroes and ends it.
    pub fn zero(mut self) {
        if !self.folio().frame().is_blank() {
            self.bytes_mut().fill(0);
            self.folio().frame().set_blank(self.length == self.folio().len());
        }
        self.finish();
    }

    fn folio(&self) -> &Folio {
        self.folio.as_ref().expect("not done yet")
    }

    /// Ends the piece: its blocks are uptodate.
    pub fn finish(mut self) {
        self.end(true);
    }

    fn end(&mut self, filled: bool) {
        let Some(folio) = self.folio.take() else { return };
        if self.whole {
            return unlock(&folio, filled);
        }
        if filled {
            let state = FolioState::of(folio.frame()).expect("a part has a state");
            state.set_uptodate(self.start..self.start + self.length);
        }
        end_pending(&folio, self.length);
    }
}

impl Drop for FillPiece {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn unlock(folio: &Folio, uptodate: bool) {
    folio.frame().unlock(uptodate, folio.cache().bucket(folio.frame_number()));
}

/// Takes bytes off the folio's pending count, and unlocks the folio if they were the last.
fn end_pending(folio: &Folio, bytes: usize) {
    let state = FolioState::of(folio.frame()).expect("who has pending bytes has made a state");
    if state.end_pending(bytes as u32) {
        unlock(folio, state.is_complete());
    }
}

/// Locks `folio` if nobody has.
pub(crate) fn try_lock(folio: &FolioRef<'_>, block_size: BlockSize) -> Option<LockedFolio> {
    folio.frame().try_lock().then(|| LockedFolio::new(folio.to_owned(), block_size))
}

/// Locks `folio`, waiting for others.
pub(crate) fn lock(folio: &FolioRef<'_>, block_size: BlockSize) -> LockedFolio {
    while !folio.frame().try_lock() {
        folio.wait_unlocked();
    }
    LockedFolio::new(folio.to_owned(), block_size)
}

const _: () = assert!(PAGE_SHIFT as usize + crate::ORDER_MAX as usize <= 31);
