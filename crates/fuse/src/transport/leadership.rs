//! The state of the leader of a worker pool: the request that it serves, and whether a watchdog
//! checks it. Not here: the threads (`worker_pool`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of checks in a row without a request after which the watchdog stops.
const QUIET_CHECKS_MAX: u64 = 50;

/// The leader's state. If the leader ends a request while the watchdog takes the role over, exactly
/// one of the two succeeds.
#[derive(Debug, Default)]
pub struct Leadership {
    /// Grows by one when a request begins and when it ends. So it is odd while the leader serves a
    /// request, and that value is the request's number.
    state: AtomicU64,
    /// Whether the watchdog runs, or was woken to run.
    is_watched: AtomicBool,
    /// The state at the last check.
    checked: AtomicU64,
    /// The number of checks in a row without a request.
    quiet_checks: AtomicU64,
}

impl Leadership {
    /// Records that the leader begins to serve a request. Returns the request's number, and whether
    /// the watchdog runs already. If it does not, the caller has to wake a thread for it.
    pub fn begin_request(&self) -> (u64, bool) {
        // First the state, then the flag; `stop_watching` uses the opposite order. So at least one
        // of both threads sees the other one's change.
        let number = self.state.fetch_add(1, Ordering::SeqCst) + 1;
        let is_watched = self.is_watched.load(Ordering::SeqCst);
        (number, is_watched || self.is_watched.swap(true, Ordering::SeqCst))
    }

    /// Records that the leader has served the request `number`. Returns false if the calling thread
    /// is no longer the leader.
    pub fn end_request(&self, number: u64) -> bool {
        let next = number + 1;
        self.state.compare_exchange(number, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns whether an idle thread has to be the watchdog.
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::SeqCst)
    }

    /// Checks the leader. If it still serves the request that it served at the last check, makes
    /// the calling thread the leader and returns true. Only one thread at a time may call this.
    pub fn take_over(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        if self.checked.swap(state, Ordering::Relaxed) != state {
            self.quiet_checks.store(0, Ordering::Relaxed);
        } else if state % 2 == 1 {
            return self.end_request(state);
        } else if self.quiet_checks.fetch_add(1, Ordering::Relaxed) + 1 == QUIET_CHECKS_MAX {
            self.quiet_checks.store(0, Ordering::Relaxed);
            self.stop_watching(state);
        }
        false
    }

    /// Stops the watchdog, unless a request has begun since `state` was read.
    fn stop_watching(&self, state: u64) {
        self.is_watched.store(false, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) != state {
            self.is_watched.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leader_that_stays_with_one_request_loses_its_role() {
        let leadership = Leadership::default();
        let (first, was_watched) = leadership.begin_request();
        assert!(!was_watched && leadership.is_watched());
        assert!(!leadership.take_over());
        assert!(leadership.end_request(first));
        let (second, was_watched) = leadership.begin_request();
        assert!(was_watched);
        assert!(!leadership.take_over() && leadership.take_over());
        assert!(!leadership.end_request(second));
        let (third, _) = leadership.begin_request();
        assert!(!leadership.end_request(second) && leadership.end_request(third));
    }

    #[test]
    fn the_watchdog_stops_after_some_checks_without_a_request() {
        let leadership = Leadership::default();
        let (number, _) = leadership.begin_request();
        assert!(leadership.end_request(number));
        let checks = (0..1000).take_while(|_| {
            assert!(!leadership.take_over());
            leadership.is_watched()
        });
        assert!((10..100).contains(&checks.count()));
        assert!(!leadership.begin_request().1 && leadership.is_watched());
    }
}
