//! The clock of a volume: seconds since it was made, while it was open for writing. The ages of
//! segments refer to it.

use std::time::Instant;

/// A clock that goes on from the last checkpoint's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    before: u64,
    begun: Instant,
}

impl Clock {
    /// Starts a clock at `before` seconds.
    pub(super) fn start(before: u64) -> Self {
        Self { before, begun: Instant::now() }
    }

    /// Returns the time in seconds.
    pub(super) fn now(&self) -> u64 {
        self.before.saturating_add(self.begun.elapsed().as_secs())
    }
}
