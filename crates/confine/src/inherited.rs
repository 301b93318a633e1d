//! Closing of inherited files, and of access to the standard input.
#![allow(unsafe_code)]

use std::io::IsTerminal;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::Resource;

use crate::limits;

/// The first descriptor after the standard streams.
const FIRST: RawFd = 3;
/// The most descriptors that a process may have by default, whatever its limit
/// (/proc/sys/fs/nr_open).
const LIMIT_DEFAULT: RawFd = 1 << 20;
/// The number of descriptors that are looked at without a list.
const LOOKED_AT_MAX: RawFd = 1 << 12;

/// Descriptors that were open when the program started, but those of the standard streams.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    descriptors: Vec<RawFd>,
}

impl Inherited {
    /// Lists the descriptors. [`close`](Self::close) closes them all, so this must be called before
    /// the program opens any file. Returns nothing if it was called before.
    ///
    /// Where /proc does not list them, closes them at once: paths such as /dev/fd/9, by which the
    /// program may be asked to open one of them, do not exist there.
    pub fn list() -> Self {
        static IS_LISTED: AtomicBool = AtomicBool::new(false);
        if IS_LISTED.swap(true, Ordering::Relaxed) {
            return Self::default();
        }
        let Some(numbers) = listed() else {
            close_from(FIRST);
            return Self::default();
        };
        let is_inherited = |number: &RawFd| *number >= FIRST && is_open(*number);
        Self { descriptors: numbers.into_iter().filter(is_inherited).collect() }
    }

    /// Closes the descriptors. Each process may call this once, before it closes descriptors of its
    /// own.
    pub fn close(&self) {
        for &descriptor in &self.descriptors {
            // SAFETY: `list` was called before the program had descriptors of its own, so none of
            // these has another owner. Each process calls this at most once, and first of all that
            // closes descriptors.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }
}

/// Returns the first open file that `matches`. Where /proc does not tell the descriptors, only the
/// first ones are looked at: the kernel gives new files the lowest numbers.
pub fn find_open(matches: impl Fn(BorrowedFd<'_>) -> bool) -> Option<RawFd> {
    let numbers = listed().unwrap_or_else(|| (0..LOOKED_AT_MAX).collect());
    numbers.into_iter().filter(|number| is_open(*number)).find(|number| {
        // SAFETY: the descriptor is open, and only used in this call.
        matches(unsafe { BorrowedFd::borrow_raw(*number) })
    })
}

/// Returns whether a descriptor is open. That of the folder is not, which [`listed`] has read.
fn is_open(number: RawFd) -> bool {
    // SAFETY: the descriptor is only used in this call, which fails if it is not open.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok()
}

/// Returns the open descriptors. `None` if /proc does not tell all of them.
fn listed() -> Option<Vec<RawFd>> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    entries.map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Closes all descriptors from `first` on. The program must have opened none of them.
fn close_from(first: RawFd) {
    let (last, flags) = (RawFd::MAX, 0);
    // SAFETY: the call takes numbers, and nothing else owns the descriptors, since the program has
    // opened none.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } == 0 {
        return;
    }
    // Before Linux 5.9, or if the host refuses the call. The limit may have been lowered after the
    // files were opened.
    let limit = match limits::get(Resource::Nofile) {
        Ok(limit) => limit.maximum.map_or(RawFd::MAX, |max| max.try_into().unwrap_or(RawFd::MAX)),
        Err(_) => RawFd::MAX,
    };
    let end = limit.max(LIMIT_DEFAULT);
    for number in first..end {
        // SAFETY: as above.
        unsafe { libc::close(number) };
    }
}

/// Makes standard input empty. A terminal that is standard output or standard error is opened
/// again, for writing only, if that is allowed, so that the process cannot read what is typed.
pub fn leave_input() -> Result<(), Errno> {
    let (empty, end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    drop(end);
    rustix::stdio::dup2_stdin(empty)?;
    if let Some(terminal) = open_terminal(std::io::stdout(), "/proc/self/fd/1") {
        rustix::stdio::dup2_stdout(terminal)?;
    }
    if let Some(terminal) = open_terminal(std::io::stderr(), "/proc/self/fd/2") {
        rustix::stdio::dup2_stderr(terminal)?;
    }
    Ok(())
}

/// Opens the terminal that is `stream`, which the path leads to, for writing only. Returns `None`
/// if it is none.
fn open_terminal(stream: impl IsTerminal, path: &str) -> Option<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let is_terminal = stream.is_terminal();
    is_terminal.then(|| rustix::fs::open(path, flags, Mode::empty()).ok()).flatten()
}
