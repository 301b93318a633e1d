//! Waits for a condition, or until another thread waits; but not for ever. Needs nothing but the standard library:
//! tests of crates below this one include the file.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; panics with `what` if it does not within 60 s.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Work that another thread does, and that has to wait for the test. Unlike a pause of some time, this shows whether
/// the other thread has come to its wait, however busy the machine is.
#[derive(Debug, Default)]
pub struct Waiter {
    /// The folder of the working thread in /proc.
    pub(crate) thread: OnceLock<std::path::PathBuf>,
    has_ended: AtomicBool,
}

impl Waiter {
    /// How often in a row, once a millisecond, a thread must be seen asleep, to count as waiting. A thread that lacks a
    /// processor is not asleep.
    const SAMPLES: u32 = 20;

    /// Does the work on this thread.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let thread =
            std::fs::read_link("/proc/thread-self").expect("a thread has a folder in /proc");
        self.thread.set(std::path::Path::new("/proc").join(thread)).expect("one thread works");
        let result = work();
        self.has_ended.store(true, Ordering::Release);
        result
    }

    /// Waits until the thread waits in its work. Returns false if the work has ended without that: then the test does
    /// not reach its race. It should say so once it has released what other threads wait for.
    #[must_use]
    pub fn comes_to_wait(&self) -> bool {
        let (deadline, mut asleep) = (Instant::now() + PATIENCE, 0);
        while asleep < Self::SAMPLES && !self.has_ended() && Instant::now() < deadline {
            asleep = if self.is_asleep() { asleep + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
        asleep >= Self::SAMPLES
    }

    /// Returns whether the work has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns whether the thread is asleep.
    pub(crate) fn is_asleep(&self) -> bool {
        let Some(folder) = self.thread.get() else { return false };
        let stat = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
        // After the name, which may have anything in it.
        let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
        matches!(state, Some('S' | 'D'))
    }
}

/// Waits until each thread of this process whose name begins with `name` has woken `times` times since, or has ended.
/// Panics if there is none.
#[track_caller]
pub fn wait_for_wakes(name: &str, times: u64) {
    let threads = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    let folders = threads.map(|thread| thread.expect("a process has threads").path());
    let is_named = |folder: &std::path::PathBuf| {
        std::fs::read_to_string(folder.join("comm")).is_ok_and(|found| found.starts_with(name))
    };
    let mut left: Vec<_> =
        folders.filter(is_named).map(|folder| (wakes(&folder), folder)).collect();
    assert!(!left.is_empty(), "no thread has a name such as {name}");
    wait_until("threads wake", || {
        left.retain(|(before, folder)| match (before, wakes(folder)) {
            (Some(before), Some(now)) => now < before + times,
            _ => false,
        });
        left.is_empty()
    });
}

/// Returns how often a thread has gone to sleep. `None` if it has ended.
fn wakes(folder: &std::path::Path) -> Option<u64> {
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}
