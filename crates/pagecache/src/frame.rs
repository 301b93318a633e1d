//! Frame descriptors: the references, folio and flags of one 4 KiB frame of memory. All fields are
//! atomic, and a descriptor exists as long as the cache. So a reader may examine any frame at any
//! time, and check afterwards whether it is the right one. Not here: the memory itself, and the
//! tree that leads to frames.
//!
//! Invariants (`R` for reference):
//!
//! - **R1.** A frame heads a folio exactly while it is LIVE. Its span, owner and state change only
//!   while it is not LIVE, and only by the one thread that allocated it from the pool or cleared
//!   LIVE. So the holder of a reference to a LIVE frame has a folio that keeps its identity.
//! - **R2.** A frame is CACHED exactly while its owner's tree contains it. Both change together
//!   under the tree's lock.
//! - **R3.** LIVE is cleared once, by a compare-exchange from "live, not cached, no references"
//!   (the last holder) or "live, cached, no references" (reclaim, under the tree's lock). The
//!   thread that clears it returns the memory to the pool.
//! - **R4.** A reader adds itself to the count first and examines the frame afterwards (`try_get`).
//!   On a frame that is not LIVE the count has no meaning. It is never set, only added to, so that
//!   the addition and the subtraction of such a reader cancel out even if the frame becomes LIVE in
//!   between.
//! - **R5.** Blocks that are not uptodate are written only by the holder of LOCKED. Uptodate blocks
//!   of file data are written only by a thread that holds both the inode's lock alone and LOCKED,
//!   while the folio is not under writeback (a device reads data that does not change) and not
//!   lent. Readers hold the inode's lock shared; borrowers do not, and are counted. A writer that
//!   finds a folio lent replaces it by a copy. Uptodate blocks of metadata are never written.
//!   Programs that map a file store to it without a lock while the folio is STORABLE
//!   (`mmap/mod.rs`, W3): then no device reads it, and it is not lent.
//! - **R6.** A DIRTY folio is in its mapping's set of dirty folios, and one under WRITEBACK in its
//!   set of those; no folio is in both. Each set holds a reference, so reclaim takes neither. Both
//!   flags are set under LOCKED; WRITEBACK is cleared without it.
//! - **R7.** A DROPBEHIND folio is cached for uncached reads and writes only; a lookup by any other
//!   access clears the flag. When the read or write is over, the folio is also DONE, and the tree's
//!   own hold on it ends: it leaves the cache with its last reference. So no code needs to check
//!   whether it is dirty, under writeback, locked or lent, all of which hold references (R6), and a
//!   thread that finds other references need not come back for it. Both bits are in the count's
//!   word, so the thread that drops the last reference reads the bits and the count at once.

use crate::state::FolioState;
use base::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, WaitQueue};

/// Set while the frame heads a folio.
const LIVE: u32 = 1 << 31;
/// Set while a mapping's tree holds the folio.
const CACHED: u32 = 1 << 30;
/// Set while the folio is cached for uncached reads and writes only (R7).
const DROPBEHIND: u32 = 1 << 29;
/// Set while such a folio was read or written, and is not needed any more (R7).
const DONE: u32 = 1 << 28;
/// The word of a folio that leaves the cache with its last reference, without the count.
const BEHIND: u32 = LIVE | CACHED | DROPBEHIND | DONE;

/// All blocks hold the file's data.
const UPTODATE: u32 = 1 << 0;
/// A thread fills the folio.
const LOCKED: u32 = 1 << 1;
/// A thread waits for LOCKED or WRITEBACK to be cleared.
const WAITERS: u32 = 1 << 2;
/// The next reader of this folio starts the next readahead window.
const READAHEAD: u32 = 1 << 3;
/// Visited once.
const VISITED: u32 = 1 << 4;
/// Visited again since.
const REVISITED: u32 = 1 << 5;
/// The memory is known to be all zeroes. This belongs to the memory: it outlives the folio.
const BLANK: u32 = 1 << 6;
/// Some blocks differ from the device's.
const DIRTY: u32 = 1 << 7;
/// Blocks are under writeback.
const WRITEBACK: u32 = 1 << 16;
/// The memory is not the arena's own any more, or not contiguous with its neighbours' in the host:
/// it is renewed before it is used for another folio.
const FOREIGN: u32 = 1 << 24;
/// Bytes may be stored to through a window without a fault.
const STORABLE: u32 = 1 << 25;
/// The first of the marks whose meaning the folio's user defines. They are cleared with the folio.
const MARK: u32 = 1 << 8;
/// The number of marks.
pub(crate) const MARKS: u32 = 8;

