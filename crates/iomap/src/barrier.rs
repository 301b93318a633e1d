//! The barrier of writes: while it is held, none is in flight and none begins. Formats can hold it for checkpoints.
//!
//! Each write enters and leaves the barrier, so both change one number, without a lock. Only a thread that waits uses
//! the queue.

use std::sync::Arc;

use base::sync::{AtomicU64, Ordering, WaitQueue};

/// The state's upper half is the number of holders, its lower half that of writes in flight.
const HOLDER: u64 = 1 << 32;

/// The barrier of some files, usually those of one volume.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    /// The number of threads that hold the barrier or wait for it, and the number of writes in flight. A write that
    /// finds a holder is counted for a moment, too, but does not begin.
    state: AtomicU64,
    waiters: WaitQueue,
}

impl Barrier {
    /// Counts a write as in flight until the result is dropped. Waits while the barrier is held or a holder waits.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered {
        loop {
            if let Some(entered) = self.try_enter() {
                return entered;
            }
            base::waiting::about_to_wait();
            self.waiters.wait_until(|| self.holders() == 0);
        }
    }

    /// Counts a write as in flight until the result is dropped. Returns `None` where [`enter`](Self::enter) would wait.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<Entered> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let entered = Entered(Arc::clone(self));
        (before < HOLDER).then_some(entered)
    }

    /// Waits until all writes have ended. None begins from now on until the result is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> WritesHeld {
        let before = self.state.fetch_add(HOLDER, Ordering::AcqRel);
        let held = WritesHeld(Arc::clone(self));
        if before % HOLDER > 0 {
            base::waiting::about_to_wait();
            self.waiters.wait_until(|| self.in_flight() == 0);
        }
        held
    }

    /// Returns the number of threads that hold the barrier or wait for it.
    fn holders(&self) -> u64 {
        self.state.load(Ordering::Acquire) / HOLDER
    }

    /// Returns the number of writes in flight.
    fn in_flight(&self) -> u64 {
        self.state.load(Ordering::Acquire) % HOLDER
    }
}

/// The entry of writes through the barrier. They count as in flight until it and all of its clones are dropped.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Barrier>);

impl Clone for Entered {
    fn clone(&self) -> Self {
        // No holder can get past the entry that is cloned.
        self.0.state.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.0.state.fetch_sub(1, Ordering::AcqRel);
        if before > HOLDER && before % HOLDER == 1 {
            self.0.waiters.wake_all();
        }
    }
}

/// The held barrier of writes; see [`EndIo::hold_writes`](crate::EndIo::hold_writes).
#[derive(Debug)]
pub struct WritesHeld(Arc<Barrier>);

impl Drop for WritesHeld {
    fn drop(&mut self) {
        let before = self.0.state.fetch_sub(HOLDER, Ordering::AcqRel);
        if before / HOLDER == 1 {
            self.0.waiters.wake_all();
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// A barrier, and what two writes change.
    #[derive(Default)]
    struct World {
        barrier: Arc<Barrier>,
        written: [UnsafeCell<u32>; 2],
    }

    // SAFETY: loom reports every racy access to the cells.
    unsafe impl Send for World {}
    // SAFETY: as above.
    unsafe impl Sync for World {}

    impl World {
        fn write(&self, index: usize) {
            // SAFETY: loom reports every racy access.
            self.written[index].with_mut(|written| unsafe { *written += 1 });
        }

        /// Holds the barrier twice. Neither write runs meanwhile.
        fn hold(&self) {
            for _ in 0..2 {
                let held = self.barrier.hold();
                // SAFETY: loom reports every racy access.
                let read = |index: usize| self.written[index].with(|written| unsafe { *written });
                assert!(read(0) <= 1 && read(1) <= 1);
                drop(held);
            }
        }
    }

    #[test]
    fn a_holder_and_a_write_exclude_each_other() {
        loom::model(|| {
            let world = Arc::new(World::default());
            let writer = {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let entered = world.barrier.enter();
                    world.write(0);
                    drop(entered);
                })
            };
            world.hold();
            writer.join().unwrap();
        });
    }

    #[test]
    fn a_holder_waits_for_the_last_clone_of_an_entry() {
        loom::model(|| {
            let world = Arc::new(World::default());
            let entered = world.barrier.enter();
            let writer = {
                let world = Arc::clone(&world);
                let entered = entered.clone();
                thread::spawn(move || {
                    world.write(0);
                    drop(entered);
                })
            };
            let holder = {
                let world = Arc::clone(&world);
                thread::spawn(move || world.hold())
            };
            world.write(1);
            drop(entered);
            writer.join().unwrap();
            holder.join().unwrap();
        });
    }

    #[test]
    fn a_write_begins_after_the_last_of_two_holders() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let barrier = Arc::new(Barrier::default());
            let holder = {
                let barrier = Arc::clone(&barrier);
                thread::spawn(move || drop(barrier.hold()))
            };
            let writer = {
                let barrier = Arc::clone(&barrier);
                thread::spawn(move || drop(barrier.enter()))
            };
            drop(barrier.hold());
            holder.join().unwrap();
            writer.join().unwrap();
            assert_eq!(barrier.state.load(Ordering::Acquire), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn a_holder_waits_for_writes_in_flight() {
        let barrier = Arc::new(Barrier::default());
        let first = barrier.enter();
        let second = barrier.enter();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let held = barrier.hold();
                assert!(ended.load(Ordering::Acquire));
                drop(held);
            });
            drop(first);
            while barrier.holders() == 0 {
                thread::yield_now();
            }
            ended.store(true, Ordering::Release);
            drop(second);
            holder.join().unwrap();
        });
        drop(barrier.enter());
    }

    #[test]
    fn no_write_begins_while_the_barrier_is_held() {
        let barrier = Arc::new(Barrier::default());
        let one = barrier.hold();
        let other = barrier.hold();
        let held = AtomicBool::new(true);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let entered = barrier.enter();
                assert!(!held.load(Ordering::Acquire));
                drop(entered);
            });
            drop(one);
            assert!(barrier.try_enter().is_none());
            assert_eq!(barrier.in_flight(), 0);
            held.store(false, Ordering::Release);
            drop(other);
            writer.join().unwrap();
        });
        drop(barrier.hold());
    }
}
