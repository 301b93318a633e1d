//! The state of a folio whose blocks come from more than one place, or did not all arrive: which
//! blocks are uptodate, and how many bytes are still on their way.
//! Not here: when a folio needs one (`fill.rs`).
//!
//! Rules: only who has the folio locked attaches a state; it stays until the folio is freed. So who
//! holds a reference to the folio may use a state that it sees.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::frame::Frame;

/// The state of one folio.
#[derive(Debug)]
pub(crate) struct FolioState {
    /// log2 of the bytes in a block.
    block_shift: u32,
    blocks: u32,
    /// Bytes that are being read, and one more while the reads are being made up.
    pending: AtomicU32,
    /// One bit for each block.
    uptodate: Box<[AtomicU64]>,
}

impl FolioState {
    /// The state of the folio that `frame` heads. The caller holds a reference to the folio for as
    /// long as it uses the state.
    pub(crate) fn of(frame: &Frame) -> Option<&Self> {
        // SAFETY: the pointer is null or from `attach`, and what it points to lives until `detach`,
        // which is called when nobody holds a reference any more.
        unsafe { frame.state.load(Ordering::Acquire).as_ref() }
    }

    /// The state of the folio of `length` bytes that `frame` heads and the caller has locked; made
    /// if it has none.
    pub(crate) fn attach(frame: &Frame, length: usize, block_shift: u32) -> &Self {
        if let Some(state) = Self::of(frame) {
            return state;
        }
        let blocks = (length >> block_shift) as u32;
        let words = (0..blocks.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect();
        let state = Self { block_shift, blocks, pending: AtomicU32::new(0), uptodate: words };
        let state = Box::into_raw(Box::new(state));
        // Only who has the folio locked does this, so there is none that this would replace.
        frame.state.store(state, Ordering::Release);
        // SAFETY: just made; it lives until `detach`, and the caller holds a reference.
        unsafe { &*state }
    }

    /// Frees the state, if there is one, of a folio that nobody holds any more.
    pub(crate) fn detach(frame: &Frame) {
        let state = frame.state.load(Ordering::Relaxed);
        if !state.is_null() {
            frame.state.store(std::ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: from `Box::into_raw` in `attach`; nobody holds a reference to the folio, so
            // nobody uses it, and it is not reachable any more.
            drop(unsafe { Box::from_raw(state) });
        }
    }

    /// Adds bytes that are on their way.
    pub(crate) fn add_pending(&self, bytes: u32) {
        self.pending.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes bytes off again; whether they were the last. Acquire: with what the others did before.
    pub(crate) fn end_pending(&self, bytes: u32) -> bool {
        self.pending.fetch_sub(bytes, Ordering::AcqRel) == bytes
    }

    /// Marks the blocks of a byte range uptodate.
    pub(crate) fn set_uptodate(&self, range: Range<usize>) {
        let mut block = range.start >> self.block_shift;
        let end = range.end.div_ceil(1 << self.block_shift);
        while block < end {
            let bit = block % 64;
            let count = (end - block).min(64 - bit);
            let mask = u64::MAX >> (64 - count) << bit;
            self.uptodate[block / 64].fetch_or(mask, Ordering::Release);
            block += count;
        }
    }

    /// How many of `length` bytes from `start` on lie in blocks that are uptodate, or that are not.
    /// Acquire: those that are can be read.
    pub(crate) fn run(&self, start: usize, length: usize, uptodate: bool) -> usize {
        let end = start + length;
        let mut block = start >> self.block_shift;
        while block << self.block_shift < end {
            let word = self.uptodate[block / 64].load(Ordering::Acquire);
            let word = if uptodate { !word } else { word };
            // The distance to the first block of the other kind, as far as this word tells.
            let run = (word >> (block % 64)).trailing_zeros() as usize;
            block += run.min(64 - block % 64);
            if block % 64 != 0 || run == 0 {
                break;
            }
        }
        (block << self.block_shift).clamp(start, end) - start
    }

    /// Whether all blocks are uptodate.
    pub(crate) fn is_complete(&self) -> bool {
        let length = (self.blocks as usize) << self.block_shift;
        self.run(0, length, true) == length
    }
}

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
    fn the_last_pending_byte_is_told() {
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