/// The pages of a file that a folio contains: the index of the first one, and the folio's order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) index: u64,
    pub(crate) order: u8,
}

impl Span {
    fn pack(self) -> u64 {
        self.index << 4 | u64::from(self.order)
    }

    fn unpack(packed: u64) -> Self {
        Self { index: packed >> 4, order: (packed & 15) as u8 }
    }

    /// Returns the number of pages.
    pub(crate) fn pages(self) -> u64 {
        1 << self.order
    }

    /// Returns the index of the page after the last one.
    pub(crate) fn end(self) -> u64 {
        self.index + self.pages()
    }
}

/// One frame. All zeroes is a frame that is not live and has no references.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Frame {
    /// LIVE, CACHED, DROPBEHIND, DONE, and a count of references.
    reference: AtomicU32,
    flags: AtomicU32,
    /// The id of the mapping to which the folio belongs.
    owner: AtomicU64,
    /// A packed [`Span`].
    span: AtomicU64,
    /// The folio's per-block state, or null. `state.rs` has the rules.
    pub(crate) state: AtomicPtr<FolioState>,
    /// The neighbours in a list of free blocks, and the block that this frame begins; see
    /// `buddy.rs`. All three are under the pool's lock.
    pub(crate) previous: AtomicU32,
    pub(crate) next: AtomicU32,
    pub(crate) free: AtomicU32,
    /// The number of loans of the folio's bytes to threads that do not hold the inode's lock.
    lent: AtomicU32,
    /// How many of the folio's pages, from the first one on, are in its file's memory
    /// (`mmap/file_pages.rs`).
    in_file: AtomicU32,
}

/// The result of dropping a reference.
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Put {
    /// The folio has other references, or is cached.
    Held,
    /// It was the last reference: the caller returns the folio to the pool.
    Last,
    /// It was the last reference to a DONE folio that is still cached: the caller removes the folio
    /// from the cache ([`Frame::claim_behind`]).
    Behind,
}

impl Frame {
    /// Makes a frame, which the caller has allocated from the pool, a locked folio with two
    /// references: the caller's, and that of the tree to which the caller adds it.
    pub(crate) fn make_live(&self, owner: u64, span: Span) {
        self.owner.store(owner, Ordering::Relaxed);
        self.span.store(span.pack(), Ordering::Relaxed);
        let blank = self.flags.load(Ordering::Relaxed) & BLANK;
        self.flags.store(LOCKED | blank, Ordering::Relaxed);
        // R4: an addition. Release: a thread that adds itself to the count afterwards sees the
        // stores above.
        let before = self.reference.fetch_add(LIVE | CACHED | 1, Ordering::Release);
        debug_assert_eq!(before & (LIVE | CACHED), 0, "a frame from the pool is live");
    }

    /// Takes a reference to the folio with page `page` of `owner`, if this frame heads it. The
    /// error is the result of dropping the reference that was taken to find that out.
    #[inline]
    pub(crate) fn try_get(&self, owner: u64, page: u64) -> Result<(), Put> {
        let before = self.reference.fetch_add(1, Ordering::Acquire);
        if before & LIVE != 0 {
            // R1: the identity does not change any more.
            let span = Span::unpack(self.span.load(Ordering::Relaxed));
            if self.owner.load(Ordering::Relaxed) == owner
                && page >> span.order == span.index >> span.order
            {
                return Ok(());
            }
        }
        Err(self.put())
    }

