//! INTERRUPT: cancellation of requests whose callers are being killed. Not here: the waits that end
//! (`base::cancellation`).
//!
//! The kernel sends INTERRUPT once for a request, when any signal reaches the thread that waits for the answer,
//! and passes EINTR on to the program. Programs do not expect EINTR from files, and do not get it from the
//! kernel's ext4. So a request is cancelled only while its thread is being killed. The kernel does not tell
//! that: the session provides the answer, and is asked as long as the request waits.
//!
//! INTERRUPT may come before the thread that serves the request has begun, and after it has ended.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use base::cancellation::{self, CHECK_EVERY, Cancellable};
use parking_lot::Mutex;

use crate::protocol::InHeader;

/// The maximum number of interrupted requests that are remembered. Those that have ended before their INTERRUPT
/// came are forgotten when there would be more.
const REMEMBERED_MAX: usize = 1024;

/// The requests that were interrupted.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// The numbers of requests, from the first interrupted one on.
    requests: Mutex<VecDeque<u64>>,
    /// The number of those.
    count: AtomicUsize,
    is_killed: OnceLock<IsKilled>,
}

/// Whether a thread of the host, by its id, is being killed.
struct IsKilled(Box<dyn Fn(u32) -> bool + Send + Sync>);

impl fmt::Debug for IsKilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IsKilled")
    }
}

impl Interrupts {
    /// Sets the function that returns whether a thread is being killed. Only the first call has an effect.
    pub fn ask(&self, is_killed: impl Fn(u32) -> bool + Send + Sync + 'static) {
        let _ = self.is_killed.set(IsKilled(Box::new(is_killed)));
    }

    /// Notes that request `unique` was interrupted. Returns false if interrupts have no effect.
    pub fn note(&self, unique: u64) -> bool {
        if self.is_killed.get().is_none() {
            return false;
        }
        let mut requests = self.requests.lock();
        if requests.len() >= REMEMBERED_MAX {
            requests.pop_front();
        }
        requests.push_back(unique);
        self.count.store(requests.len(), Ordering::Relaxed);
        true
    }

    /// Lets waits of this thread be cancelled, until the result is dropped, for the request with this header.
    pub fn serve(self: &Arc<Self>, header: &InHeader) -> Serving {
        let (interrupts, unique, thread) = (Arc::clone(self), header.unique, header.pid);
        let (is_cancelled, asked) = (Cell::new(false), Cell::new(None::<Instant>));
        let cancellable = cancellation::ask(move || {
            let is_due = || asked.get().is_none_or(|asked| asked.elapsed() >= CHECK_EVERY);
            if !is_cancelled.get() && interrupts.has(unique) && is_due() {
                is_cancelled.set(interrupts.is_killed(thread));
                asked.set(Some(Instant::now()));
            }
            is_cancelled.get()
        });
        Serving { interrupts: Arc::clone(self), unique, _cancellable: cancellable }
    }

    /// Returns whether the request was interrupted.
    fn has(&self, unique: u64) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.requests.lock().contains(&unique)
    }

    fn is_killed(&self, thread: u32) -> bool {
        self.is_killed.get().is_some_and(|IsKilled(is_killed)| is_killed(thread))
    }

    fn forget(&self, unique: u64) {
        if self.count.load(Ordering::Relaxed) > 0 {
            let mut requests = self.requests.lock();
            requests.retain(|&request| request != unique);
            self.count.store(requests.len(), Ordering::Relaxed);
        }
    }
}

/// A guard for the time in which a request is served.
#[derive(Debug)]
pub struct Serving {
    interrupts: Arc<Interrupts>,
    unique: u64,
    _cancellable: Cancellable,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.interrupts.forget(self.unique);
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
        interrupts.ask(|thread| thread == KILLED);
        interrupts
    }

    fn header(unique: u64, pid: u32) -> InHeader {
        InHeader { unique, pid, ..InHeader::new_zeroed() }
    }

    #[test]
    fn only_interrupted_requests_of_killed_threads_are_cancelled() {
        let interrupts = interrupts();
        // One interrupt comes before its request.
        assert!(interrupts.note(2));
        for (unique, thread, expected) in
            [(2, KILLED, Err(Error::Interrupted)), (4, KILLED, Ok(())), (6, KILLED + 1, Ok(()))]
        {
            let serving = interrupts.serve(&header(unique, thread));
            if unique == 6 {
                assert!(interrupts.note(unique));
            }
            assert_eq!(cancellation::check(), expected, "{unique}");
            drop(serving);
            assert_eq!(cancellation::check(), Ok(()));
        }
        assert!(interrupts.requests.lock().is_empty(), "requests that have ended are forgotten");
    }

    #[test]
    fn a_thread_that_is_killed_after_its_interrupt_is_noticed() {
        let killed = Arc::new(AtomicU32::new(0));
        let (interrupts, asked) = (Arc::new(Interrupts::default()), Arc::clone(&killed));
        interrupts.ask(move |thread| thread == asked.load(Ordering::Relaxed));
        let _serving = interrupts.serve(&header(2, KILLED));
        assert!(interrupts.note(2));
        assert_eq!(cancellation::check(), Ok(()));
        killed.store(KILLED, Ordering::Relaxed);
        testkit::wait_until("the next question", || cancellation::check().is_err());
    }

    #[test]
    fn interrupts_of_requests_that_have_ended_take_no_more_memory_than_allowed() {
        let interrupts = interrupts();
        (0..2 * REMEMBERED_MAX as u64).for_each(|unique| assert!(interrupts.note(unique)));
        assert_eq!(interrupts.requests.lock().len(), REMEMBERED_MAX);
        assert!(!interrupts.has(0));
        assert!(!Arc::new(Interrupts::default()).note(2), "nobody can tell who is killed");
    }
}
