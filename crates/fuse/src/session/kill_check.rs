//! Checks whether a thread of the host is being killed. The confined server sees no other process, so it asks the
//! guard.

use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::questions;
use crate::socket;

/// The timeout of an answer, for which the guard reads one file. After a timeout, the guard is not asked again.
const ANSWER_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// SIGKILL in a set of signals. The kernel adds it to each thread of a process that any signal kills.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// The server's side of the check: its end of the socket, as long as a guard answers.
#[derive(Debug)]
pub struct KillCheck(Mutex<Option<OwnedFd>>);

impl KillCheck {
    /// Creates a check that asks through `socket`.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(Some(socket)))
    }

    /// Returns whether the thread is being killed. Returns false if the guard does not answer.
    pub fn is_killed(&self, thread: u32) -> bool {
        let mut socket = self.0.lock();
        let answer = socket.as_ref().and_then(|socket| ask(socket, thread));
        if answer.is_none() {
            *socket = None;
        }
        answer.unwrap_or(false)
    }
}

/// Asks the guard. Returns `None` if it does not answer.
fn ask(socket: &OwnedFd, thread: u32) -> Option<bool> {
    socket::send(socket, &thread.to_ne_bytes(), None).ok()?;
    let mut ready = [PollFd::new(socket, PollFlags::IN)];
    super::retry(|| rustix::event::poll(&mut ready, Some(&ANSWER_TIMEOUT)))
        .ok()
        .filter(|&n| n > 0)?;
    let mut answer = [0; size_of::<u32>()];
    match socket::receive(socket, &mut answer) {
        Ok((length, None)) if length == answer.len() => Some(u32::from_ne_bytes(answer) != 0),
        _ => None,
    }
}

/// Starts a thread of the guard that answers until the other end of `socket` is closed.
pub fn start(socket: OwnedFd) {
    questions::start("fuse-kill-check", socket, answer);
}

fn answer(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| has_kill_pending(&status)).into()
}

/// Returns whether SIGKILL is pending for a thread with this status (the contents of /proc/PID/status).
fn has_kill_pending(status: &str) -> bool {
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    pending.is_some_and(|set| set & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(check.0.lock().is_some(), "the guard answers");
    }

    #[test]
    fn a_guard_that_has_ended_is_not_asked_again() {
        let (ours, theirs) = socket::pair().unwrap();
        drop(theirs);
        let check = KillCheck::new(ours);
        assert!(!check.is_killed(1));
        assert!(check.0.lock().is_none());
    }
}
