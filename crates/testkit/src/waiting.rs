//! Waits with a time limit, for a condition, or until another thread waits. Uses only the standard
//! library, since tests of crates that this one depends on include the file.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time after which a test gives up.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Waits until `condition` returns true. Panics with `what` after 60 s.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIME_MAX;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {TIME_MAX:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Work of another thread that must wait for the test. Unlike a pause of some time, this shows
/// whether the other thread has begun to wait, even on a busy machine.
#[derive(Debug, Default)]
pub struct Waiter {
    /// The folder of the working thread in /proc.
    pub(crate) thread: OnceLock<std::path::PathBuf>,
    has_ended: AtomicBool,
}

impl Waiter {
    /// The number of successive samples, one each millisecond, in which a waiting thread is asleep.
    /// A thread that is runnable, but has no processor, is not asleep.
    const SAMPLES: u32 = 20;

    /// Does `work` on this thread.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let thread =
            std::fs::read_link("/proc/thread-self").expect("a thread has a folder in /proc");
        self.thread.set(std::path::Path::new("/proc").join(thread)).expect("one thread works");
        let result = work();
        self.has_ended.store(true, Ordering::Release);
        result
    }

    /// Waits until the thread waits in its work. Returns false if the work has ended without a
    /// wait: then the test does not reach its race. The test should fail then, after it has
    /// released all other threads.
    #[must_use]
    pub fn begins_to_wait(&self) -> bool {
        let deadline = Instant::now() + TIME_MAX;
        let mut asleep = 0;
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
        let state = self.thread.get().and_then(|folder| thread_state(folder));
        matches!(state, Some('S' | 'D'))
    }
}

/// Returns the letter for the state of a thread with this folder in /proc, or `None` if it has
/// ended.
pub fn thread_state(folder: &std::path::Path) -> Option<char> {
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    // The state follows the name in parentheses, which may contain anything.
    stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next())
}

/// Waits until each thread of this process whose name begins with `name` has woken up `times` times
/// from now on, or has ended. Panics if there is no such thread.
#[track_caller]
pub fn wait_for_wakes(name: &str, times: u64) {
    let threads = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    let folders = threads.map(|thread| thread.expect("a process has threads").path());
    let is_named = |folder: &std::path::PathBuf| {
        std::fs::read_to_string(folder.join("comm")).is_ok_and(|found| found.starts_with(name))
    };
    let mut left: Vec<_> =
        folders.filter(is_named).map(|folder| (wakes(&folder), folder)).collect();
    assert!(!left.is_empty(), "no thread's name begins with {name}");
    wait_until("threads wake", || {
        left.retain(|(before, folder)| match (before, wakes(folder)) {
            (Some(before), Some(now)) => now < before + times,
            _ => false,
        });
        left.is_empty()
    });
}

/// Returns how often a thread has gone to sleep, or `None` if it has ended.
fn wakes(folder: &std::path::Path) -> Option<u64> {
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}
