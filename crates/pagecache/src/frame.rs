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
//! - **R5.** Blocks that are not uptodate are written only by who holds LOCKED, and uptodate blocks
//!   by nobody.

use std::sync::atomic::AtomicPtr;

use crate::state::FolioState;
use crate::sync::{AtomicU32, AtomicU64, Bucket, Ordering};

/// Set while the frame heads a folio.
const LIVE: u32 = 1 << 31;
/// Set while a mapping's tree holds the folio.
const CACHED: u32 = 1 << 30;

/// All blocks hold the file's data.
const UPTODATE: u32 = 1 << 0;
/// Somebody fills the folio.
const LOCKED: u32 = 1 << 1;
/// Somebody waits for LOCKED to go.
const WAITERS: u32 = 1 << 2;
/// Whoever reads this folio first starts the next readahead window.
const READAHEAD: u32 = 1 << 3;
/// Visited once, and again.
const VISITED: u32 = 1 << 4;
const REVISITED: u32 = 1 << 5;
/// The memory is known to be all zeroes. Goes with the memory: it survives the folio.
const BLANK: u32 = 1 << 6;
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
    /// LIVE, CACHED and a count of references.
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
}

/// What came of giving up a reference.
#[must_use]
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Put {
    /// Others hold the folio, or its mapping does.
    Held,
    /// It was the last one: the caller returns the folio to the pool.
    Last,
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
        debug_assert!(before & LIVE != 0 && before & !(LIVE | CACHED) != 0, "no reference held");
    }

    /// Gives up a reference.
    #[inline]
    pub(crate) fn put(&self) -> Put {
        // Release: what was read from the folio's memory was read before.
        let before = self.reference.fetch_sub(1, Ordering::Release);
        if before == LIVE | 1 { self.release() } else { Put::Held }
    }

    /// Takes the folio, which the caller has just removed from the tree whose lock it holds, out of
    /// the cache.
    pub(crate) fn uncache(&self) -> Put {
        let before = self.reference.fetch_and(!CACHED, Ordering::Release);
        debug_assert!(before & CACHED != 0, "not cached");
        if before == LIVE | CACHED { self.release() } else { Put::Held }
    }

    /// Claims a folio without references to be evicted by the caller, which holds the lock of the
    /// tree that the folio is in.
    pub(crate) fn claim(&self) -> bool {
        self.clear_live(LIVE | CACHED)
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
        if self.reference.load(Ordering::Relaxed) != LIVE | CACHED {
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
            self.flags.fetch_or(UPTODATE, Ordering::Release);
        }
        let before = self.flags.fetch_and(!(LOCKED | WAITERS), Ordering::Release);
        debug_assert!(before & LOCKED != 0, "not locked");
        if before & WAITERS != 0 {
            bucket.wake_all();
        }
    }

    /// Waits until nobody has the folio locked.
    ///
    /// A waiter sets WAITERS and looks at LOCKED in one step and under the bucket's lock, so either
    /// the unlocker sees WAITERS, and takes the bucket's lock only when the waiter waits, or the
    /// waiter sees the folio unlocked.
    pub(crate) fn wait_unlocked(&self, bucket: &Bucket) {
        if self.flags.load(Ordering::Acquire) & LOCKED != 0 {
            base::waiting::about_to_wait();
            bucket.wait_until(|| self.flags.fetch_or(WAITERS, Ordering::Acquire) & LOCKED == 0);
        }
    }
}

fn mark(number: u32) -> u32 {
    assert!(number < MARKS, "no such mark");
    MARK << number
}

