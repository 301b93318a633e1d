//! The removal of files without a name, as a source of space: their last user frees them, on any thread.
//! Not here: the removal (`Drop` of a node).

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::node::Node;
use crate::volume::Volume;

/// The time for which a file without a name is expected to be freed, after it has lost its name or was closed.
/// Afterwards it is taken to be in use.
const SETTLE_TIME: Duration = Duration::from_secs(1);
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
    /// The last time at which a file lost its name, was created without one, or was closed without one.
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

    /// Records that an open file was closed.
    pub(crate) fn note_closed(&self, node: &Node) {
        // Not locked while the node is asked, which takes locks of the format.
        let has_nameless = self.state.lock().nameless > 0;
        if has_nameless && node.attributes().links == 0 {
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

    fn freed(&self) -> u64 {
        self.state.lock().freed
    }

    /// Returns whether more than `freed` nodes were freed, or one is about to be.
    fn may_free_more(&self, freed: u64) -> bool {
        let state = self.state.lock();
        let is_recent = state.last_event.is_some_and(|event| event.elapsed() < SETTLE_TIME);
        state.freed != freed || (state.nameless > 0 && is_recent)
    }

    /// Waits until more than `freed` nodes were freed, at most until `end`. Returns at once if no node is about to be
    /// freed. Returns whether more were freed.
    fn wait(&self, freed: u64, end: Instant) -> bool {
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

impl Volume {
    /// Returns the number of removed files that were freed so far.
    pub fn freed_files(&self) -> u64 {
        self.shared.removals.freed()
    }

    /// Returns whether a change that failed for lack of space may succeed since more than `freed` removed files were freed,
    /// or after a wait: see [`change_after_removals`](Self::change_after_removals).
    pub fn may_free_more(&self, freed: u64) -> bool {
        self.shared.removals.may_free_more(freed)
    }

    /// Calls `change`. If it fails for lack of space, which `is_full` tells, while removed files are about to be freed,
    /// waits for these, and calls it again. Users of a volume through a protocol release files later than they
    /// believe. `change` must be one that can be repeated after it has failed.
    pub fn change_after_removals<T, E>(
        &self,
        mut change: impl FnMut() -> Result<T, E>,
        is_full: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let removals = &self.shared.removals;
        let mut end = None;
        loop {
            let freed = removals.freed();
            let changed = change();
            if !changed.as_ref().is_err_and(&is_full) {
                return changed;
            }
            let end = *end.get_or_insert_with(|| Instant::now() + 2 * SETTLE_TIME);
            base::waiting::about_to_wait();
            if Instant::now() >= end || !removals.wait(freed, end) {
                return changed;
            }
        }
    }
}
