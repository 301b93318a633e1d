//! The removal of files without a name, as a source of space: their last user frees them, on any
//! thread. Not here: the removal (`Drop` of a node).

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The time for which a file without a name is expected to be freed, after it has lost its name or
/// was closed. Afterwards it is taken to be in use.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(1);
/// The maximum number of threads that wait at a time.
const WAITERS_MAX: usize = 8;

/// The files without a name that are not freed yet.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of nodes without a name that are not freed.
    nameless: usize,
    /// The number of nodes that were freed so far.
    freed: u64,
    /// The last time at which a file lost its name, was created without one, or was closed without
    /// one.
    last_event: Option<Instant>,
    waiters: usize,
}

impl Removals {
    /// Records that a node has no name.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        state.nameless += 1;
        state.last_event = Some(Instant::now());
    }

    /// Records that an open file was closed. `is_nameless` tells whether it has no name.
    pub(crate) fn note_closed(&self, is_nameless: impl FnOnce() -> bool) {
        // Not locked during the call, which takes locks of the format.
        let has_nameless = self.state.lock().nameless > 0;
        if has_nameless && is_nameless() {
            self.state.lock().last_event = Some(Instant::now());
        }
    }

    /// Records that a node without a name has got one.
    pub(crate) fn cancel(&self) {
        self.state.lock().nameless -= 1;
    }

    /// Records that the inode of a node without a name was freed, or stays an orphan.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.nameless -= 1;
        state.freed += 1;
        self.freed.notify_all();
    }

    /// Returns the number of nodes that were freed so far.
    pub(crate) fn freed(&self) -> u64 {
        self.state.lock().freed
    }

    /// Returns whether more than `freed` nodes were freed, or one is about to be.
    pub(crate) fn may_free_more(&self, freed: u64) -> bool {
        let state = self.state.lock();
        let is_recent = state.last_event.is_some_and(|event| event.elapsed() < SETTLE_TIME);
        state.freed != freed || (state.nameless > 0 && is_recent)
    }

    /// Waits until more than `freed` nodes were freed, at most until `end`. Returns at once if no
    /// node is about to be freed. Returns whether more were freed.
    pub(crate) fn wait(&self, freed: u64, end: Instant) -> bool {
        let mut state = self.state.lock();
        while state.freed == freed && state.nameless > 0 && state.waiters < WAITERS_MAX {
            let Some(event) = state.last_event else { break };
            state.waiters += 1;
            let waited = self.freed.wait_until(&mut state, end.min(event + SETTLE_TIME));
            state.waiters -= 1;
            // Another file may have lost its name since.
            let is_over = state.last_event == Some(event) || Instant::now() >= end;
            if waited.timed_out() && is_over {
                break;
            }
        }
        state.freed != freed
    }
}