#[cfg(all(test, loom))]
mod model {
    //! Model checks of the invariants above: the interleavings of a few threads, and every value
    //! that the memory orders let a load give.

    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Mutex, MutexGuard};
    use loom::thread;

    use super::*;

    const PAGE: u64 = 5;

    /// One frame, its memory, the pool that has it or not, and the slot of a tree for it.
    struct World {
        frame: Frame,
        memory: UnsafeCell<u64>,
        free: Mutex<bool>,
        slot: Mutex<bool>,
        bucket: Bucket,
    }

    // SAFETY: the memory is what is being checked: loom sees every access to it that races.
    unsafe impl Send for World {}
    // SAFETY: as above.
    unsafe impl Sync for World {}

    impl World {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                frame: Frame::default(),
                memory: UnsafeCell::new(0),
                free: Mutex::new(true),
                slot: Mutex::new(false),
                bucket: Bucket::default(),
            })
        }

        fn lock_slot(&self) -> MutexGuard<'_, bool> {
            self.slot.lock().expect("no panic")
        }

        /// Makes a folio of `owner`, if the frame is free, and leaves it locked and referred to.
        fn insert(&self, owner: u64) -> bool {
            if !std::mem::take(&mut *self.free.lock().expect("no panic")) {
                return false;
            }
            let mut slot = self.lock_slot();
            self.frame.make_live(owner, Place { index: PAGE, order: 0 });
            *slot = true;
            true
        }

        /// Fills the folio with its owner's number, unlocks it and gives the reference up.
        fn fill(&self, owner: u64) {
            // SAFETY: the folio is locked, and not uptodate.
            self.memory.with_mut(|memory| unsafe { *memory = owner });
            self.frame.unlock(true, &self.bucket);
            self.give(self.frame.put());
        }

        fn give(&self, put: Put) {
            if put == Put::Last {
                let mut free = self.free.lock().expect("no panic");
                assert!(!std::mem::replace(&mut *free, true), "freed twice");
            }
        }

        /// A cached read; whether there was anything to read.
        fn read(&self, owner: u64) -> bool {
            match self.frame.try_get(owner, PAGE) {
                Ok(()) => {
                    let uptodate = self.frame.is_uptodate();
                    if uptodate {
                        // SAFETY: uptodate, and referred to.
                        self.memory.with(|memory| assert_eq!(unsafe { *memory }, owner));
                    }
                    self.give(self.frame.put());
                    uptodate
                }
                Err(put) => {
                    self.give(put);
                    false
                }
            }
        }

        /// Reclaim.
        fn evict(&self) {
            let mut slot = self.lock_slot();
            if *slot && self.frame.is_evictable() && self.frame.claim() {
                *slot = false;
                drop(slot);
                self.give(Put::Last);
            }
        }

        /// The end of a mapping, or of a part of it.
        fn truncate(&self) {
            let mut slot = self.lock_slot();
            if std::mem::take(&mut *slot) {
                self.give(self.frame.uncache());
            }
        }

        fn is_free(&self) -> bool {
            *self.free.lock().expect("no panic")
        }
    }

    /// Checks `run` with at most three preemptions: more take hours, and races that need them are
    /// not known.
    fn check(run: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(run);
    }

    fn with_folio() -> Arc<World> {
        let world = World::new();
        assert!(world.insert(1));
        world.fill(1);
        world
    }

    fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
        let world = Arc::clone(world);
        thread::spawn(move || run(&world))
    }

    fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }

    #[test]
    fn readers_see_their_own_folio_or_none_while_the_frame_changes_hands() {
        check(|| {
            let world = with_folio();
            let threads = [
                spawn(&world, |world| {
                    world.read(1);
                }),
                spawn(&world, |world| {
                    world.read(2);
                }),
            ];
            world.evict();
            if world.insert(2) {
                world.fill(2);
            }
            join(threads);
        });
    }

    #[test]
    fn a_folio_that_leaves_the_cache_is_freed_once_by_its_last_holder() {
        check(|| {
            let world = with_folio();
            let threads = [
                spawn(&world, |world| {
                    world.read(1);
                }),
                spawn(&world, |world| {
                    world.read(1);
                }),
            ];
            world.truncate();
            join(threads);
            assert!(world.is_free());
        });
    }

    #[test]
    fn late_holders_of_one_life_do_not_end_the_next() {
        check(|| {
            let world = with_folio();
            let threads = [
                spawn(&world, |world| {
                    world.read(1);
                }),
                spawn(&world, World::truncate),
            ];
            if world.insert(2) {
                world.fill(2);
                assert!(world.read(2), "nobody else takes it away");
                world.truncate();
                join(threads);
                assert!(world.is_free());
            } else {
                join(threads);
            }
        });
    }

    #[test]
    fn reclaim_and_truncation_do_not_both_free() {
        check(|| {
            let world = with_folio();
            let threads = [
                spawn(&world, World::evict),
                spawn(&world, |world| {
                    world.read(1);
                }),
            ];
            world.truncate();
            join(threads);
            assert!(world.is_free());
        });
    }

    #[test]
    fn waiters_wake_and_find_the_data() {
        check(|| {
            let world = World::new();
            assert!(world.insert(1));
            let wait = |world: &World| {
                if world.frame.try_get(1, PAGE) == Ok(()) {
                    world.frame.wait_unlocked(&world.bucket);
                    assert!(world.frame.is_uptodate());
                    // SAFETY: uptodate, and referred to.
                    world.memory.with(|memory| assert_eq!(unsafe { *memory }, 1));
                    world.give(world.frame.put());
                }
            };
            let threads = [spawn(&world, wait), spawn(&world, wait)];
            world.fill(1);
            join(threads);
        });
    }

    #[test]
    fn one_of_several_gets_the_lock_and_the_readahead_mark() {
        check(|| {
            let world = with_folio();
            world.frame.set_readahead();
            let taken = Arc::new(Mutex::new((0, 0)));
            let threads = [0, 1].map(|_| {
                let taken = Arc::clone(&taken);
                spawn(&world, move |world| {
                    let (mark, lock) = (world.frame.take_readahead(), world.frame.try_lock());
                    let mut taken = taken.lock().expect("no panic");
                    taken.0 += u32::from(mark);
                    taken.1 += u32::from(lock);
                })
            });
            join(threads);
            assert_eq!(*taken.lock().expect("no panic"), (1, 1));
        });
    }
}
