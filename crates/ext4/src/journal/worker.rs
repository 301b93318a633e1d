//! The thread that commits in the background, so that a crash loses changes of a few seconds at most.
//! Not here: how to commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, Result};
use parking_lot::{Condvar, Mutex};

use super::Journal;

/// The default age at which changes are committed, as in the kernel.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// The interval between the thread's rounds.
const TICK: Duration = Duration::from_millis(500);

/// The thread. It ends when this is dropped, without another commit.
pub(crate) struct Worker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. It commits changes at the age `interval`, or at the default age if that is zero.
    pub(crate) fn start(journal: Arc<Journal>, interval: Duration) -> Result<Self> {
        let interval = if interval.is_zero() { COMMIT_INTERVAL } else { interval };
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let shared = Arc::clone(&stop);
        let work = move || {
            let mut stopped = shared.0.lock();
            while !*stopped {
                shared.1.wait_for(&mut stopped, TICK);
                if *stopped {
                    break;
                }
                parking_lot::MutexGuard::unlocked(&mut stopped, || {
                    let round = AssertUnwindSafe(|| journal.background_round(interval));
                    // Later changes, and threads that wait for a commit, get the error.
                    match catch_unwind(round) {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => journal.fail(&error),
                        Err(_) => journal.fail_after_panic("the journal's thread"),
                    }
                });
            }
        };
        let thread = std::thread::Builder::new().name("bifolio-journal".into()).spawn(work);
        let thread = thread.map_err(|error| Error::thread_spawn(&error))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
