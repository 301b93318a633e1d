//! Processes: forking, waiting for a child, leaving the terminal and the mount namespace. The only unsafe code of this
//! crate is here.
#![allow(unsafe_code)]

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::{SessionError, retry};

/// How often a child that is to end is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// Which process this is after a fork.
pub enum Side {
    /// The one that was there before.
    Parent(Child),
    /// The new one.
    Child,
}

/// A child that has not been waited for yet.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
}

/// Forks. EBUSY when other threads are running: whatever locks they hold would stay locked in the
/// child.
pub fn fork() -> Result<Side, Errno> {
    // Where /proc is not mounted this cannot be told.
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err(Errno::BUSY);
    }
    // SAFETY: no other thread is running, so that the child finds every lock, the allocator's
    // included, as this thread left it, and may do whatever this thread may.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(Side::Child),
        pid => match Pid::from_raw(pid).filter(|_| pid > 0) {
            Some(pid) => Ok(Side::Parent(Child { pid })),
            None => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
            }
        },
    }
}

impl Child {
    /// Kills it.
    pub fn kill(&self) {
        // It may be gone already.
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
    }

    /// Waits for its end, which is a success or a failure to report.
    pub fn wait<E>(self) -> Result<(), SessionError<E>> {
        let status = retry(|| rustix::process::waitpid(Some(self.pid), WaitOptions::empty()))
            .map_err(|errno| SessionError::Host("wait for a child", errno))?
            .map(|(_, status)| status);
        judge(status)
    }

    /// Waits for its end like [`wait`](Self::wait), and kills it after `timeout`.
    pub fn wait_within<E>(self, timeout: Duration) -> Result<(), SessionError<E>> {
        let until = Instant::now() + timeout;
        while Instant::now() < until {
            // One that cannot be waited for is an error below.
            match rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(None) | Err(Errno::INTR) => std::thread::sleep(LOOK),
                Ok(Some((_, status))) => return judge(Some(status)),
                Err(_) => break,
            }
        }
        self.kill();
        self.wait()
    }

    /// Waits for its end, which can only be a failure.
    pub fn failure<E>(self) -> SessionError<E> {
        failure_of(self.wait())
    }
}

/// Returns why a process has ended that was to go on.
pub fn failure_of<E>(ended: Result<(), SessionError<E>>) -> SessionError<E> {
    ended.err().unwrap_or(SessionError::Reported(1))
}

fn judge<E>(status: Option<WaitStatus>) -> Result<(), SessionError<E>> {
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

/// Moves the calling thread to a copy of its mount namespace.
pub fn unshare_mounts() -> Result<(), Errno> {
    // SAFETY: this separates no file descriptors, which is what can be unsafe.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
}

/// Leaves the terminal: neither its signals nor its end concern this process any more.
pub fn leave_terminal() {
    // Fails only for a process that leads its group, which a forked one does not.
    let _ = rustix::process::setsid();
}

/// Leaves the working directory, which would otherwise be kept in use.
pub fn leave_directory() {
    let _ = rustix::process::chdir("/");
}

/// Where output goes that nobody reads.
pub fn open_null() -> Result<std::os::fd::OwnedFd, Errno> {
    rustix::fs::open(Path::new("/dev/null"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Leaves standard input and output, and reads no terminal any more: if standard error is one, opens it again to be
/// written only, where that is allowed.
pub fn leave_input(null: &std::os::fd::OwnedFd) -> Result<(), Errno> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    if std::io::stderr().is_terminal() {
        let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        if let Ok(errors) = rustix::fs::open("/proc/self/fd/2", flags, Mode::empty()) {
            rustix::stdio::dup2_stderr(errors)?;
        }
    }
    Ok(())
}

/// Leaves standard input, output and error, so that nobody waits for this process to close them.
pub fn leave_streams(null: &std::os::fd::OwnedFd) -> Result<(), Errno> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)
}
