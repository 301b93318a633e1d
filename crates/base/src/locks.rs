//! Locks with ranks. In builds with debug assertions, taking a lock while holding one of the same
//! or a later rank panics. This enforces the lock order of the I/O path (docs/design/io.md,
//! invariant 5).

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The order of locks. A thread takes them in this order only.
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
    /// The mark of a volume as clean or in use, while it changes.
    UseMark,
    /// A lock of the format. The format orders its locks by number: 0 is taken first. Numbers are
    /// less than [`FORMAT_RANKS`].
    Format(u8),
    /// Changed metadata blocks. Nothing is read or waited for under it.
    ChangedBlocks,
    /// One mapping's folio tree (insertion and removal). No function of the format is called under
    /// it. Reads of metadata take it while locks of the format are held.
    Mapping,
    /// The pool's lists.
    Pool,
    /// A block device's own lock.
    Device,
}

/// The number of ranks that a format has.
pub const FORMAT_RANKS: u8 = 16;

/// The number of ranks before those of the format.
const BEFORE_FORMAT: usize = 7;
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
            Self::UseMark => 6,
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

/// A guard that holds a [`RankedMutex`].
#[derive(Debug)]
pub struct RankedGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    _held: Held,
}

impl<'a, T> RankedGuard<'a, T> {
    /// Waits on `condition`, and releases the lock during the wait.
    pub fn wait(&mut self, condition: &parking_lot::Condvar) {
        condition.wait(&mut self.inner);
    }

    /// Waits on `condition` for at most `time`, and releases the lock during the wait.
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

    /// Waits until there is no writer. Panics in builds with debug assertions if this violates the
    /// order.
    #[track_caller]
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        let held = Held::enter(self.rank, Nesting::None);
        RankedReadGuard { inner: self.inner.read(), _held: held }
    }

    /// Locks like [`read`](Self::read), but returns `None` if it would have to wait.
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

    /// Locks like [`write`](Self::write), but returns `None` if it would have to wait.
    #[track_caller]
    pub fn try_write(&self) -> Option<RankedWriteGuard<'_, T>> {
        let held = Held::enter(self.rank, Nesting::None);
        Some(RankedWriteGuard { inner: self.inner.try_write()?, _held: held })
    }

    /// Locks like [`write`](Self::write), but permits that the thread holds locks of the same rank.
    /// The caller is responsible for the order of locks within the rank.
    #[track_caller]
    pub fn write_nested(&self) -> RankedWriteGuard<'_, T> {
        let held = Held::enter(self.rank, Nesting::SameRank);
        RankedWriteGuard { inner: self.inner.write(), _held: held }
    }
}

/// A guard that holds a [`RankedRwLock`] shared.
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

/// A guard that holds a [`RankedRwLock`] alone.
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

/// Whether a lock may be taken while the thread holds another lock of its rank.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    None,
    SameRank,
}

/// A held rank, of a lock or of a state that is ordered like a lock. Dropping this leaves the rank.
/// Ranks may be left in any order.
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
    fn locks_in_order_are_allowed_repeatedly() {
        let outer = RankedMutex::new(Rank::Inode, 1);
        let inner = RankedMutex::new(Rank::Pool, 2);
        for _ in 0..2 {
            let a = outer.lock();
            let b = inner.lock();
            assert_eq!(*a + *b, 3);
        }
    }

    #[test]
    fn indices_have_the_order_of_the_ranks() {
        let names = [Rank::Making, Rank::InodeTable, Rank::DirtyInodes, Rank::UseMark];
        let before = [Rank::Position, Rank::Rename, Rank::Inode].into_iter().chain(names);
        let after = [Rank::ChangedBlocks, Rank::Mapping, Rank::Pool, Rank::Device];
        let ranks = before.chain((0..FORMAT_RANKS).map(Rank::Format)).chain(after);
        let ranks: Vec<Rank> = ranks.collect();
        assert!(ranks.is_sorted());
        assert!(ranks.iter().map(|rank| rank.index()).eq(0..RANKS));
    }

    #[test]
    fn write_nested_permits_two_locks_of_one_rank() {
        let first = RankedRwLock::new(Rank::Inode, ());
        let second = RankedRwLock::new(Rank::Inode, ());
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
        let first = RankedRwLock::new(Rank::Inode, ());
        let second = RankedRwLock::new(Rank::Inode, ());
        let _outer = first.read();
        let _inner = second.read();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "out of order")]
    fn locks_against_the_order_panic() {
        let outer = RankedMutex::new(Rank::Inode, 1);
        let inner = RankedMutex::new(Rank::Pool, 2);
        let _b = inner.lock();
        let _a = outer.lock();
    }
}
