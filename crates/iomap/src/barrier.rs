//! The barrier of writes: while it is held, none is in flight and none begins. Formats hold it for checkpoints.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// The barrier of some files, usually those of one volume.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of writes in flight.
    entered: usize,
    /// The number of threads that hold the barrier, or wait for it.
    holders: usize,
}

impl Barrier {
    /// Counts a write as in flight until the result is dropped. Waits while the barrier is held or a holder waits.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered {
        let mut state = self.state.lock();
        if state.holders > 0 {
            base::waiting::about_to_wait();
            self.changed.wait_while(&mut state, |state| state.holders > 0);
        }
        state.entered += 1;
        Entered(Arc::clone(self))
    }

    /// Counts a write as in flight until the result is dropped. Returns `None` where [`enter`](Self::enter) would wait.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<Entered> {
        let mut state = self.state.lock();
        if state.holders > 0 {
            return None;
        }
        state.entered += 1;
        Some(Entered(Arc::clone(self)))
    }

    /// Waits until all writes have ended. None begins from now on until the result is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> WritesHeld {
        let mut state = self.state.lock();
        state.holders += 1;
        if state.entered > 0 {
            base::waiting::about_to_wait();
            self.changed.wait_while(&mut state, |state| state.entered > 0);
        }
        WritesHeld(Arc::clone(self))
    }
}

/// The entry of writes through the barrier. They count as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Barrier>);

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.entered -= 1;
        if state.entered == 0 && state.holders > 0 {
            self.0.changed.notify_all();
        }
    }
}

/// The held barrier of writes; see [`EndIo::hold_writes`](crate::EndIo::hold_writes).
#[derive(Debug)]
pub struct WritesHeld(Arc<Barrier>);

impl Drop for WritesHeld {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.holders -= 1;
        if state.holders == 0 {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
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
            while barrier.state.lock().holders == 0 {
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
            assert_eq!(barrier.state.lock().entered, 0);
            held.store(false, Ordering::Release);
            drop(other);
            writer.join().unwrap();
        });
        drop(barrier.hold());
    }
}
