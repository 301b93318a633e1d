//! Child processes: the fork, questions that a child answers, and waits for a child. Not here: what
//! a child leaves of its parent (`session::process`).
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::retry::retry;

/// The interval at which a wait with a timeout checks the child.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// The exit status of a child whose answer is yes.
const YES: u8 = 3;

/// Returns the answer of a child to `question`, whose system calls may never end. `None` after
/// `timeout`.
///
/// This function **forks**: no other thread may be running.
pub fn ask(timeout: Duration, question: impl FnOnce() -> bool) -> Result<Option<bool>, Errno> {
    match fork()? {
        Side::Child => std::process::exit(if question() { YES } else { 0 }.into()),
        Side::Parent(child) => {
            let ended = child.ended_within(timeout);
            if ended.is_none() {
                child.kill();
            }
            Ok(ended.map(|outcome| outcome == Err(ChildError::Status(YES))))
        }
    }
}

/// Why a child has no successful outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChildError {
    /// It ended with this status.
    Status(u8),
    /// It was killed by this signal.
    Killed(i32),
    /// It cannot be waited for.
    Wait(Errno),
}

/// The process in which a fork returns.
pub enum Side {
    /// The original process.
    Parent(Child),
    /// The new process.
    Child,
}

/// A child process.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
}

/// Forks. Fails with EBUSY if other threads are running, since locks that they hold would stay
/// locked in the child.
pub fn fork() -> Result<Side, Errno> {
    // Without /proc, the number of threads is unknown.
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err(Errno::BUSY);
    }
    keep_outcomes();
    // SAFETY: no other thread is running. So the child finds every lock, including the allocator's,
    // as this thread left it, and may do whatever this thread may.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        return Ok(Side::Child);
    }
    // `from_raw` takes no negative numbers.
    match Pid::from_raw(pid.max(0)) {
        Some(pid) => Ok(Side::Parent(Child { pid })),
        None => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Makes the kernel keep the outcomes of children until they are waited for. A parent that ignores
/// SIGCHLD passes this on to its children.
fn keep_outcomes() {
    // SAFETY: all-zero bytes are a valid `sigaction`, the call only stores to it, and the default
    // action runs no code.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let is_known = libc::sigaction(libc::SIGCHLD, std::ptr::null(), &raw mut action) == 0;
        let drops =
            action.sa_sigaction == libc::SIG_IGN || action.sa_flags & libc::SA_NOCLDWAIT != 0;
        if is_known && drops {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
    }
}

impl Child {
    /// Kills the process.
    pub fn kill(&self) {
        // It may have ended already.
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
    }

    /// Waits for the end of the process. Returns its outcome.
    pub fn wait(self) -> Result<(), ChildError> {
        let status = retry(|| rustix::process::waitpid(Some(self.pid), WaitOptions::empty()))
            .map_err(ChildError::Wait)?
            .map(|(_, status)| status);
        outcome_of(status)
    }

    /// Waits for the end of the process like [`wait`](Self::wait), and kills it after `timeout`.
    pub fn wait_within(self, timeout: Duration) -> Result<(), ChildError> {
        self.ended_within(timeout).unwrap_or_else(|| {
            self.kill();
            self.wait()
        })
    }

    /// Waits for the end of the process. Returns its outcome, or `None` after `timeout`. After the
    /// outcome, the process must not be used any more.
    pub fn ended_within(&self, timeout: Duration) -> Option<Result<(), ChildError>> {
        let until = Instant::now() + timeout;
        loop {
            match rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(None) | Err(Errno::INTR) => {}
                Ok(Some((_, status))) => return Some(outcome_of(Some(status))),
                Err(errno) => return Some(Err(ChildError::Wait(errno))),
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(CHECK_EVERY);
        }
    }

    /// Returns whether the main thread of the process has ended. The others then end, too, unless
    /// they wait for something that cannot be interrupted.
    pub fn is_ending(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        // The state follows the name of the program (proc_pid_stat(5)).
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
    }
}

/// Returns the outcome of a process with this wait status.
fn outcome_of(status: Option<WaitStatus>) -> Result<(), ChildError> {
    match status {
        Some(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => Ok(()),
            (Some(code), _) => Err(ChildError::Status(u8::try_from(code).unwrap_or(1))),
            (None, Some(signal)) => Err(ChildError::Killed(signal)),
            (None, None) => Err(ChildError::Status(1)),
        },
        None => Err(ChildError::Status(1)),
    }
}
