//! Locks with a rank: in builds with debug assertions, taking one while holding a later one panics.
//! This keeps the lock order of the I/O path (ARCHITECTURE.md, invariant 5).

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

/// The order in which locks may be taken: a thread takes them downwards only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rank {
    /// The table of inodes in memory.
    InodeTable = 1,
    /// One inode.
    Inode,
    /// One inode's cached extents.
    ExtentMap,
    /// One mapping's folio tree (insertion and removal). Nothing of a format is called under it;
    /// reading metadata, under whatever locks a format holds, takes it.
    Mapping,
    /// The pool's lists.
    Pool,
    /// Inside a block device.
    Device,
}

thread_local! {
    static HELD: Cell<u32> = const { Cell::new(0) };
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
        enter(self.rank);
        RankedGuard { rank: self.rank, inner: self.inner.lock() }
    }
}

/// Holds a [`RankedMutex`].
#[derive(Debug)]
pub struct RankedGuard<'a, T> {
    rank: Rank,
    inner: MutexGuard<'a, T>,
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

impl<T> Drop for RankedGuard<'_, T> {
    fn drop(&mut self) {
        leave(self.rank);
    }
}

#[track_caller]
fn enter(rank: Rank) {
    if cfg!(debug_assertions) {
        let held = HELD.get();
        assert!(held >> (rank as u8) == 0, "lock of rank {rank:?} taken out of order ({held:#b})");
        HELD.set(held | 1 << (rank as u8));
    }
}

fn leave(rank: Rank) {
    if cfg!(debug_assertions) {
        HELD.set(HELD.get() & !(1 << (rank as u8)));
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
    #[cfg(debug_assertions)]
    #[should_panic(expected = "out of order")]
    fn upwards_panics() {
        let (outer, inner) = (RankedMutex::new(Rank::Inode, 1), RankedMutex::new(Rank::Pool, 2));
        let _b = inner.lock();
        let _a = outer.lock();
    }
}
