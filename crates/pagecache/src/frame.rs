//! The descriptor of one 4 KiB frame of memory: who refers to it, which folio it heads, its flags.
//! All of it is atomic, and it stays in place as long as the cache, so that a reader may look at
//! any frame at any time and find out afterwards whether it is the one it wanted.
//! Not here: the memory itself, and the tree that leads to frames.
//!
//! Invariants (`R` for reference):
//!
//! - **R1.** A frame heads a folio exactly while it is LIVE. Its place, owner, order and state
//!   change only while it is not, and only by the one thread that took it from the pool or
//!   cleared LIVE. So whoever holds a reference to a LIVE frame sees a folio that keeps its
//!   identity.
//! - **R2.** A frame is CACHED exactly while its owner's tree holds it; both change together under
//!   that tree's lock.
//! - **R3.** LIVE is cleared once, by a compare-exchange from "live, not cached, no references"
//!   (the last holder) or "live, cached, no references" (reclaim, under the tree's lock). Who
//!   clears it returns the memory to the pool.
//! - **R4.** A reader counts itself in first and looks afterwards (`try_get`). On a frame that is
//!   not LIVE the count means nothing, and is never set, only added to: so that what such a reader
//!   adds and subtracts cancels out even when the frame becomes LIVE between.
//! - **R5.** Blocks that are not uptodate are written only by who holds LOCKED. Blocks of file data
//!   that are uptodate are written only by who holds the inode's lock alone and LOCKED as well,
//!   while the folio is not under writeback (what a device reads stays as it is) and not lent.
//!   Readers hold the inode's lock together, save those who were lent bytes: they are counted. A
//!   writer that finds a folio lent puts a copy in its place. Uptodate blocks of metadata are
//!   written by nobody. Who has a file mapped stores to it without any lock, where the folio is
//!   STORABLE (`mmap/mod.rs`, W3), and to nothing that a device reads or that is lent.
//! - **R6.** A folio that is DIRTY is in its mapping's set of dirty folios, one under WRITEBACK in
//!   its set of those, none in both, and each set holds a reference: so reclaim leaves them alone.
//!   Both begin under LOCKED; WRITEBACK ends without.
//! - **R7.** A folio that is DROPBEHIND is in the cache on behalf of uncached reads and writes alone;
//!   a lookup by anybody else makes it one like others. When it is also DONE, because such a read or
//!   write needs it no more, the tree holds it no more on its own: it goes with its last reference,
//!   whoever has that. So nothing has to look whether it is dirty, under writeback, locked or lent,
//!   all of which hold references (R6), and whoever has others' references in the way need not come
//!   back for it. Both bits are in the count's word: what ends the folio sees them and the count at
//!   one moment.

use std::sync::atomic::AtomicPtr;

use crate::state::FolioState;
use crate::sync::{AtomicU32, AtomicU64, Bucket, Ordering};

/// Set while the frame heads a folio.
const LIVE: u32 = 1 << 31;
/// Set while a mapping's tree holds the folio.
const CACHED: u32 = 1 << 30;
/// Set while the folio is cached for uncached reads and writes only (R7).
const DROPBEHIND: u32 = 1 << 29;
/// Set while such a folio has been read or written (R7).
const DONE: u32 = 1 << 28;
/// What a folio that goes with its last reference has in its word, beside the count.
const BEHIND: u32 = LIVE | CACHED | DROPBEHIND | DONE;

