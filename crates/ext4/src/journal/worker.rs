//! The journal's background thread. It commits, so that a crash loses changes of a few seconds at
//! most. Not here: the commit itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, Result};
use parking_lot::{Condvar, Mutex};

use super::Journal;

/// The default age at which changes are committed, as in the kernel.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which the thread checks for work.
const TICK: Duration = Duration::from_millis(500);

/// The background thread. A drop ends it, without another commit.
pub(crate) struct Worker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. It commits changes at the age `interval`, or at the default age if
    /// `interval` is zero.
    pub(crate) fn start(journal: Arc<Journal>, interval: Duration) -> Result<Self> {
        let interval = if interval.is_zero() { COMMIT_INTERVAL } else { interval };
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let shared = Arc::clone(&stop);
        let run = move || {
            let mut stopped = shared.0.lock();
            while !*stopped {
                shared.1.wait_for(&mut stopped, TICK);
                if *stopped {
                    break;
                }
                parking_lot::MutexGuard::unlocked(&mut stopped, || {
                    let work = AssertUnwindSafe(|| journal.run_background_work(interval));
                    // Later changes, and threads that wait for a commit, get the error.
                    match catch_unwind(work) {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => journal.fail(&error),
                        Err(_) => journal.fail_after_panic("the journal's thread"),
                    }
                });
            }
        };
        let thread = std::thread::Builder::new().name("bifolio-journal".into()).spawn(run);
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
