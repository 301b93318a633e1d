//! Callbacks during waits of many seconds, which can end the wait. Not here: the reasons for waits.
//! Requests that a thread serves are cancelled in another way
//! ([`cancellation`](crate::cancellation)).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// The interval between two calls.
const INTERVAL: Duration = Duration::from_millis(100);

type Callback = dyn Fn(&str) -> bool + Send + Sync;

/// A callback during long waits. By default there is none, and waits last to their end.
#[derive(Clone, Default)]
pub struct WaitCallback(Option<Arc<Callback>>);

impl WaitCallback {
    /// Calls `go_on` several times a second during waits, with a text that says for what the thread
    /// waits and for how long. `false` ends the wait.
    pub fn new(go_on: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(go_on)))
    }

    /// Waits for `time`. `reason` is the text for the callback.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] if the callback ends the wait.
    pub fn wait(&self, reason: &str, time: Duration) -> Result<()> {
        let Some(go_on) = &self.0 else {
            std::thread::sleep(time);
            return Ok(());
        };
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if !go_on(reason) {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(left.min(INTERVAL));
        }
    }
}

impl fmt::Debug for WaitCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "WaitCallback(function)" } else { "WaitCallback(none)" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_callback_can_end_a_wait_and_is_not_called_for_a_wait_of_no_time() {
        let calls = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&calls);
        let wait_callback = WaitCallback::new(move |reason| {
            assert_eq!(reason, "a guest");
            count.fetch_add(1, Ordering::Relaxed) < 2
        });
        wait_callback.wait("a guest", Duration::ZERO).unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        let ended = wait_callback.wait("a guest", Duration::from_secs(3600));
        assert!(matches!(ended, Err(Error::Interrupted)));
        assert_eq!(calls.load(Ordering::Relaxed), 3);
        WaitCallback::default().wait("a guest", Duration::from_millis(1)).unwrap();
    }
}
