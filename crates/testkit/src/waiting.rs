//! Waiting for what will be so, with an end.

use std::time::{Duration, Instant};

/// How long anything takes at most that a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds, which `what` is the name of.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
