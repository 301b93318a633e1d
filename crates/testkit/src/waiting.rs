//! Waiting for a condition, but not for ever.

use std::time::{Duration, Instant};

/// How long a test waits before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; panics with `what` if it does not within 60 s.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
