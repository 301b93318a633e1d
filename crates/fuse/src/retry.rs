//! Repetition of system calls that signals interrupt, and of what fails for a moment only.

use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The time between two attempts.
const INTERVAL: Duration = Duration::from_millis(10);

/// Calls `call` again as long as a signal interrupts it.
pub fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Calls `attempt` again, for up to `time`, while it fails with an error that `is_brief` takes to
/// last only for a moment.
pub fn retry_for<T, E>(
    time: Duration,
    is_brief: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let until = Instant::now() + time;
    loop {
        match attempt() {
            Err(error) if Instant::now() < until && is_brief(&error) => {
                std::thread::sleep(INTERVAL);
            }
            outcome => return outcome,
        }
    }
}
