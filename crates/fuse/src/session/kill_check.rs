//! Checks whether a thread of the host is being killed. The confined server sees no other process,
//! so it asks the guard.

use std::os::fd::OwnedFd;

use rustix::event::Timespec;

use super::questions::{self, Asker};
use super::status;

/// The timeout of an answer, for which the guard reads one file.
const ANSWER_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// SIGKILL in a set of signals. The kernel adds it to each thread of a process that any signal
/// kills.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// The server's side of the check.
#[derive(Debug)]
pub struct KillCheck(Asker);

impl KillCheck {
    /// Creates a check that asks through `socket`.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Asker::new(socket, ANSWER_TIMEOUT))
    }

    /// Returns whether the thread is being killed. Returns false if the guard does not answer.
    pub fn is_killed(&self, thread: u32) -> bool {
        self.0.ask(thread).is_some_and(|answer| answer != 0)
    }
}

/// Starts a thread of the guard that answers until the other end of `socket` is closed.
pub fn start(socket: OwnedFd) {
    questions::start("fuse-kill-check", socket, answer);
}

fn answer(thread: u32) -> u32 {
    status::read(thread).is_some_and(|status| has_kill_pending(&status)).into()
}

/// Returns whether SIGKILL is pending for a thread with this status (the contents of
/// /proc/PID/status).
fn has_kill_pending(status: &str) -> bool {
    let pending = status::field(status, "SigPnd");
    let pending = pending.and_then(|set| u64::from_str_radix(set, 16).ok());
    pending.is_some_and(|set| set & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;

    #[test]
    fn a_thread_with_a_pending_kill_is_being_killed() {
        let status = |set: &str| format!("Name:\tx\nSigPnd:\t{set}\nShdPnd:\t0000000000000100\n");
        assert!(has_kill_pending(&status("0000000000000100")));
        assert!(has_kill_pending(&status("0000000000004102")));
        assert!(!has_kill_pending(&status("0000000000004000")));
        assert!(!has_kill_pending(&status("nonsense")));
        assert!(!has_kill_pending(""));
    }

    #[test]
    fn running_and_missing_threads_are_not_being_killed() {
        let (ours, theirs) = socket::pair().unwrap();
        start(theirs);
        let check = KillCheck::new(ours);
        assert!(!check.is_killed(std::process::id()));
        assert!(!check.is_killed(u32::MAX));
        assert_eq!(check.0.ask(u32::MAX), Some(0), "the guard answers");
    }
}
