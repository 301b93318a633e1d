//! INTERRUPT: cancellation of requests whose threads are being killed. Not here: the waits that a
//! cancellation ends (`base::cancellation`).
//!
//! The kernel sends INTERRUPT once for a request, when any signal reaches the thread that waits for
//! the answer. If the answer is EINTR, the kernel passes it on to the program. Programs do not
//! expect EINTR from files, and the kernel's ext4 does not return it. So a request is cancelled
//! only if its thread is being killed. The kernel does not say so. The session provides a function
//! for this, which is called at intervals while the request waits.
//!
//! INTERRUPT may come before the service of the request has begun, or after it has ended.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base::cancellation::{self, CHECK_EVERY, Cancellable};
use parking_lot::Mutex;

use crate::protocol::InHeader;

/// The maximum number of recorded requests. Requests that end before their INTERRUPT comes stay
/// recorded, so the oldest ones are removed if there would be more.
const RECORDED_MAX: usize = 1024;

/// The requests that were interrupted and have not ended, as far as is known.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// The ids of the requests, in the order of their interrupts.
    requests: Mutex<VecDeque<u64>>,
    /// The length of `requests`, to be read without the lock.
    count: AtomicUsize,
    is_killed: OnceLock<IsKilled>,
}

/// Returns whether a thread of the host, by its id, is being killed.
struct IsKilled(Box<dyn Fn(u32) -> bool + Send + Sync>);

impl fmt::Debug for IsKilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IsKilled")
    }
}

impl Interrupts {
    /// Sets the function that returns whether a thread is being killed. Only the first call has an
    /// effect.
    pub fn set_kill_check(&self, is_killed: impl Fn(u32) -> bool + Send + Sync + 'static) {
        let _ = self.is_killed.set(IsKilled(Box::new(is_killed)));
    }

    /// Records that the request `unique` was interrupted. Returns false if interrupts have no
    /// effect.
    pub fn record(&self, unique: u64) -> bool {
        if self.is_killed.get().is_none() {
            return false;
        }
        let mut requests = self.requests.lock();
        if requests.len() >= RECORDED_MAX {
            requests.pop_front();
        }
        requests.push_back(unique);
        self.count.store(requests.len(), Ordering::Relaxed);
        true
    }

    /// Makes waits of the calling thread cancellable until the result is dropped. The request with
    /// this header decides.
    pub fn make_cancellable(self: &Arc<Self>, header: &InHeader) -> CancellableRequest {
        let interrupts = Arc::clone(self);
        let unique = header.unique;
        let thread = header.pid;
        let is_cancelled = Cell::new(false);
        let last_check = Cell::new(None::<Instant>);
        let cancellable = cancellation::cancel_when(move || {
            let is_due = || last_check.get().is_none_or(|last| last.elapsed() >= CHECK_EVERY);
            if !is_cancelled.get() && interrupts.contains(unique) && is_due() {
                is_cancelled.set(interrupts.is_killed(thread));
                last_check.set(Some(Instant::now()));
            }
            is_cancelled.get()
        });
        CancellableRequest { interrupts: Arc::clone(self), unique, _cancellable: cancellable }
    }

    /// Returns whether the request was interrupted.
    fn contains(&self, unique: u64) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.requests.lock().contains(&unique)
    }

    fn is_killed(&self, thread: u32) -> bool {
        self.is_killed.get().is_some_and(|IsKilled(is_killed)| is_killed(thread))
    }

    fn remove(&self, unique: u64) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut requests = self.requests.lock();
            requests.retain(|&request| request != unique);
            self.count.store(requests.len(), Ordering::Relaxed);
        }
    }
}

/// A guard for the time in which a request is served and can be cancelled.
#[derive(Debug)]
pub struct CancellableRequest {
    interrupts: Arc<Interrupts>,
    unique: u64,
    _cancellable: Cancellable,
}

impl Drop for CancellableRequest {
    fn drop(&mut self) {
        self.interrupts.remove(self.unique);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use base::Error;
    use zerocopy::FromZeros;

    use super::*;

    const KILLED: u32 = 70;

    fn interrupts() -> Arc<Interrupts> {
        let interrupts = Arc::new(Interrupts::default());
        interrupts.set_kill_check(|thread| thread == KILLED);
        interrupts
    }

    fn header(unique: u64, pid: u32) -> InHeader {
        InHeader { unique, pid, ..InHeader::new_zeroed() }
    }

    #[test]
    fn only_interrupted_requests_of_killed_threads_are_cancelled() {
        let interrupts = interrupts();
        // The interrupt of request 2 comes before its service, and that of request 6 during it.
        assert!(interrupts.record(2));
        for (unique, thread, expected) in
            [(2, KILLED, Err(Error::Interrupted)), (4, KILLED, Ok(())), (6, KILLED + 1, Ok(()))]
        {
            let cancellable = interrupts.make_cancellable(&header(unique, thread));
            if unique == 6 {
                assert!(interrupts.record(unique));
            }
            assert_eq!(cancellation::check(), expected, "{unique}");
            drop(cancellable);
            assert_eq!(cancellation::check(), Ok(()));
        }
        assert!(interrupts.requests.lock().is_empty(), "requests that have ended are removed");
    }

    #[test]
    fn a_request_whose_thread_is_killed_after_the_interrupt_is_cancelled() {
        let killed = Arc::new(AtomicU32::new(0));
        let interrupts = Arc::new(Interrupts::default());
        let killed_thread = Arc::clone(&killed);
        interrupts.set_kill_check(move |thread| thread == killed_thread.load(Ordering::Relaxed));
        let _cancellable = interrupts.make_cancellable(&header(2, KILLED));
        assert!(interrupts.record(2));
        assert_eq!(cancellation::check(), Ok(()));
        killed.store(KILLED, Ordering::Relaxed);
        testkit::wait_until("the next check of the thread", || cancellation::check().is_err());
    }

    #[test]
    fn the_number_of_recorded_requests_is_bounded() {
        let interrupts = interrupts();
        (0..2 * RECORDED_MAX as u64).for_each(|unique| assert!(interrupts.record(unique)));
        assert_eq!(interrupts.requests.lock().len(), RECORDED_MAX);
        assert!(!interrupts.contains(0));
        assert!(!Arc::new(Interrupts::default()).record(2), "there is no kill check");
    }
}
