//! Per-block state of a folio whose blocks differ: which ones are uptodate, which ones are dirty,
//! and how many bytes are still being read. Not here: when a folio needs a state (`fill.rs`,
//! `dirty.rs`).
//!
//! Rules: only the thread that has the folio locked attaches a state, which stays until the folio
//! is freed. So the holder of a reference to the folio may use a state that it sees. Dirty bits
//! change only under the folio's lock. A dirty folio without a state is dirty as a whole.

use std::ops::Range;

use crate::frame::Frame;
use base::sync::{AtomicU32, AtomicU64, Ordering};

/// The state of one folio.
#[derive(Debug)]
pub(crate) struct FolioState {
    /// log2 of the bytes in a block.
    block_shift: u32,
    blocks: u32,
    /// The bytes in pieces that have not ended, and one more until the `LockedFolio` is dropped.
    pending: AtomicU32,
    uptodate: Bits,
    dirty: Bits,
}

impl FolioState {
    /// Returns the state of the folio that `frame` heads, if it has one. The caller holds a
    /// reference to the folio as long as it uses the state.
    pub(crate) fn of(frame: &Frame) -> Option<&Self> {
        // SAFETY: the pointer is null or from `attach`. Its target lives until `detach`, which is
        // called when there are no references any more.
        unsafe { frame.state.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the state of the folio of `length` bytes that `frame` heads, and creates it if there
    /// is none. The caller has the folio locked.
    pub(crate) fn attach(frame: &Frame, length: usize, block_shift: u32) -> &Self {
        if let Some(state) = Self::of(frame) {
            return state;
        }
        let blocks = (length >> block_shift) as u32;
        let state = Self {
            block_shift,
            blocks,
            pending: AtomicU32::new(0),
            uptodate: Bits::new(blocks),
            dirty: Bits::new(blocks),
        };
        if frame.is_uptodate() {
            state.set_uptodate(0..length);
        }
        if frame.is_dirty() {
            state.set_dirty(0..length);
        }
        state.attach_to(frame)
    }

    /// Makes this the state of the folio that `frame` heads, which has none. The caller has the
    /// folio locked, or owns the frame.
    fn attach_to(self, frame: &Frame) -> &Self {
        let state = Box::into_raw(Box::new(self));
        // Only the thread that has the folio locked does this, so this replaces no other state.
        frame.state.store(state, Ordering::Release);
        // SAFETY: it was just created, and lives until `detach`. The caller holds a reference.
        unsafe { &*state }
    }

    /// Copies the state of `from`, if there is one, to `to`. The caller has the folio of `from`
    /// locked, and owns `to`.
    pub(crate) fn copy(from: &Frame, to: &Frame) {
        if let Some(state) = Self::of(from) {
            let copy = Self {
                block_shift: state.block_shift,
                blocks: state.blocks,
                pending: AtomicU32::new(0),
                uptodate: state.uptodate.copy(),
                dirty: state.dirty.copy(),
            };
            copy.attach_to(to);
        }
    }

    /// Frees the state, if there is one, of a folio without references.
    pub(crate) fn detach(frame: &Frame) {
        let state = frame.state.load(Ordering::Relaxed);
        if !state.is_null() {
            frame.state.store(std::ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: from `Box::into_raw` in `attach_to`. No thread holds a reference to the
            // folio, so none uses the state, and it is not reachable any more.
            drop(unsafe { Box::from_raw(state) });
        }
    }

    /// Adds `bytes` to the pending count.
    pub(crate) fn add_pending(&self, bytes: u32) {
        self.pending.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts `bytes` from the pending count. Returns whether it is zero now. Acquire: the
    /// caller sees what other threads did before they subtracted.
    pub(crate) fn end_pending(&self, bytes: u32) -> bool {
        self.pending.fetch_sub(bytes, Ordering::AcqRel) == bytes
    }

    /// Marks the blocks of a byte range uptodate.
    pub(crate) fn set_uptodate(&self, range: Range<usize>) {
        self.uptodate.set(self.blocks_of(range), true);
    }

    /// Returns how many of `length` bytes from `start` on are in adjacent blocks that are uptodate,
    /// or that are not if `uptodate` is false. Acquire: uptodate bytes can be read.
    pub(crate) fn run(&self, start: usize, length: usize, uptodate: bool) -> usize {
        self.run_of(&self.uptodate, start, length, uptodate)
    }

    /// Marks the blocks of a byte range dirty. Returns the number of bytes in blocks that were
    /// clean.
    pub(crate) fn set_dirty(&self, range: Range<usize>) -> usize {
        self.dirty.set(self.blocks_of(range), true) << self.block_shift
    }

    /// Marks the blocks of a byte range clean. Returns the number of bytes in blocks that were
    /// dirty.
    pub(crate) fn set_clean(&self, range: Range<usize>) -> usize {
        self.dirty.set(self.blocks_of(range), false) << self.block_shift
    }

    /// Returns how many of `length` bytes from `start` on are in adjacent blocks that are dirty, or
    /// that are not if `dirty` is false.
    pub(crate) fn dirty_run(&self, start: usize, length: usize, dirty: bool) -> usize {
        self.run_of(&self.dirty, start, length, dirty)
    }

    fn blocks_of(&self, range: Range<usize>) -> Range<usize> {
        range.start >> self.block_shift..range.end.div_ceil(1 << self.block_shift)
    }

    fn run_of(&self, bits: &Bits, start: usize, length: usize, set: bool) -> usize {
        let end = start + length;
        let blocks = self.blocks_of(start..end);
        let run_end = blocks.start + bits.run(blocks, set);
        (run_end << self.block_shift).clamp(start, end) - start
    }

    /// Returns whether all blocks are uptodate.
    pub(crate) fn is_complete(&self) -> bool {
        let length = (self.blocks as usize) << self.block_shift;
        self.run(0, length, true) == length
    }
}

/// One bit for each block.
#[derive(Debug)]
struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(blocks: u32) -> Self {
        Self((0..blocks.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect())
    }

    fn copy(&self) -> Self {
        let word = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Self(self.0.iter().map(word).collect())
    }

    /// Sets or clears the bits of `blocks`. Returns the number of changed bits. Release: a thread
    /// that sees a bit set sees what was done before.
    fn set(&self, blocks: Range<usize>, set: bool) -> usize {
        let mut block = blocks.start;
        let mut changed = 0;
        while block < blocks.end {
            let bit = block % 64;
            let count = (blocks.end - block).min(64 - bit);
            let mask = u64::MAX >> (64 - count) << bit;
            let word = &self.0[block / 64];
            let before = if set {
                !word.fetch_or(mask, Ordering::Release)
            } else {
                word.fetch_and(!mask, Ordering::Release)
            };
            changed += (before & mask).count_ones() as usize;
            block += count;
        }
        changed
    }

    /// Returns how many of `blocks`, from the first one on, have a bit that equals `set`.
    fn run(&self, blocks: Range<usize>, set: bool) -> usize {
        let mut block = blocks.start;
        while block < blocks.end {
            let word = self.0[block / 64].load(Ordering::Acquire);
            let word = if set { !word } else { word };
            // The distance to the first bit of the other kind in this word.
            let run = (word >> (block % 64)).trailing_zeros() as usize;
            block += run.min(64 - block % 64);
            if block % 64 != 0 || run == 0 {
                break;
            }
        }
        block.min(blocks.end) - blocks.start
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_uptodate_one_by_one() {
        let frame = Frame::default();
        assert!(FolioState::of(&frame).is_none());
        let state = FolioState::attach(&frame, 128 << 10, 10);
        assert_eq!(state.run(0, 128 << 10, false), 128 << 10);
        state.set_uptodate(60 << 10..70 << 10);
        for (start, length, uptodate, run) in [
            (60 << 10, 68 << 10, true, 10 << 10),
            (0, 128 << 10, false, 60 << 10),
            ((61 << 10) + 5, 8 << 10, true, 8 << 10),
            ((61 << 10) + 5, 10 << 10, true, (9 << 10) - 5),
            (59 << 10, 2 << 10, true, 0),
            (69 << 10, 9 << 10, false, 0),
            (70 << 10, 20 << 10, false, 20 << 10),
            (0, 0, true, 0),
        ] {
            assert_eq!(state.run(start, length, uptodate), run, "{start} {length} {uptodate}");
        }
        assert!(!state.is_complete());
        state.set_uptodate(0..60 << 10);
        state.set_uptodate(70 << 10..128 << 10);
        assert!(state.is_complete());
        FolioState::detach(&frame);
        assert!(FolioState::of(&frame).is_none());
    }

    #[test]
    fn the_end_of_the_last_pending_bytes_is_reported() {
        let frame = Frame::default();
        let state = FolioState::attach(&frame, 8192, 12);
        state.add_pending(1);
        state.add_pending(4096);
        assert!(!state.end_pending(1));
        state.add_pending(4096);
        assert!(!state.end_pending(4096));
        assert!(state.end_pending(4096));
        FolioState::detach(&frame);
    }
}