/// All blocks hold the file's data.
const UPTODATE: u32 = 1 << 0;
/// Somebody fills the folio.
const LOCKED: u32 = 1 << 1;
/// Somebody waits for LOCKED or WRITEBACK to go.
const WAITERS: u32 = 1 << 2;
/// Whoever reads this folio first starts the next readahead window.
const READAHEAD: u32 = 1 << 3;
/// Visited once, and again.
const VISITED: u32 = 1 << 4;
const REVISITED: u32 = 1 << 5;
/// The memory is known to be all zeroes. Goes with the memory: it survives the folio.
const BLANK: u32 = 1 << 6;
/// Some blocks differ from the device's.
const DIRTY: u32 = 1 << 7;
/// Blocks are on their way to the device.
const WRITEBACK: u32 = 1 << 16;
/// The memory is not the arena's own any more, or not in one piece with its neighbours': it is made
/// new before anybody else gets it.
const FOREIGN: u32 = 1 << 24;
/// Bytes may be stored to through a window, without anybody hearing of it.
const STORABLE: u32 = 1 << 25;
/// The first of the marks that the folio's user gives a meaning; they are cleared with the folio.
const MARK: u32 = 1 << 8;
/// How many marks there are.
pub(crate) const MARKS: u32 = 8;

/// Where a folio lies in its file: the index of its first page, and its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) index: u64,
    pub(crate) order: u8,
}

impl Place {
    fn pack(self) -> u64 {
        self.index << 4 | u64::from(self.order)
    }

    fn unpack(packed: u64) -> Self {
        Self { index: packed >> 4, order: (packed & 15) as u8 }
    }

    /// The number of pages.
    pub(crate) fn pages(self) -> u64 {
        1 << self.order
    }

    /// The index of the page after the last one.
    pub(crate) fn end(self) -> u64 {
        self.index + self.pages()
    }
}

/// One frame. All zeroes is a frame that is not live and that nobody refers to.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Frame {
    /// LIVE, CACHED, DROPBEHIND, DONE, and a count of references.
    reference: AtomicU32,
    flags: AtomicU32,
    /// The id of the mapping that the folio was made for.
    owner: AtomicU64,
    /// A packed [`Place`].
    place: AtomicU64,
    /// The folio's per-block state, or null. `state.rs` has the rules.
    pub(crate) state: AtomicPtr<FolioState>,
    /// The neighbours in a list of free blocks, and which block this frame begins; see `buddy.rs`.
    /// All three belong to the pool's lock.
    pub(crate) previous: AtomicU32,
    pub(crate) next: AtomicU32,
    pub(crate) free: AtomicU32,
    /// How often the folio's bytes are lent to those who do not hold the inode's lock.
    lent: AtomicU32,
    /// How many of the folio's pages, from the first on, are its file's memory (`mmap/place.rs`).
    in_file: AtomicU32,
}

/// What came of giving up a reference.
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Put {
    /// Others hold the folio, or its mapping does.
    Held,
    /// It was the last one: the caller returns the folio to the pool.
    Last,
    /// It was the last one to a folio that is done with, and still in the cache: the caller takes it
    /// out ([`Frame::claim_behind`]).
    Behind,
}

impl Frame {
    /// Makes a frame, which the caller has from the pool, a locked folio with two holders: the tree
    /// that the caller is about to put it into, and the caller.
    pub(crate) fn make_live(&self, owner: u64, place: Place) {
        self.owner.store(owner, Ordering::Relaxed);
        self.place.store(place.pack(), Ordering::Relaxed);
        let blank = self.flags.load(Ordering::Relaxed) & BLANK;
        self.flags.store(LOCKED | blank, Ordering::Relaxed);
        // R4: an addition. Release: who counts itself in afterwards sees the stores above.
        let before = self.reference.fetch_add(LIVE | CACHED | 1, Ordering::Release);
        debug_assert_eq!(before & (LIVE | CACHED), 0, "a frame from the pool is live");
    }

    /// Takes a reference to the folio that holds page `page` of `owner`, if that is what this frame
    /// heads. `Err` gives what the reference that was taken to find that out came to.
    #[inline]
    pub(crate) fn try_get(&self, owner: u64, page: u64) -> Result<(), Put> {
        let before = self.reference.fetch_add(1, Ordering::Acquire);
        if before & LIVE != 0 {
            // R1: the identity does not change any more.
            let place = Place::unpack(self.place.load(Ordering::Relaxed));
            if self.owner.load(Ordering::Relaxed) == owner
                && page >> place.order == place.index >> place.order
            {
                return Ok(());
            }
        }
        Err(self.put())
    }

