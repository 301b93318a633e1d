//! The thread that commits what nobody asks to be durable, so that a crash loses seconds only.
//! Not here: how to commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, Result, Unsupported};
use parking_lot::{Condvar, Mutex};

use super::Journal;

/// As the kernel has it.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// How often to look.
const TICK: Duration = Duration::from_millis(500);

/// The thread; it ends when this is dropped, without committing anything more.
pub(crate) struct Worker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. It commits changes at the age `interval`, or at the default age if that is zero.
    pub(crate) fn start(journal: Arc<Journal>, interval: Duration) -> Result<Self> {
        let interval = if interval.is_zero() { COMMIT_INTERVAL } else { interval };
        let stop = Arc::<(Mutex<bool>, Condvar)>::default();
        let told = Arc::clone(&stop);
        let work = move || {
            let mut stopped = told.0.lock();
            while !*stopped {
                told.1.wait_for(&mut stopped, TICK);
                if *stopped {
                    break;
                }
                parking_lot::MutexGuard::unlocked(&mut stopped, || {
                    let tend = AssertUnwindSafe(|| journal.tend(interval));
                    // A failure is remembered and told to everyone who writes or waits.
                    match catch_unwind(tend) {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => journal.fail(&error),
                        Err(_) => journal
                            .fail_after_panic("going on after a panic in the journal's thread"),
                    }
                });
            }
        };
        let thread = std::thread::Builder::new().name("bifolio-journal".into()).spawn(work);
        let refused = |_| -> Error { Unsupported::Operation("the host refuses a thread").into() };
        Ok(Self { stop, thread: Some(thread.map_err(refused)?) })
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