    /// Takes another reference for a holder of one.
    #[inline]
    pub(crate) fn get_again(&self) {
        let before = self.reference.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before & LIVE != 0 && before & !BEHIND != 0, "no reference held");
    }

    /// Drops a reference.
    #[inline]
    pub(crate) fn put(&self) -> Put {
        // Release: what was read from the folio's memory was read before.
        let before = self.reference.fetch_sub(1, Ordering::Release);
        if before == LIVE | 1 {
            self.release()
        } else if before == BEHIND | 1 {
            Put::Behind
        } else {
            Put::Held
        }
    }

    /// Clears CACHED of a folio that the caller has just removed from the tree, whose lock it
    /// holds.
    pub(crate) fn uncache(&self) -> Put {
        let before = self.reference.fetch_and(!(CACHED | DROPBEHIND | DONE), Ordering::Release);
        debug_assert!(before & CACHED != 0, "not cached");
        if before & !(DROPBEHIND | DONE) == LIVE | CACHED { self.release() } else { Put::Held }
    }

    /// Claims a folio without references for eviction by the caller, which holds the lock of the
    /// folio's tree.
    pub(crate) fn claim(&self) -> bool {
        let behind = self.reference.load(Ordering::Relaxed) & (DROPBEHIND | DONE);
        self.clear_live(LIVE | CACHED | behind)
    }

    /// Claims a folio without references, like [`claim`](Self::claim), if it is DONE (R7). Fails if
    /// another thread has taken a reference: then the folio stays, or leaves the cache with that
    /// reference.
    pub(crate) fn claim_behind(&self) -> bool {
        self.clear_live(BEHIND)
    }

    /// Marks a folio, which the caller has just created and has locked, as DROPBEHIND (R7).
    pub(crate) fn set_dropbehind(&self) {
        let before = self.reference.fetch_or(DROPBEHIND, Ordering::Relaxed);
        debug_assert!(before & (LIVE | CACHED) == LIVE | CACHED, "not new");
    }

    /// Returns whether the folio is for uncached reads and writes only.
    #[inline]
    pub(crate) fn is_dropbehind(&self) -> bool {
        self.reference.load(Ordering::Relaxed) & DROPBEHIND != 0
    }

    /// Marks a DROPBEHIND folio as DONE. The caller holds a reference.
    pub(crate) fn set_done(&self) {
        let done = |word: u32| (word & (DROPBEHIND | DONE) == DROPBEHIND).then_some(word | DONE);
        // Relaxed: all information is in this one word, whose changes have one order. An `Err`
        // means that the folio is not DROPBEHIND any more, or is DONE already.
        let _ = self.reference.fetch_update(Ordering::Relaxed, Ordering::Relaxed, done);
    }

    /// Makes a DROPBEHIND folio an ordinary one. The caller holds a reference.
    #[inline]
    pub(crate) fn keep(&self) {
        if self.is_dropbehind() {
            self.reference.fetch_and(!(DROPBEHIND | DONE), Ordering::Relaxed);
        }
    }

    /// Copies DROPBEHIND and DONE from `other`, whose folio this frame's folio replaces. The caller
    /// holds the lock of the tree.
    pub(crate) fn copy_dropbehind(&self, other: &Frame) {
        let behind = other.reference.load(Ordering::Relaxed) & (DROPBEHIND | DONE);
        self.reference.fetch_or(behind, Ordering::Relaxed);
    }

    /// Clears LIVE, if no other thread does it first (R3). Several threads may find the count at
    /// zero; one of them wins. The frame may have been freed and reused in between: then the winner
    /// frees the new folio, and the new folio's last holder loses.
    #[cold]
    fn release(&self) -> Put {
        if self.clear_live(LIVE) { Put::Last } else { Put::Held }
    }

    fn clear_live(&self, from: u32) -> bool {
        // Acquire: every use of the memory by former holders of references is over.
        self.reference.compare_exchange(from, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Returns the folio's span. Certain while the caller holds a reference or owns the frame,
    /// otherwise a hint.
    #[inline]
    pub(crate) fn span(&self) -> Span {
        Span::unpack(self.span.load(Ordering::Relaxed))
    }

    /// Returns the id of the owner. Certain or a hint, like [`span`](Self::span).
    pub(crate) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Returns whether reclaim should try to evict the folio. Clears REVISITED, so that the folio
    /// is evicted the next time unless it is visited once more.
    pub(crate) fn is_evictable(&self) -> bool {
        if self.reference.load(Ordering::Relaxed) & !(DROPBEHIND | DONE) != LIVE | CACHED {
            return false;
        }
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & REVISITED != 0 {
            self.flags.fetch_and(!REVISITED, Ordering::Relaxed);
        }
        flags & REVISITED == 0
    }

    /// Returns whether the frame heads a folio. A hint.
    pub(crate) fn is_live(&self) -> bool {
        self.reference.load(Ordering::Relaxed) & LIVE != 0
    }

    /// Records a visit. Folios that were visited once are evicted before folios that were visited
    /// again, so that streams of data do not evict data that is used repeatedly.
    #[inline]
    pub(crate) fn visit(&self) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & REVISITED == 0 {
            let next = if flags & VISITED == 0 { VISITED } else { REVISITED };
            self.flags.fetch_or(next, Ordering::Relaxed);
        }
    }

    /// Returns whether all blocks hold the file's data. Acquire: the data can be read if so.
    #[inline]
    pub(crate) fn is_uptodate(&self) -> bool {
        self.flags.load(Ordering::Acquire) & UPTODATE != 0
    }

    /// Sets the mark that starts a readahead window.
    pub(crate) fn set_readahead(&self) {
        self.flags.fetch_or(READAHEAD, Ordering::Relaxed);
    }

    /// Clears the mark that starts a readahead window. Returns true to only one of the threads that
    /// find it set.
    #[inline]
    pub(crate) fn take_readahead(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & READAHEAD != 0
            && self.flags.fetch_and(!READAHEAD, Ordering::Relaxed) & READAHEAD != 0
    }

    /// Sets whether the memory is all zeroes. The caller owns the frame, or has the folio locked.
    pub(crate) fn set_blank(&self, blank: bool) {
        if blank {
            self.flags.fetch_or(BLANK, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!BLANK, Ordering::Relaxed);
        }
    }

    /// Returns whether the memory is all zeroes. Callers as for [`set_blank`](Self::set_blank).
    pub(crate) fn is_blank(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & BLANK != 0
    }

    /// Returns whether mark `number` is set. Acquire: with what its setter did before.
    pub(crate) fn has_mark(&self, number: u32) -> bool {
        self.flags.load(Ordering::Acquire) & mark(number) != 0
    }

    /// Sets mark `number`.
    pub(crate) fn set_mark(&self, number: u32) {
        self.flags.fetch_or(mark(number), Ordering::Release);
    }

    /// Locks the folio if it is not locked. Returns whether it has done so.
    pub(crate) fn try_lock(&self) -> bool {
        self.flags.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0
    }

    /// Unlocks the folio, makes it uptodate if `uptodate`, and wakes the waiters in `bucket`.
    pub(crate) fn unlock(&self, uptodate: bool, bucket: &WaitQueue) {
        if uptodate {
            self.set_uptodate();
        }
        self.end(LOCKED, bucket);
    }

    /// Marks all blocks as uptodate. The caller has the folio locked.
    pub(crate) fn set_uptodate(&self) {
        self.flags.fetch_or(UPTODATE, Ordering::Release);
    }

    /// Waits until the folio is not locked.
    pub(crate) fn wait_unlocked(&self, bucket: &WaitQueue) {
        self.wait_for(LOCKED, bucket);
    }

    /// Returns whether some blocks differ from the device's. Certain while the caller has the folio
    /// locked.
    pub(crate) fn is_dirty(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DIRTY != 0
    }

    /// Sets whether some blocks differ from the device's. The caller has the folio locked.
    pub(crate) fn set_dirty(&self, dirty: bool) {
        if dirty {
            self.flags.fetch_or(DIRTY, Ordering::Release);
        } else {
            self.flags.fetch_and(!DIRTY, Ordering::Release);
        }
    }

    /// Returns whether blocks are under writeback. Acquire: if not, the device does not read them
    /// any more.
    pub(crate) fn is_under_writeback(&self) -> bool {
        self.flags.load(Ordering::Acquire) & WRITEBACK != 0
    }

    /// Clears DIRTY and sets WRITEBACK. The caller has the folio locked.
    pub(crate) fn start_writeback(&self) {
        // In this order: a thread that sees neither flag knows that the folio equals the device's
        // data.
        let before = self.flags.fetch_or(WRITEBACK, Ordering::Release);
        debug_assert!(before & WRITEBACK == 0 && before & DIRTY != 0, "not dirty alone");
        self.flags.fetch_and(!DIRTY, Ordering::Release);
    }

    /// Ends the writeback, and wakes the waiters in `bucket`.
    pub(crate) fn end_writeback(&self, bucket: &WaitQueue) {
        self.end(WRITEBACK, bucket);
    }

    /// Waits until no blocks are under writeback.
    pub(crate) fn wait_writeback(&self, bucket: &WaitQueue) {
        self.wait_for(WRITEBACK, bucket);
    }

    /// Waits until no blocks are under writeback, or until the request that this thread serves is
    /// cancelled.
    pub(crate) fn wait_writeback_cancellable(&self, bucket: &WaitQueue) -> base::Result<()> {
        if !self.is_under_writeback() {
            return Ok(());
        }
        base::waiting::about_to_wait();
        let is_over = || self.flags.fetch_or(WAITERS, Ordering::Acquire) & WRITEBACK == 0;
        loop {
            base::cancellation::check()?;
            // A cancelled wait leaves WAITERS set. The end of the writeback then wakes other
            // waiters, or none.
            if bucket.wait_until_or_for(base::cancellation::CHECK_EVERY, is_over) {
                return Ok(());
            }
        }
    }

    /// Clears `flag` and wakes the waiters in `bucket`. Waiters for the other flag set WAITERS
    /// again.
    fn end(&self, flag: u32, bucket: &WaitQueue) {
        let before = self.flags.fetch_and(!(flag | WAITERS), Ordering::Release);
        debug_assert!(before & flag != 0, "not begun");
        if before & WAITERS != 0 {
            bucket.wake_all();
        }
    }

    /// Waits until `flag` is clear.
    ///
    /// A waiter sets WAITERS and reads the flag in one atomic operation, under the bucket's lock.
    /// So either the thread that clears the flag finds WAITERS set, and gets the bucket's lock only
    /// once the waiter waits, or the waiter finds the flag clear.
    fn wait_for(&self, flag: u32, bucket: &WaitQueue) {
        if self.flags.load(Ordering::Acquire) & flag != 0 {
            base::waiting::about_to_wait();
            bucket.wait_until(|| self.flags.fetch_or(WAITERS, Ordering::Acquire) & flag == 0);
        }
    }

    /// Counts a borrower of the folio's bytes, which holds a reference. Called under the inode's
    /// lock, or by a borrower.
    pub(crate) fn lend(&self) {
        self.lent.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a borrower from the count. Release: its reads come before.
    pub(crate) fn end_lending(&self) {
        let before = self.lent.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "not lent");
    }

    /// Returns whether bytes of the folio are lent. Certain, if not, while the inode's lock is held
    /// alone.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire) != 0
    }

    /// Returns how many pages, from the first one on, are in the file's memory. Certain, like the
    /// following ones, while the caller has the folio locked, or owns the frame.
    pub(crate) fn pages_in_file(&self) -> u32 {
        self.in_file.load(Ordering::Relaxed)
    }

    /// Sets how many pages are in the file's memory. The memory is foreign from the first one on.
    pub(crate) fn set_pages_in_file(&self, pages: u32) {
        self.in_file.store(pages, Ordering::Relaxed);
    }

    /// Marks the memory as foreign. Returns whether it was not.
    pub(crate) fn set_foreign(&self) -> bool {
        self.flags.fetch_or(FOREIGN, Ordering::Relaxed) & FOREIGN == 0
    }

    /// Returns whether the memory is foreign, and must be renewed before it is used for another
    /// folio.
    pub(crate) fn is_foreign(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & FOREIGN != 0
    }

    /// Marks the memory, which the caller owns, as renewed: it is the arena's own, and zeroes.
    pub(crate) fn set_renewed(&self) {
        self.in_file.store(0, Ordering::Relaxed);
        self.flags.fetch_and(!FOREIGN, Ordering::Relaxed);
        self.set_blank(true);
    }

    /// Sets whether bytes may be stored to without a fault. The caller has the folio locked.
    pub(crate) fn set_storable(&self, storable: bool) {
        if storable {
            self.flags.fetch_or(STORABLE, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!STORABLE, Ordering::Relaxed);
        }
    }

    /// Returns whether bytes may be stored to without a fault. Certain while the caller has the
    /// folio locked.
    pub(crate) fn is_storable(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & STORABLE != 0
    }

    /// Returns whether the tree contains the folio. Certain under the tree's lock.
    pub(crate) fn is_cached(&self) -> bool {
        self.reference.load(Ordering::Relaxed) & CACHED != 0
    }
}

fn mark(number: u32) -> u32 {
    assert!(number < MARKS, "no such mark");
    MARK << number
}

#[cfg(all(test, loom))]
mod model;
