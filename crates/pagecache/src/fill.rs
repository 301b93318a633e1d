//! Filling folios. The thread that has a folio locked divides its blocks into pieces. Each piece is
//! filled on its own, and the end of the last one unlocks the folio. Not here: the sources of the
//! data.

use std::ptr::NonNull;

use base::BlockSize;

use crate::PAGE_SHIFT;
use crate::folio::{Folio, FolioRef};
use crate::state::FolioState;

/// A locked folio. Only the holder writes to it, and readers see only its uptodate blocks. After
/// this is dropped, the folio is unlocked as soon as all of its pieces have ended.
#[derive(Debug)]
pub struct LockedFolio {
    folio: Folio,
    block_size: BlockSize,
    /// The first byte that is in no piece and was not skipped.
    cursor: usize,
    lock: Lock,
}

/// The value that unlocks a folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lock {
    /// The [`LockedFolio`].
    Holder,
    /// The last piece to end, or the [`LockedFolio`] if it is dropped later. The state's pending
    /// count tells.
    Shared,
    /// The only piece, which is the whole folio.
    Piece,
}

impl LockedFolio {
    /// Takes over the caller's lock on `folio`.
    pub(crate) fn new(folio: Folio, block_size: BlockSize) -> Self {
        Self { folio, block_size, cursor: 0, lock: Lock::Holder }
    }

    /// Returns the folio.
    pub fn folio(&self) -> &Folio {
        &self.folio
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Returns whether there are no pieces.
    pub(crate) fn is_unfilled(&self) -> bool {
        self.lock == Lock::Holder
    }

    /// Returns the number of bytes that are in pieces or were skipped.
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    /// Returns the number of bytes after the [cursor](Self::cursor).
    pub fn remaining(&self) -> usize {
        self.folio.len() - self.cursor
    }

    /// Returns how many of the next `length` bytes, whole blocks, precede the first uptodate block.
    pub fn absent_len(&self, length: usize) -> usize {
        let frame = self.folio.frame();
        if frame.is_uptodate() {
            return 0;
        }
        FolioState::of(frame).map_or(length, |state| state.run(self.cursor, length, false))
    }

    /// Moves the cursor over `length` bytes, whole blocks, without filling them.
    pub fn skip(&mut self, length: usize) {
        self.check(length);
        self.cursor += length;
    }

    /// Marks the folio: its first reader starts the next readahead window.
    pub fn set_readahead(&self) {
        self.folio.frame().set_readahead();
    }

    /// Marks a new folio as dropbehind: it is cached for uncached reads and writes only. It leaves
    /// the cache when they are [done with](crate::FolioHandle::set_done) it, unless another access
    /// [keeps](crate::FolioHandle::keep) it.
    pub fn set_dropbehind(&self) {
        self.folio.frame().set_dropbehind();
    }

    /// Returns the next `length` bytes, whole blocks of which none is uptodate, as a piece to be
    /// filled.
    ///
    /// If the piece is the whole folio and `skip_state` is set, no per-block state is created.
    ///
    /// # Panics
    /// If a block is uptodate, or `length` is not whole blocks of the rest.
    pub fn take_piece(&mut self, length: usize, skip_state: bool) -> FillPiece {
        self.check(length);
        assert_eq!(self.absent_len(length), length, "a piece that is uptodate already");
        let start = self.cursor;
        self.cursor += length;
        let frame = self.folio.frame();
        let whole = length == self.folio.len() && FolioState::of(frame).is_none();
        if whole && (skip_state || length == self.block_size.len()) {
            self.lock = Lock::Piece;
        } else {
            let state = FolioState::attach(frame, self.folio.len(), self.block_size.shift());
            if self.lock == Lock::Holder {
                // One byte more for this `LockedFolio`, so that pieces that end at once do not
                // unlock the folio.
                state.add_pending(1);
                self.lock = Lock::Shared;
            }
            state.add_pending(length as u32);
        }
        FillPiece {
            folio: Some(self.folio.clone()),
            start,
            length,
            whole: self.lock == Lock::Piece,
        }
    }

    fn check(&self, length: usize) {
        assert!(
            length > 0 && length <= self.remaining() && length % self.block_size.len() == 0,
            "not whole blocks of the rest of the folio"
        );
    }
}

impl Drop for LockedFolio {
    fn drop(&mut self) {
        match self.lock {
            Lock::Holder => unlock(&self.folio, false),
            Lock::Shared => end_pending(&self.folio, 1),
            Lock::Piece => {}
        }
    }
}

/// Some blocks of a locked folio, to be filled by the holder alone. If it is dropped without
/// [`finish`](Self::finish), the blocks do not become uptodate.
#[derive(Debug)]
pub struct FillPiece {
    /// `None` once the piece has ended.
    folio: Option<Folio>,
    start: usize,
    length: usize,
    whole: bool,
}

impl FillPiece {
    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "no piece is empty")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the address of the memory, to be written to. No other thread accesses it until the
    /// piece ends.
    pub fn as_ptr(&mut self) -> NonNull<u8> {
        let folio = self.folio();
        folio.frame().set_blank(false);
        let start = folio.cache().pool.memory(folio.frame_number());
        // SAFETY: `start` is a byte of the folio.
        unsafe { start.add(self.start) }
    }

    /// Returns the memory. It contains leftovers of other folios.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        // SAFETY: the piece is within the folio, to which it holds a reference. The folio is
        // locked, its pieces do not overlap (the cursor of its `LockedFolio` only advances), and
        // none of the blocks is uptodate, so no other thread has access (R5).
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
        self.folio.as_ref().expect("the piece has not ended")
    }

    /// Ends the piece and makes its blocks uptodate.
    pub fn finish(mut self) {
        self.end(true);
    }

    fn end(&mut self, filled: bool) {
        let Some(folio) = self.folio.take() else { return };
        if self.whole {
            return unlock(&folio, filled);
        }
        if filled {
            let state =
                FolioState::of(folio.frame()).expect("a folio with several pieces has a state");
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

/// Subtracts `bytes` from the folio's pending count, and unlocks the folio if the count is zero
/// then.
fn end_pending(folio: &Folio, bytes: usize) {
    let state = FolioState::of(folio.frame()).expect("a folio with pending bytes has a state");
    if state.end_pending(bytes as u32) {
        unlock(folio, state.is_complete());
    }
}

/// Locks `folio` if it is not locked.
pub(crate) fn try_lock(folio: &FolioRef<'_>, block_size: BlockSize) -> Option<LockedFolio> {
    folio.frame().try_lock().then(|| LockedFolio::new(folio.to_owned(), block_size))
}

/// Locks `folio`. Waits while another thread has it locked.
pub(crate) fn lock(folio: &FolioRef<'_>, block_size: BlockSize) -> LockedFolio {
    while !folio.frame().try_lock() {
        folio.wait_unlocked();
    }
    LockedFolio::new(folio.to_owned(), block_size)
}

const _: () = assert!(PAGE_SHIFT as usize + crate::ORDER_MAX as usize <= 31);
