//! Busy polling: while requests follow each other closely, a thread that waits for a request polls
//! for a short time before it sleeps. A sleeping processor takes tens of microseconds to wake,
//! especially on virtual machines. That is several times as long as serving a request from the
//! cache.
//!
//! While other programs need the processors (`contention`), no processor sleeps, and polling takes
//! time from those programs. The waiting threads do not poll then, and move to the processors of
//! their clients instead (`affinity`).
//!
//! Not here: receiving requests (`channel`, `ring`).

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::Timespec;

use crate::transport::affinity::Affinity;
use crate::transport::contention::Contention;

/// The maximum time of polling. A client that waits for its answer sends the next request sooner,
/// even from a sleeping processor.
const POLL_MAX: Duration = Duration::from_micros(100);
/// The maximum time of one yield. A longer yield has given the processor to a thread that computes,
/// not to the client that sends the next request.
const YIELD_MAX: Duration = Duration::from_millis(1);
/// The number of waits without polling after a yield that was too long.
const SKIPPED_POLLS: u32 = 100;
/// The time for which processors are kept awake after the last request.
const AWAKE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// The device to which a program writes how long a processor may take to wake.
const LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";
/// The latency at which no processor sleeps, in microseconds.
const LATENCY_NONE: i32 = 0;
/// The latency at which processors sleep as usual.
const LATENCY_ANY: i32 = -1;

/// The policy of waiting for requests, shared by all threads that wait for requests of one
/// connection.
#[derive(Debug, Default)]
pub struct BusyPoll {
    /// Whether polling can help at all: only if the client can run on another processor.
    is_possible: bool,
    /// Whether the last request came within [`POLL_MAX`].
    is_close: AtomicBool,
    /// The number of waits that are still to go by without polling.
    skipped_polls: AtomicU32,
    contention: Option<Contention>,
    affinity: Option<Affinity>,
    keep_awake: Option<KeepAwake>,
}

/// One wait for a request.
#[derive(Debug)]
pub struct Wait {
    begin: Instant,
    is_polling: bool,
}

impl BusyPoll {
    /// Creates a policy for threads that may use `processors` processors. With `keep_awake`, all
    /// processors of the host are kept awake while requests follow each other closely.
    pub fn new(processors: usize, keep_awake: Option<KeepAwake>) -> Self {
        Self { is_possible: processors > 1, keep_awake, ..Self::default() }
    }

    /// Returns this policy with regard for other programs: while they need the processors, no
    /// thread polls. With `affinity`, the threads move to their clients' processors then.
    pub fn with_contention(self, contention: Contention, affinity: Option<Affinity>) -> Self {
        Self { contention: Some(contention), affinity, ..self }
    }

    /// Returns this policy without keeping processors awake.
    pub fn without_keep_awake(self) -> Self {
        Self { keep_awake: None, ..self }
    }

    /// Begins a wait, since there is no request yet.
    pub fn begin(&self) -> Wait {
        let is_close = self.is_possible && self.is_close.load(Ordering::Relaxed);
        let is_polling = is_close && !self.skip_poll() && !self.is_contended();
        Wait { begin: Instant::now(), is_polling }
    }

    /// Lets other threads run if the wait is still polling. Returns whether to poll again, rather
    /// than to sleep.
    pub fn poll_again(&self, wait: &mut Wait) -> bool {
        if wait.is_polling {
            let before = Instant::now();
            wait.is_polling = before.duration_since(wait.begin) < POLL_MAX;
            std::thread::yield_now();
            if before.elapsed() > YIELD_MAX {
                self.skipped_polls.store(SKIPPED_POLLS, Ordering::Relaxed);
                wait.is_polling = false;
            }
        }
        wait.is_polling
    }

