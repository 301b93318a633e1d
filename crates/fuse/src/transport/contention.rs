//! Detection of other programs that need the processors, by the number of runnable threads of the
//! host in /proc/loadavg. The file is opened before the server is confined. Not here: the
//! consequences (`busy_poll`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::interval::Interval;

/// The file whose fourth field has the number of runnable threads and the number of all threads.
const LOADS: &str = "/proc/loadavg";
/// The interval of checks. Each takes a microsecond or two.
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// The number of checks in a row that must find too many runnable threads before the processors
/// count as contended, since threads of the kernel come and go. The same number of checks that find
/// fewer threads ends the contention.
const CHECKS: u32 = 3;

/// Whether other programs need the processors.
#[derive(Debug)]
pub struct Contention {
    loads: File,
    processors: u32,
    checks: Interval,
    /// The number of checks that found too many threads, less the checks that did not, from 0 to
    /// `2 * CHECKS - 1`.
    contended: AtomicU32,
}

impl Contention {
    /// Opens the load file of a host with `processors` processors.
    pub fn open(processors: usize) -> io::Result<Self> {
        let loads = File::open(LOADS)?;
        let processors = processors as u32;
        Ok(Self {
            loads,
            processors,
            checks: Interval::new(CHECK_EVERY),
            contended: AtomicU32::new(0),
        })
    }

    /// Returns whether more threads are runnable than there are processors. The calling thread is
    /// runnable, and usually so is the client that it has just answered.
    pub fn is_contended(&self) -> bool {
        if self.checks.has_ended() {
            let mut text = [0; 128];
            let length = self.loads.read_at(&mut text, 0).unwrap_or(0);
            self.record(runnable(&text[..length]).is_some_and(|count| count > self.processors));
        }
        self.contended.load(Ordering::Relaxed) >= CHECKS
    }

    /// Records the result of a check: whether there were too many runnable threads.
    fn record(&self, is_too_many: bool) {
        // Only one thread at a time is here, unless a check takes longer than the interval. Then a
        // count may be lost.
        let contended = self.contended.load(Ordering::Relaxed);
        let contended = if is_too_many {
            (contended + 1).min(2 * CHECKS - 1)
        } else {
            contended.saturating_sub(1)
        };
        self.contended.store(contended, Ordering::Relaxed);
    }
}

/// Returns the number of runnable threads: the number before the slash in
/// `0.20 0.18 0.12 1/80 11206`.
fn runnable(loads: &[u8]) -> Option<u32> {
    let field = loads.split(|&byte| byte == b' ').nth(3)?;
    std::str::from_utf8(field).ok()?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_runnable_threads_is_before_the_slash() {
        assert_eq!(runnable(b"0.20 0.18 0.12 13/80 11206\n"), Some(13));
        for other in [&b""[..], b"0.20 0.18 0.12", b"0.20 0.18 0.12 x/80 1", b"0.2 0.1 0.1 1 2"] {
            assert_eq!(runnable(other), None);
        }
    }

    #[test]
    fn a_host_is_contended_after_several_checks_find_too_many_runnable_threads() {
        let contention = Contention::open(2).unwrap();
        // No real check comes in between.
        contention.checks.stop();
        contention.record(true);
        contention.record(true);
        contention.record(false);
        contention.record(true);
        assert!(!contention.is_contended());
        contention.record(true);
        assert!(contention.is_contended());
        for _ in 0..10 {
            contention.record(true);
        }
        for _ in 0..CHECKS {
            assert!(contention.is_contended());
            contention.record(false);
        }
        assert!(!contention.is_contended());
    }

    #[test]
    fn a_host_with_more_runnable_threads_than_processors_is_contended() {
        let processors = std::thread::available_parallelism().unwrap().get();
        let contention = Contention::open(processors).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..processors * 3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            while !contention.is_contended() {
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