    /// Another reference for somebody who holds one.
    #[inline]
    pub(crate) fn get_again(&self) {
        let before = self.reference.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before & LIVE != 0 && before & !BEHIND != 0, "no reference held");
    }

    /// Gives up a reference.
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

    /// Takes the folio, which the caller has just removed from the tree whose lock it holds, out of
    /// the cache.
    pub(crate) fn uncache(&self) -> Put {
        let before = self.reference.fetch_and(!(CACHED | DROPBEHIND | DONE), Ordering::Release);
        debug_assert!(before & CACHED != 0, "not cached");
        if before & !(DROPBEHIND | DONE) == LIVE | CACHED { self.release() } else { Put::Held }
    }

    /// Claims a folio without references to be evicted by the caller, which holds the lock of the
    /// tree that the folio is in.
    pub(crate) fn claim(&self) -> bool {
        let behind = self.reference.load(Ordering::Relaxed) & (DROPBEHIND | DONE);
        self.clear_live(LIVE | CACHED | behind)
    }

    /// As [`claim`](Self::claim), if the folio is done with (R7). Not when somebody came to it since
    /// the last reference was given up: then it is theirs, or goes with theirs.
    pub(crate) fn claim_behind(&self) -> bool {
        self.clear_live(BEHIND)
    }

    /// Says that the folio, which the caller has just made and has locked, is for uncached reads and
    /// writes only (R7).
    pub(crate) fn set_dropbehind(&self) {
        let before = self.reference.fetch_or(DROPBEHIND, Ordering::Relaxed);
        debug_assert!(before & (LIVE | CACHED) == LIVE | CACHED, "not new");
    }

    /// Whether the folio is for uncached reads and writes only.
    #[inline]
    pub(crate) fn is_dropbehind(&self) -> bool {
        self.reference.load(Ordering::Relaxed) & DROPBEHIND != 0
    }

    /// Has the folio go with its last reference if it is for uncached reads and writes only. The
    /// caller holds a reference.
    pub(crate) fn set_done(&self) {
        let done = |word: u32| (word & (DROPBEHIND | DONE) == DROPBEHIND).then_some(word | DONE);
        // Relaxed: the word says all, in the one order in which it changes. An `Err` says that the
        // folio stays, or goes already.
        let _ = self.reference.fetch_update(Ordering::Relaxed, Ordering::Relaxed, done);
    }

    /// Makes a folio that is for uncached reads and writes only one like others. The caller holds a
    /// reference.
    #[inline]
    pub(crate) fn keep(&self) {
        if self.is_dropbehind() {
            self.reference.fetch_and(!(DROPBEHIND | DONE), Ordering::Relaxed);
        }
    }

    /// Gives this frame, whose folio takes the place of that of `other`, what is known of who that
    /// is for. The caller holds the lock of the tree.
    pub(crate) fn copy_dropbehind(&self, other: &Frame) {
        let behind = other.reference.load(Ordering::Relaxed) & (DROPBEHIND | DONE);
        self.reference.fetch_or(behind, Ordering::Relaxed);
    }

    /// R3. Several may see the count at zero; one of them wins. That the frame may have had another
    /// life in between does not matter: then the winner ends that one, and its last holder loses.
    #[cold]
    fn release(&self) -> Put {
        if self.clear_live(LIVE) { Put::Last } else { Put::Held }
    }

    fn clear_live(&self, from: u32) -> bool {
        // Acquire: every use of the memory by those who gave up their references is over.
        self.reference.compare_exchange(from, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The folio's place. Certain while the caller holds a reference or owns the frame, otherwise a
    /// hint.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        Place::unpack(self.place.load(Ordering::Relaxed))
    }

    /// The owner; certain or a hint like [`place`](Self::place).
    pub(crate) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Whether reclaim should try to evict the folio. Takes the edge off one that was visited
    /// again, so that it goes the next time unless it is visited once more.
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

    /// Whether the frame heads a folio; a hint.
    pub(crate) fn is_live(&self) -> bool {
        self.reference.load(Ordering::Relaxed) & LIVE != 0
    }

    /// Notes a visit. A folio that was visited once goes before those that were visited again: data
    /// that streams through leaves the rest in the cache.
    #[inline]
    pub(crate) fn visit(&self) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & REVISITED == 0 {
            let next = if flags & VISITED == 0 { VISITED } else { REVISITED };
            self.flags.fetch_or(next, Ordering::Relaxed);
        }
    }

    /// Whether all blocks hold the file's data. Acquire: the data can be read if so.
    #[inline]
    pub(crate) fn is_uptodate(&self) -> bool {
        self.flags.load(Ordering::Acquire) & UPTODATE != 0
    }

    /// Sets the mark that starts a readahead window.
    pub(crate) fn set_readahead(&self) {
        self.flags.fetch_or(READAHEAD, Ordering::Relaxed);
    }

    /// Takes the mark that starts a readahead window: one of those who see it gets it.
    #[inline]
    pub(crate) fn take_readahead(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & READAHEAD != 0
            && self.flags.fetch_and(!READAHEAD, Ordering::Relaxed) & READAHEAD != 0
    }

    /// Says whether the memory is all zeroes. The caller owns the frame, or has the folio locked.
    pub(crate) fn set_blank(&self, blank: bool) {
        if blank {
            self.flags.fetch_or(BLANK, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!BLANK, Ordering::Relaxed);
        }
    }

    /// Whether the memory is all zeroes; for those who may say so.
    pub(crate) fn is_blank(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & BLANK != 0
    }

    /// Whether mark `number` is set. Acquire: with what its setter did before.
    pub(crate) fn has_mark(&self, number: u32) -> bool {
        self.flags.load(Ordering::Acquire) & mark(number) != 0
    }

    /// Sets mark `number`.
    pub(crate) fn set_mark(&self, number: u32) {
        self.flags.fetch_or(mark(number), Ordering::Release);
    }

    /// Locks the folio if nobody has.
    pub(crate) fn try_lock(&self) -> bool {
        self.flags.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0
    }

    /// Unlocks the folio, uptodate or as it was, and wakes who waits for that in `bucket`.
    pub(crate) fn unlock(&self, uptodate: bool, bucket: &Bucket) {
        if uptodate {
            self.set_uptodate();
        }
        self.end(LOCKED, bucket);
    }

    /// Says that all blocks hold the file's data. The caller has the folio locked.
    pub(crate) fn set_uptodate(&self) {
        self.flags.fetch_or(UPTODATE, Ordering::Release);
    }

    /// Waits until nobody has the folio locked.
    pub(crate) fn wait_unlocked(&self, bucket: &Bucket) {
        self.wait_for(LOCKED, bucket);
    }

    /// Whether some blocks differ from the device's. Certain while the caller has the folio locked.
    pub(crate) fn is_dirty(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DIRTY != 0
    }

    /// Says whether some blocks differ from the device's. The caller has the folio locked.
    pub(crate) fn set_dirty(&self, dirty: bool) {
        if dirty {
            self.flags.fetch_or(DIRTY, Ordering::Release);
        } else {
            self.flags.fetch_and(!DIRTY, Ordering::Release);
        }
    }

    /// Whether blocks are on their way to the device. Acquire: if not, the device is done with them.
    pub(crate) fn is_under_writeback(&self) -> bool {
        self.flags.load(Ordering::Acquire) & WRITEBACK != 0
    }

    /// Makes a dirty folio one under writeback. The caller has it locked.
    pub(crate) fn start_writeback(&self) {
        // In this order: whoever sees neither sees a folio that is as the device has it.
        let before = self.flags.fetch_or(WRITEBACK, Ordering::Release);
        debug_assert!(before & WRITEBACK == 0 && before & DIRTY != 0, "not dirty alone");
        self.flags.fetch_and(!DIRTY, Ordering::Release);
    }

    /// Ends the writeback, and wakes who waits for that in `bucket`.
    pub(crate) fn end_writeback(&self, bucket: &Bucket) {
        self.end(WRITEBACK, bucket);
    }

    /// Waits until no blocks are on their way to the device.
    pub(crate) fn wait_writeback(&self, bucket: &Bucket) {
        self.wait_for(WRITEBACK, bucket);
    }

    /// Waits until no blocks are on their way to the device, or until the request that this thread serves is
    /// cancelled.
    pub(crate) fn wait_writeback_cancellable(&self, bucket: &Bucket) -> base::Result<()> {
        if !self.is_under_writeback() {
            return Ok(());
        }
        base::waiting::about_to_wait();
        let is_over = || self.flags.fetch_or(WAITERS, Ordering::Acquire) & WRITEBACK == 0;
        loop {
            base::cancellation::check()?;
            // A wait that is abandoned leaves WAITERS behind: the end then wakes nobody, or others.
            if bucket.wait_until_or_for(base::cancellation::CHECK_EVERY, is_over) {
                return Ok(());
            }
        }
    }

    /// Clears `flag` and wakes who waits for that in `bucket`. Who waits there for the other flag
    /// says so again.
    fn end(&self, flag: u32, bucket: &Bucket) {
        let before = self.flags.fetch_and(!(flag | WAITERS), Ordering::Release);
        debug_assert!(before & flag != 0, "not begun");
        if before & WAITERS != 0 {
            bucket.wake_all();
        }
    }

    /// Waits until `flag` is clear.
    ///
    /// A waiter sets WAITERS and looks at the flag in one step and under the bucket's lock, so
    /// either who clears it sees WAITERS, and takes the bucket's lock only when the waiter waits,
    /// or the waiter sees the flag clear.
    fn wait_for(&self, flag: u32, bucket: &Bucket) {
        if self.flags.load(Ordering::Acquire) & flag != 0 {
            base::waiting::about_to_wait();
            bucket.wait_until(|| self.flags.fetch_or(WAITERS, Ordering::Acquire) & flag == 0);
        }
    }

    /// Counts somebody in who was lent bytes of the folio, and holds a reference. Only under the
    /// inode's lock, or by who is counted already.
    pub(crate) fn lend(&self) {
        self.lent.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts somebody out who was lent bytes. Release: what was read was read before.
    pub(crate) fn take_back(&self) {
        let before = self.lent.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "not lent");
    }

    /// Whether bytes of the folio are lent. Certain, if not, while the inode's lock is held alone.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire) != 0
    }

    /// How many pages, from the first on, are the file's memory. Certain, as all of this, while the
    /// caller has the folio locked, or owns the frame.
    pub(crate) fn pages_in_file(&self) -> u32 {
        self.in_file.load(Ordering::Relaxed)
    }

    /// Says how many pages are the file's memory. The memory is foreign from the first one on.
    pub(crate) fn set_pages_in_file(&self, pages: u32) {
        self.in_file.store(pages, Ordering::Relaxed);
    }

    /// Says that the memory has to be made new before anybody else gets it; whether that was new.
    pub(crate) fn set_foreign(&self) -> bool {
        self.flags.fetch_or(FOREIGN, Ordering::Relaxed) & FOREIGN == 0
    }

    /// Whether the memory has to be made new before anybody else gets it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & FOREIGN != 0
    }

    /// Says that the memory, which the caller owns, is the arena's own again, and zeroes.
    pub(crate) fn made_new(&self) {
        self.in_file.store(0, Ordering::Relaxed);
        self.flags.fetch_and(!FOREIGN, Ordering::Relaxed);
        self.set_blank(true);
    }

    /// Says whether bytes may be stored to without anybody hearing of it. The caller has the folio
    /// locked.
    pub(crate) fn set_storable(&self, storable: bool) {
        if storable {
            self.flags.fetch_or(STORABLE, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!STORABLE, Ordering::Relaxed);
        }
    }

    /// Whether bytes may be stored to without anybody hearing of it. Certain while the caller has the
    /// folio locked.
    pub(crate) fn is_storable(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & STORABLE != 0
    }

    /// Whether the tree holds the folio; certain under the tree's lock.
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
