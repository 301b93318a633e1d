//! Busy polling: while requests follow each other closely, who reads them looks for the next one
//! before it sleeps. A processor that went to sleep takes tens of microseconds to wake, several times
//! as long as serving what is cached; on virtual machines above all.
//!
//! Where other programs need the processors (`contention`), none of these sleeps, and polling takes time from those
//! programs. The readers do not poll then, and stay close to their clients instead (`affinity`).
//!
//! Not here: reading (`channel`).

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::Timespec;

use crate::transport::affinity::Affinity;
use crate::transport::contention::Contention;

/// How long to look. Whoever waits for its answer comes back sooner, from a sleeping processor, too.
const PATIENCE: Duration = Duration::from_micros(100);
/// A turn of yielding that takes longer has given the processor to somebody who computes, rather than
/// to the client that the reader waits for.
const YIELD_MAX: Duration = Duration::from_millis(1);
/// So many waits go by without looking then.
const WAITS_OF_REST: u32 = 100;
/// How long processors are kept awake after the last request.
const AWAKE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Where programs tell the kernel how long a processor may take to wake.
const LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";
/// In microseconds: none may sleep, and any may.
const LATENCY_NONE: i32 = 0;
const LATENCY_ANY: i32 = -1;

/// What the readers of a channel know of how closely requests follow each other.
#[derive(Debug, Default)]
pub struct BusyPoll {
    /// Whether looking can pay at all: somebody else can run meanwhile.
    possible: bool,
    /// The last request came within [`PATIENCE`].
    close: AtomicBool,
    /// Waits that are still to go by without looking.
    rest: AtomicU32,
    contention: Option<Contention>,
    affinity: Option<Affinity>,
    wakeful: Option<Wakeful>,
}

/// One wait for a request.
#[derive(Debug)]
pub struct Wait {
    begin: Instant,
    looking: bool,
}

impl BusyPoll {
    /// For readers that may use so many processors; with `wakeful`, all of the host's are kept awake
    /// meanwhile.
    pub fn new(processors: usize, wakeful: Option<Wakeful>) -> Self {
        Self { possible: processors > 1, wakeful, ..Self::default() }
    }

    /// The same, but the processors are left to other programs that need them. The readers stay close to their
    /// clients then, with `affinity`.
    pub fn beside_others(self, contention: Contention, affinity: Option<Affinity>) -> Self {
        Self { contention: Some(contention), affinity, ..self }
    }

    /// The same, but processors may sleep.
    pub fn letting_sleep(self) -> Self {
        Self { wakeful: None, ..self }
    }

    /// There is no request yet.
    pub fn begin(&self) -> Wait {
        let is_close = self.possible && self.close.load(Ordering::Relaxed);
        let looking = is_close && !self.rests() && !self.is_contended();
        Wait { begin: Instant::now(), looking }
    }

    /// Whether a wait is to go on looking, rather than to sleep. Lets others run first.
    pub fn look_again(&self, wait: &mut Wait) -> bool {
        if wait.looking {
            let before = Instant::now();
            wait.looking = before.duration_since(wait.begin) < PATIENCE;
            std::thread::yield_now();
            if before.elapsed() > YIELD_MAX {
                self.rest.store(WAITS_OF_REST, Ordering::Relaxed);
                wait.looking = false;
            }
        }
        wait.looking
    }

    /// How long a wait may sleep before [`slept_long`](Self::slept_long) is to be told; `None` for as
    /// long as it takes.
    pub fn sleep(&self) -> Option<&'static Timespec> {
        self.wakeful.as_ref().filter(|wakeful| wakeful.is_on()).map(|_| &AWAKE)
    }

    /// Nothing came for as long as [`sleep`](Self::sleep) said.
    pub fn slept_long(&self) {
        if let Some(wakeful) = &self.wakeful {
            wakeful.set(false);
        }
    }

    /// The wait is over: a request is there.
    pub fn end(&self, wait: &Wait) {
        self.note(wait.begin.elapsed());
    }

    fn note(&self, waited: Duration) {
        let close = waited < PATIENCE;
        self.close.store(close, Ordering::Relaxed);
        if let (true, Some(wakeful)) = (close, &self.wakeful) {
            wakeful.set(!self.is_contended());
        }
    }

    /// The calling thread, a reader, has taken a request of the thread `client`.
    pub fn taken(&self, client: u32) {
        // The kernel's own requests have no client.
        if let (Some(affinity), 1..) = (&self.affinity, client)
            && self.is_contended()
        {
            affinity.follow(client);
        }
    }

    fn is_contended(&self) -> bool {
        self.contention.as_ref().is_some_and(Contention::is_contended)
    }

    fn rests(&self) -> bool {
        let rest = self.rest.load(Ordering::Relaxed);
        // Another reader's count is as good.
        self.rest.store(rest.saturating_sub(1), Ordering::Relaxed);
        rest > 0
    }
}

/// Keeps all processors of the host from sleeping, when it is told to.
#[derive(Debug)]
pub struct Wakeful {
    device: File,
    on: AtomicBool,
    change: Mutex<()>,
}

impl Wakeful {
    /// One that is off. Takes the right to write to /dev/cpu_dma_latency.
    pub fn open() -> io::Result<Self> {
        let device = File::options().write(true).open(LATENCY_DEVICE).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot open {LATENCY_DEVICE}: {error}"))
        })?;
        Ok(Self { device, on: AtomicBool::new(false), change: Mutex::new(()) })
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn set(&self, on: bool) {
        if self.is_on() == on {
            return;
        }
        let _changing = self.change.lock();
        if self.on.swap(on, Ordering::Relaxed) != on {
            let latency = if on { LATENCY_NONE } else { LATENCY_ANY };
            if let Err(error) = (&self.device).write_all(&latency.to_ne_bytes()) {
                tracing::warn!("{LATENCY_DEVICE}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_looks_while_requests_follow_closely() {
        let poll = BusyPoll::new(2, None);
        assert!(!poll.begin().looking, "nothing is known yet");
        poll.note(PATIENCE / 2);
        assert!(poll.begin().looking);
        poll.note(PATIENCE * 2);
        assert!(!poll.begin().looking);
        assert_eq!(poll.sleep(), None, "nothing to tell later");
    }

    #[test]
    fn nobody_looks_for_long_or_on_the_only_processor() {
        let poll = BusyPoll::new(2, None);
        poll.note(Duration::ZERO);
        let mut wait = poll.begin();
        assert!(wait.looking);
        let begin = Instant::now();
        while poll.look_again(&mut wait) {
            assert!(begin.elapsed() < Duration::from_secs(10));
        }
        let poll = BusyPoll::new(1, None);
        poll.note(Duration::ZERO);
        assert!(!poll.begin().looking);
    }

    #[test]
    fn after_a_long_turn_of_others_it_rests() {
        let poll = BusyPoll::new(2, None);
        poll.note(Duration::ZERO);
        poll.rest.store(WAITS_OF_REST, Ordering::Relaxed);
        let resting = (0..1000).take_while(|_| !poll.begin().looking).count();
        assert_eq!(resting, WAITS_OF_REST as usize);
    }
}
