//! Atomics and wait queues of lock-free code, from the standard library and parking_lot, or from
//! loom for model checking (`make models`).

#[cfg(not(loom))]
mod real {
    pub use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

    /// A wait queue: a lock and a condition variable.
    #[derive(Debug, Default)]
    pub struct WaitQueue {
        lock: parking_lot::Mutex<()>,
        changed: parking_lot::Condvar,
    }

    impl WaitQueue {
        /// Waits until `done` returns true. Calls it under the lock.
        pub fn wait_until(&self, mut done: impl FnMut() -> bool) {
            let mut guard = self.lock.lock();
            while !done() {
                self.changed.wait(&mut guard);
            }
        }

        /// Waits until `done` returns true, or for about `time`. Returns whether `done` returned
        /// true.
        pub fn wait_until_or_for(
            &self,
            time: std::time::Duration,
            mut done: impl FnMut() -> bool,
        ) -> bool {
            let mut guard = self.lock.lock();
            while !done() {
                if self.changed.wait_for(&mut guard, time).timed_out() {
                    return false;
                }
            }
            true
        }

        /// Wakes all waiters, which call `done` again.
        pub fn wake_all(&self) {
            drop(self.lock.lock());
            self.changed.notify_all();
        }
    }
}

#[cfg(loom)]
mod real {
    pub use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

    /// A wait queue: a lock and a condition variable.
    #[derive(Debug, Default)]
    pub struct WaitQueue {
        lock: loom::sync::Mutex<()>,
        changed: loom::sync::Condvar,
    }

    impl WaitQueue {
        /// Waits until `done` returns true. Calls it under the lock.
        pub fn wait_until(&self, mut done: impl FnMut() -> bool) {
            let mut guard = self.lock.lock().expect("no panic under the lock");
            while !done() {
                guard = self.changed.wait(guard).expect("no panic under the lock");
            }
        }

        /// Waits without a limit, since a model with a limit would find fewer errors.
        pub fn wait_until_or_for(
            &self,
            _time: std::time::Duration,
            done: impl FnMut() -> bool,
        ) -> bool {
            self.wait_until(done);
            true
        }

        /// Wakes all waiters, which call `done` again.
        pub fn wake_all(&self) {
            drop(self.lock.lock().expect("no panic under the lock"));
            self.changed.notify_all();
        }
    }
}

pub use real::{AtomicPtr, AtomicU32, AtomicU64, Ordering, WaitQueue};
