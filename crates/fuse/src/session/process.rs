//! Processes: fork, waits for a child, and the separation from the terminal and the mount namespace.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use rustix::thread::UnshareFlags;

use super::{SessionError, retry};

/// The interval at which a wait with a timeout checks the child.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// The exit status of a child whose answer is yes.
const YES: u8 = 3;

/// Returns the answer of a child to `question`, whose system calls may never end. `None` after `timeout`.
///
/// This function **forks**: no other thread may be running.
pub fn ask_child(
    timeout: Duration,
    question: impl FnOnce() -> bool,
) -> Result<Option<bool>, Errno> {
    match fork()? {
        Side::Child => std::process::exit(if question() { YES } else { 0 }.into()),
        Side::Parent(child) => {
            let ended = child.ended_within::<Infallible>(timeout);
            if ended.is_none() {
                child.kill();
            }
            Ok(ended.map(|outcome| matches!(outcome, Err(SessionError::Reported(YES)))))
        }
    }
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

/// Forks. Fails with EBUSY if other threads are running, since locks that they hold would stay locked in the child.
pub fn fork() -> Result<Side, Errno> {
    // Without /proc, the number of threads is unknown.
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err(Errno::BUSY);
    }
    keep_outcomes();
    // SAFETY: no other thread is running. So the child finds every lock, including the allocator's, as this thread left
    // it, and may do whatever this thread may.
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

/// Makes the kernel keep the outcomes of children until they are waited for. A parent that ignores SIGCHLD passes this on to
/// its children.
fn keep_outcomes() {
    // SAFETY: all-zero bytes are a valid `sigaction`, the call only stores to it, and the default action runs no code.
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
    pub fn wait<E>(self) -> Result<(), SessionError<E>> {
        let status = retry(|| rustix::process::waitpid(Some(self.pid), WaitOptions::empty()))
            .map_err(|errno| SessionError::Host("wait for a child", errno))?
            .map(|(_, status)| status);
        outcome_of(status)
    }

    /// Waits for the end of the process like [`wait`](Self::wait), and kills it after `timeout`.
    pub fn wait_within<E>(self, timeout: Duration) -> Result<(), SessionError<E>> {
        self.ended_within(timeout).unwrap_or_else(|| {
            self.kill();
            self.wait()
        })
    }

    /// Waits for the end of the process. Returns its outcome, or `None` after `timeout`. After the outcome, the process must not be
    /// used any more.
    pub fn ended_within<E>(&self, timeout: Duration) -> Option<Result<(), SessionError<E>>> {
        let until = Instant::now() + timeout;
        loop {
            match rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(None) | Err(Errno::INTR) => {}
                Ok(Some((_, status))) => return Some(outcome_of(Some(status))),
                Err(errno) => return Some(Err(SessionError::Host("wait for a child", errno))),
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(CHECK_EVERY);
        }
    }

    /// Returns whether the main thread of the process has ended. The others then end, too, unless they wait for something that
    /// cannot be interrupted.
    pub fn is_ending(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        // The state follows the name of the program (proc_pid_stat(5)).
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
    }

    /// Waits for the end of a process that should not have ended. Returns its error.
    pub fn failure<E>(self) -> SessionError<E> {
        failure_of(self.wait())
    }
}

/// Returns the error of a process that should not have ended.
pub fn failure_of<E>(ended: Result<(), SessionError<E>>) -> SessionError<E> {
    ended.err().unwrap_or(SessionError::Reported(1))
}

/// Returns the outcome of a process with this wait status.
fn outcome_of<E>(status: Option<WaitStatus>) -> Result<(), SessionError<E>> {
    match status {
        Some(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => Ok(()),
            (Some(code), _) => Err(SessionError::Reported(u8::try_from(code).unwrap_or(1))),
            (None, Some(signal)) => Err(SessionError::Killed(signal)),
            (None, None) => Err(SessionError::Reported(1)),
        },
        None => Err(SessionError::Reported(1)),
    }
}

/// The namespaces that a server needs nothing of, and their names.
pub const NAMESPACES: [(UnshareFlags, &str); 3] = [
    (UnshareFlags::NEWNET, "network"),
    (UnshareFlags::NEWIPC, "IPC"),
    (UnshareFlags::NEWUTS, "UTS"),
];

/// Moves the calling thread to a namespace of its own.
///
/// Panics if `namespace` is more than that.
pub fn unshare(namespace: UnshareFlags) -> Result<(), Errno> {
    assert!(!namespace.contains(UnshareFlags::FILES), "descriptors must stay shared");
    // SAFETY: the flags do not unshare the file descriptors, which would be unsafe.
    unsafe { rustix::thread::unshare_unsafe(namespace) }
}

/// Removes all variables of the environment, and overwrites their values. No other thread may be running.
pub fn clear_environment() {
    let first = first_environment();
    // SAFETY: no other thread reads the environment. Each pointer, up to the null, is to a string that the process may
    // write: the kernel has put it on the stack, or the C library on the heap. Nobody reads it afterwards, since
    // clearenv removes all pointers. The memory of the first environment is a part of the stack that has nothing else.
    unsafe {
        let mut variable = environ;
        while !variable.is_null() && !(*variable).is_null() {
            let length = libc::strlen(*variable);
            std::slice::from_raw_parts_mut((*variable).cast::<u8>(), length).fill(0);
            variable = variable.add(1);
        }
        libc::clearenv();
        if let Some(first) = first {
            std::ptr::with_exposed_provenance_mut::<u8>(first.start).write_bytes(0, first.len());
        }
    }
}

/// [`clear_environment`] for a process that may execute fusermount3: keeps `PATH`.
pub fn clear_environment_but_path() {
    let path = std::env::var_os("PATH");
    clear_environment();
    if let Some(path) = path {
        // SAFETY: no other thread is running.
        unsafe { std::env::set_var("PATH", path) };
    }
}

/// Returns the addresses of the memory with the environment of the program's start. The C library copies variables of its
/// own (`GLIBC_TUNABLES`), and no pointer is left to the first ones. `None` if the host does not show it.
fn first_environment() -> Option<Range<usize>> {
    /// The position of the first address behind the name of the program (proc_pid_stat(5), field 50).
    const POSITION: usize = 50 - 3;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut addresses = fields.split_ascii_whitespace().skip(POSITION).map(str::parse);
    let (start, end): (usize, usize) = (addresses.next()?.ok()?, addresses.next()?.ok()?);
    (start != 0 && start < end).then_some(start..end)
}

unsafe extern "C" {
    /// The variables of the environment (environ(7)).
    static environ: *const *mut libc::c_char;
}

/// Leaves the terminal's session. The process receives no more signals from the terminal, also when the terminal
/// closes.
pub fn leave_terminal() {
    // Fails only for the leader of a process group, which a forked process is not.
    let _ = rustix::process::setsid();
}

/// Changes to the root directory, since the file system of a working directory cannot be unmounted.
pub fn leave_directory() {
    let _ = rustix::process::chdir("/");
}

/// Opens /dev/null, for output that is to be discarded.
pub fn open_null() -> Result<OwnedFd, Errno> {
    rustix::fs::open(Path::new("/dev/null"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Replaces standard input and output by /dev/null, and standard error by `error`, so that no program waits for this process to
/// close them.
pub fn leave_streams(null: &OwnedFd, error: &OwnedFd) -> Result<(), Errno> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(error)
}
