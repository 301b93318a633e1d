//! Locks with ranks. In builds with debug assertions, taking a lock while holding one of a later rank panics.
//! This keeps the lock order of the I/O path (ARCHITECTURE.md, invariant 5).

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The order of locks: a thread takes them downwards only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    /// The position of an open file, while it is read or written there.
    Position,
    /// The volume's namespace as a whole: renames of directories.
    Rename,
    /// One inode: its names if it is a directory, its data and size if it is a file.
    Inode,
    /// Creation of inodes, from their creation by the format until they are in the table.
    Making,
    /// The table of inodes in memory. Nothing is loaded or freed under it.
    InodeTable,
    /// The dirty inodes of a volume.
    DirtyInodes,
    /// A lock of the format, which orders its own: 0 is taken first, and numbers are less than [`FORMAT_RANKS`].
    Format(u8),
    /// Changed metadata blocks. Nothing is read or waited for under it.
    ChangedBlocks,
    /// One mapping's folio tree (insertion and removal). No format is called under it. Reading metadata takes it,
    /// under the locks of the format.
    Mapping,
    /// The pool's lists.
    Pool,
    /// Inside a block device.
    Device,
}

/// The number of ranks that a format has.
pub const FORMAT_RANKS: u8 = 16;

/// The number of ranks before those of the format.
const BEFORE_FORMAT: usize = 6;
const RANKS: usize = BEFORE_FORMAT + FORMAT_RANKS as usize + 4;

impl Rank {
    /// Returns the position in the order.
    fn index(self) -> usize {
        let after_format = BEFORE_FORMAT + FORMAT_RANKS as usize;
        match self {
            Self::Position => 0,
            Self::Rename => 1,
            Self::Inode => 2,
            Self::Making => 3,
            Self::InodeTable => 4,
            Self::DirtyInodes => 5,
            Self::Format(own) => {
                assert!(own < FORMAT_RANKS, "a format has {FORMAT_RANKS} ranks");
                BEFORE_FORMAT + usize::from(own)
            }
            Self::ChangedBlocks => after_format,
            Self::Mapping => after_format + 1,
            Self::Pool => after_format + 2,
            Self::Device => after_format + 3,
        }
    }
}

thread_local! {
    /// The number of locks of each rank that this thread holds.
    static HELD: Cell<[u8; RANKS]> = const { Cell::new([0; RANKS]) };
}

/// A mutex that belongs to a [`Rank`].
#[derive(Debug)]
pub struct RankedMutex<T> {
    rank: Rank,
    inner: Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// Returns a mutex of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: Mutex::new(value) }
    }

    /// Waits for the lock. Panics in builds with debug assertions if this violates the order.
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
    /// Waits on `condition`, and releases the lock meanwhile.
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
    /// Returns a lock of this rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: RwLock::new(value) }
    }

    /// Returns the value without locking, since no other thread has a reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// Waits until there is no writer. Panics in builds with debug assertions if this violates the order.
    #[track_caller]
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        let held = Held::enter(self.rank, Nesting::None);
        RankedReadGuard { inner: self.inner.read(), _held: held }
    }

    /// [`read`](Self::read) without waiting.
    #[track_caller]
    pub fn try_read(&self) -> Option<RankedReadGuard<'_, T>> {
        let held = Held::enter(self.rank, Nesting::None);
        Some(RankedReadGuard { inner: self.inner.try_read()?, _held: held })
    }

    /// Waits until the lock is free. Panics as [`read`](Self::read) does.
    #[track_caller]
    pub fn write(&self) -> RankedWriteGuard<'_, T> {
        let held = Held::enter(self.rank, Nesting::None);
        RankedWriteGuard { inner: self.inner.write(), _held: held }
    }

    /// [`write`](Self::write) without waiting.
    #[track_caller]
    pub fn try_write(&self) -> Option<RankedWriteGuard<'_, T>> {
        let held = Held::enter(self.rank, Nesting::None);
        Some(RankedWriteGuard { inner: self.inner.try_write()?, _held: held })
    }

    /// [`write`](Self::write) while locks of the same rank are held. The caller orders locks of one rank itself.
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

/// Whether a lock may be taken while another one of its rank is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    None,
    SameRank,
}

/// The rank of something like a lock, while this exists. Guards may be dropped in any order.
#[derive(Debug)]
pub struct Held {
    rank: Rank,
}

impl Held {
    /// Enters a rank without a lock. Panics as locks do.
    #[track_caller]
    pub fn new(rank: Rank) -> Self {
        Self::enter(rank, Nesting::None)
    }

    #[track_caller]
    fn enter(rank: Rank, nesting: Nesting) -> Self {
        if cfg!(debug_assertions) {
            let mut held = HELD.get();
            let first_forbidden = rank.index() + usize::from(nesting == Nesting::SameRank);
            assert!(
                held[first_forbidden..].iter().all(|&count| count == 0),
                "lock of rank {rank:?} taken out of order ({held:?})"
            );
            held[rank.index()] += 1;
            HELD.set(held);
        }
        Self { rank }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            let mut held = HELD.get();
            let index = self.rank.index();
            held[index] = held[index].saturating_sub(1);
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
    fn the_order_of_positions_is_that_of_the_ranks() {
        let names = [Rank::Making, Rank::InodeTable, Rank::DirtyInodes];
        let before = [Rank::Position, Rank::Rename, Rank::Inode].into_iter().chain(names);
        let after = [Rank::ChangedBlocks, Rank::Mapping, Rank::Pool, Rank::Device];
        let ranks = before.chain((0..FORMAT_RANKS).map(Rank::Format)).chain(after);
        let ranks: Vec<Rank> = ranks.collect();
        assert!(ranks.is_sorted());
        assert!(ranks.iter().map(|rank| rank.index()).eq(0..RANKS));
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
