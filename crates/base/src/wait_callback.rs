//! Waits of many seconds, of which a thread's owner is told, and which it can end. Not here: what is
//! waited for.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// How often the owner is asked.
const STEP: Duration = Duration::from_millis(100);

/// Called with what is waited for, and for how long, in words; false ends the waiting.
type Ask = dyn Fn(&str) -> bool + Send + Sync;

/// What becomes of long waits. By default they are waited for to their end.
#[derive(Clone, Default)]
pub struct WaitCallback(Option<Arc<Ask>>);

impl WaitCallback {
    /// As long as `ask` says true; it is asked several times a second.
    pub fn new(ask: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(ask)))
    }

    /// Waits for so long. `Interrupted` when that was cut short.
    pub fn wait(&self, what: &str, time: Duration) -> Result<()> {
        let Some(ask) = &self.0 else {
            std::thread::sleep(time);
            return Ok(());
        };
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if !ask(what) {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(left.min(STEP));
        }
    }
}

impl fmt::Debug for WaitCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "WaitCallback(asked)" } else { "WaitCallback(endless)" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn who_is_asked_can_end_a_wait_and_nobody_is_asked_for_none() {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let wait_callback = WaitCallback::new(move |what| {
            assert_eq!(what, "a guest");
            count.fetch_add(1, Ordering::Relaxed) < 2
        });
        wait_callback.wait("a guest", Duration::ZERO).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        let ended = wait_callback.wait("a guest", Duration::from_secs(3600));
        assert!(matches!(ended, Err(Error::Interrupted)));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        WaitCallback::default().wait("a guest", Duration::from_millis(1)).unwrap();
    }
}
