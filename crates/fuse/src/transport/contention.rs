//! Detection of other programs that need the processors: the number of runnable threads of the host in
//! /proc/loadavg, which is opened before the confinement. Not here: what follows from it (`busy_poll`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::interval::Interval;

/// Its fourth field is the number of runnable threads, and that of all.
const LOADS: &str = "/proc/loadavg";
/// The time between two looks. Each takes a microsecond or two.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The number of looks in a row that find too many runnable threads before the processors count as contended, since
/// threads of the kernel come and go. As many that find fewer end that.
const LOOKS: u32 = 3;

/// What the readers of a channel know of other programs' need for the processors.
#[derive(Debug)]
pub struct Contention {
    loads: File,
    processors: u32,
    looks: Interval,
    /// Looks that found too many threads, less those that did not: below twice [`LOOKS`].
    contended: AtomicU32,
}

impl Contention {
    /// Opens the source for a host with `processors` processors.
    pub fn open(processors: usize) -> io::Result<Self> {
        let loads = File::open(LOADS)?;
        let processors = processors as u32;
        Ok(Self {
            loads,
            processors,
            looks: Interval::new(LOOK_EVERY),
            contended: AtomicU32::new(0),
        })
    }

    /// Returns whether more threads are runnable than there are processors. The calling thread is one of them,
    /// and mostly the client that it has just answered is another.
    pub fn is_contended(&self) -> bool {
        if self.looks.has_ended() {
            let mut text = [0; 128];
            let length = self.loads.read_at(&mut text, 0).unwrap_or(0);
            self.note(runnable(&text[..length]).is_some_and(|count| count > self.processors));
        }
        self.contended.load(Ordering::Relaxed) >= LOOKS
    }

    fn note(&self, is_too_much: bool) {
        // One thread at a time is here, unless one took 10 ms to get here.
        let contended = self.contended.load(Ordering::Relaxed);
        let contended = match is_too_much {
            true => (contended + 1).min(2 * LOOKS - 1),
            false => contended.saturating_sub(1),
        };
        self.contended.store(contended, Ordering::Relaxed);
    }
}

/// `0.20 0.18 0.12 1/80 11206`: the number before the slash.
fn runnable(loads: &[u8]) -> Option<u32> {
    let field = loads.split(|&byte| byte == b' ').nth(3)?;
    std::str::from_utf8(field).ok()?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_runnable_is_the_number_before_the_slash() {
        assert_eq!(runnable(b"0.20 0.18 0.12 13/80 11206\n"), Some(13));
        for other in [&b""[..], b"0.20 0.18 0.12", b"0.20 0.18 0.12 x/80 1", b"0.2 0.1 0.1 1 2"] {
            assert_eq!(runnable(other), None);
        }
    }

    #[test]
    fn a_host_is_contended_when_too_much_is_runnable_several_times() {
        let contention = Contention::open(2).unwrap();
        // Nobody looks meanwhile.
        contention.looks.stop();
        contention.note(true);
        contention.note(true);
        contention.note(false);
        contention.note(true);
        assert!(!contention.is_contended());
        contention.note(true);
        assert!(contention.is_contended());
        for _ in 0..10 {
            contention.note(true);
        }
        for _ in 0..LOOKS {
            assert!(contention.is_contended());
            contention.note(false);
        }
        assert!(!contention.is_contended());
    }

    #[test]
    fn a_host_on_which_more_threads_run_than_there_are_processors_is_contended() {
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