    /// Returns the time that a wait may sleep before it must call [`let_sleep`](Self::let_sleep).
    /// `None` if there is no limit.
    pub fn sleep_timeout(&self) -> Option<&'static Timespec> {
        self.keep_awake.as_ref().filter(|keep_awake| keep_awake.is_on()).map(|_| &AWAKE)
    }

    /// Lets the processors sleep, after no request came within
    /// [`sleep_timeout`](Self::sleep_timeout).
    pub fn let_sleep(&self) {
        if let Some(keep_awake) = &self.keep_awake {
            keep_awake.set(false);
        }
    }

    /// Ends a wait, since a request has come.
    pub fn end(&self, wait: &Wait) {
        self.record(wait.begin.elapsed());
    }

    /// Records the time of a wait.
    fn record(&self, waited: Duration) {
        let is_close = waited < POLL_MAX;
        self.is_close.store(is_close, Ordering::Relaxed);
        if is_close && let Some(keep_awake) = &self.keep_awake {
            keep_awake.set(!self.is_contended());
        }
    }

    /// Moves the calling thread, which has received a request of the thread `client`, to the
    /// processor of the client while other programs need the processors.
    pub fn follow_client(&self, client: u32) {
        // The kernel's own requests have no client.
        if client != 0
            && let Some(affinity) = &self.affinity
            && self.is_contended()
        {
            affinity.follow(client);
        }
    }

    fn is_contended(&self) -> bool {
        self.contention.as_ref().is_some_and(Contention::is_contended)
    }

    /// Returns whether this wait is one of those that go by without polling, and counts it.
    fn skip_poll(&self) -> bool {
        let left = self.skipped_polls.load(Ordering::Relaxed);
        // If two threads count at the same time, the count of either will do.
        self.skipped_polls.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }
}

/// A switch that keeps all processors of the host from sleeping.
#[derive(Debug)]
pub struct KeepAwake {
    device: File,
    is_on: AtomicBool,
    change: Mutex<()>,
}

impl KeepAwake {
    /// Opens the switch, which is off. Needs the right to write to /dev/cpu_dma_latency.
    pub fn open() -> io::Result<Self> {
        let device = File::options().write(true).open(LATENCY_DEVICE).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot open {LATENCY_DEVICE}: {error}"))
        })?;
        Ok(Self { device, is_on: AtomicBool::new(false), change: Mutex::new(()) })
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn set(&self, is_on: bool) {
        if self.is_on() == is_on {
            return;
        }
        let _changing = self.change.lock();
        if self.is_on.swap(is_on, Ordering::Relaxed) != is_on {
            let latency = if is_on { LATENCY_NONE } else { LATENCY_ANY };
            if let Err(error) = (&self.device).write_all(&latency.to_ne_bytes()) {
                tracing::warn!("cannot write to {LATENCY_DEVICE}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_polls_while_requests_follow_closely() {
        let poll = BusyPoll::new(2, None);
        assert!(!poll.begin().is_polling, "nothing is known yet");
        poll.record(POLL_MAX / 2);
        assert!(poll.begin().is_polling);
        poll.record(POLL_MAX * 2);
        assert!(!poll.begin().is_polling);
        assert_eq!(poll.sleep_timeout(), None, "no processor is kept awake");
    }

    #[test]
    fn polling_ends_soon_and_needs_a_second_processor() {
        let poll = BusyPoll::new(2, None);
        poll.record(Duration::ZERO);
        let mut wait = poll.begin();
        assert!(wait.is_polling);
        let begin = Instant::now();
        while poll.poll_again(&mut wait) {
            assert!(begin.elapsed() < Duration::from_secs(10));
        }
        let poll = BusyPoll::new(1, None);
        poll.record(Duration::ZERO);
        assert!(!poll.begin().is_polling);
    }

    #[test]
    fn some_waits_do_not_poll_after_a_long_yield() {
        let poll = BusyPoll::new(2, None);
        poll.record(Duration::ZERO);
        poll.skipped_polls.store(SKIPPED_POLLS, Ordering::Relaxed);
        let skipped = (0..1000).take_while(|_| !poll.begin().is_polling).count();
        assert_eq!(skipped, SKIPPED_POLLS as usize);
    }
}
