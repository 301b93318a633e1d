//! Locks with a rank: in builds with debug assertions, taking one while holding a later one panics.
//! This keeps the lock order of the I/O path (ARCHITECTURE.md, invariant 5).

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The order in which locks may be taken: a thread takes them downwards only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rank {
    /// The volume's namespace as a whole: renames of directories.
    Rename = 1,
    /// One inode: its names if it is a directory, its data and size if it is a file.
    Inode,
    /// Inodes that are made, between the format's making one and its being in the table.
    Making,
    /// The table of inodes in memory. Nothing is loaded or freed under it.
    InodeTable,
    /// The list of inodes that writeback has to visit.
    DirtyInodes,
    /// One inode's delayed blocks while they get their places, or are forgotten.
    Placing,
    /// A handle of the journal: not a lock, but waiting for room in the journal is like one.
    Transaction,
    /// Which inodes share what holds extended attributes.
    SharedAttributes,
    /// The list of orphans.
    Orphans,
    /// What of one inode is to be allocated later.
    Delayed,
    /// One inode's cached extents, and its map on disk.
    ExtentMap,
    /// What one inode says of itself.
    InodeRecord,
    /// One group's free blocks and inodes.
    Group,
    /// The journal's own state.
    Journal,
    /// Metadata blocks that were changed. Nothing is read or waited for under it.
    ChangedBlocks,
    /// One mapping's folio tree (insertion and removal). Nothing of a format is called under it;
    /// reading metadata, under whatever locks a format holds, takes it.
    Mapping,
    /// The pool's lists.
    Pool,
    /// Inside a block device.
    Device,
}

const RANKS: usize = Rank::Device as usize + 1;

thread_local! {
    /// How many locks of each rank this thread holds.
    static HELD: Cell<[u8; RANKS]> = const { Cell::new([0; RANKS]) };
}

/// A mutex that belongs to a [`Rank`].
#[derive(Debug)]
pub struct RankedMutex<T> {
    rank: Rank,
    inner: Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// A mutex of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: Mutex::new(value) }
    }

    /// Waits for the lock. Panics in builds with debug assertions when the order is broken.
    #[track_caller]
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let held = Held::enter(self.rank, Nesting::None);
        RankedGuard { inner: self.inner.lock(), _held: held }
    }
}

/// Holds a [`RankedMutex`].
#[derive(Debug)]
pub struct RankedGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    _held: Held,
}

impl<'a, T> RankedGuard<'a, T> {
    /// Waits on `condition`, without the lock meanwhile.
    pub fn wait(&mut self, condition: &parking_lot::Condvar) {
        condition.wait(&mut self.inner);
    }

    /// [`wait`](Self::wait), for at most `time`.
    pub fn wait_for(&mut self, condition: &parking_lot::Condvar, time: std::time::Duration) {
        condition.wait_for(&mut self.inner, time);
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A lock for many readers or one writer that belongs to a [`Rank`].
#[derive(Debug)]
pub struct RankedRwLock<T> {
    rank: Rank,
    inner: RwLock<T>,
}

impl<T> RankedRwLock<T> {
    /// A lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: RwLock::new(value) }
    }

    /// The value, without waiting: nobody else can have it.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Waits until nobody writes. Panics in builds with debug assertions when the order is broken.
    #[track_caller]
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        let held = Held::enter(self.rank, Nesting::None);
        RankedReadGuard { inner: self.inner.read(), _held: held }
    }

    /// [`read`](Self::read), if nobody has to be waited for.
    #[track_caller]
    pub fn try_read(&self) -> Option<RankedReadGuard<'_, T>> {
        let held = Held::enter(self.rank, Nesting::None);
        Some(RankedReadGuard { inner: self.inner.try_read()?, _held: held })
    }

    /// Waits until nobody else holds the lock. Panics as [`read`](Self::read) does.
    #[track_caller]
    pub fn write(&self) -> RankedWriteGuard<'_, T> {
        let held = Held::enter(self.rank, Nesting::None);
        RankedWriteGuard { inner: self.inner.write(), _held: held }
    }

    /// [`write`](Self::write), if nobody has to be waited for.
    #[track_caller]
    pub fn try_write(&self) -> Option<RankedWriteGuard<'_, T>> {
        let held = Held::enter(self.rank, Nesting::None);
        Some(RankedWriteGuard { inner: self.inner.try_write()?, _held: held })
    }

    /// [`write`](Self::write) while locks of the same rank are held: the caller keeps an order
    /// among those itself.
    #[track_caller]
    pub fn write_nested(&self) -> RankedWriteGuard<'_, T> {
        let held = Held::enter(self.rank, Nesting::SameRank);
        RankedWriteGuard { inner: self.inner.write(), _held: held }
    }
}

/// Holds a [`RankedRwLock`] with other readers.
#[derive(Debug)]
pub struct RankedReadGuard<'a, T> {
    inner: RwLockReadGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RankedReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

/// Holds a [`RankedRwLock`] alone.
#[derive(Debug)]
pub struct RankedWriteGuard<'a, T> {
    inner: RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for RankedWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RankedWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Whether a lock may be taken while another of its rank is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    None,
    SameRank,
}

/// The place of something like a lock in the order, for as long as it lives. Guards are dropped
/// in any order.
#[derive(Debug)]
pub struct Held {
    rank: Rank,
}

impl Held {
    /// Takes a place in the order without a lock. Panics as the locks do.
    #[track_caller]
    pub fn new(rank: Rank) -> Self {
        Self::enter(rank, Nesting::None)
    }

    #[track_caller]
    fn enter(rank: Rank, nesting: Nesting) -> Self {
        if cfg!(debug_assertions) {
            let mut held = HELD.get();
            let first_forbidden = rank as usize + usize::from(nesting == Nesting::SameRank);
            assert!(
                held[first_forbidden..].iter().all(|&count| count == 0),
                "lock of rank {rank:?} taken out of order ({held:?})"
            );
            held[rank as usize] += 1;
            HELD.set(held);
        }
        Self { rank }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            let mut held = HELD.get();
            held[self.rank as usize] = held[self.rank as usize].saturating_sub(1);
            HELD.set(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downwards_is_allowed_and_can_be_repeated() {
        let (outer, inner) = (RankedMutex::new(Rank::Inode, 1), RankedMutex::new(Rank::Pool, 2));
        for _ in 0..2 {
            let a = outer.lock();
            let b = inner.lock();
            assert_eq!(*a + *b, 3);
        }
    }

    #[test]
    fn locks_of_one_rank_nest_when_the_caller_says_so() {
        let (first, second) =
            (RankedRwLock::new(Rank::Inode, ()), RankedRwLock::new(Rank::Inode, ()));
        let outer = first.write();
        let inner = second.write_nested();
        drop(outer);
        drop(inner);
        drop(first.read());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "out of order")]
    fn a_second_lock_of_one_rank_panics() {
        let (first, second) =
            (RankedRwLock::new(Rank::Inode, ()), RankedRwLock::new(Rank::Inode, ()));
        let _outer = first.read();
        let _inner = second.read();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "out of order")]
    fn upwards_panics() {
        let (outer, inner) = (RankedMutex::new(Rank::Inode, 1), RankedMutex::new(Rank::Pool, 2));
        let _b = inner.lock();
        let _a = outer.lock();
    }
}
