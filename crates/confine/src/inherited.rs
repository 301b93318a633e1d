//! The files that a program has inherited from the one that started it, and what it must not read from.
#![allow(unsafe_code)]

use std::io::IsTerminal;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

/// The first descriptor after the standard streams.
const FIRST: RawFd = 3;
/// The descriptors that are tried if /proc does not list them.
const TRIED_MAX: RawFd = 1 << 16;

/// Descriptors that were open when the program started, but those of the standard streams.
#[derive(Clone, Debug, Default)]
pub struct Inherited {
    descriptors: Vec<RawFd>,
}

impl Inherited {
    /// Lists the descriptors. [`close`](Self::close) closes them all, so this must be called before the program
    /// opens any file. Returns nothing if it was called before.
    pub fn list() -> Self {
        static IS_LISTED: AtomicBool = AtomicBool::new(false);
        if IS_LISTED.swap(true, Ordering::Relaxed) {
            return Self::default();
        }
        let numbers = match std::fs::read_dir("/proc/self/fd") {
            // The list has the descriptor of the folder, too, which is closed by the time of the check below.
            Ok(entries) => entries
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .collect::<Vec<RawFd>>(),
            Err(_) => (FIRST..TRIED_MAX).collect(),
        };
        let is_open = |number: &RawFd| {
            // SAFETY: the descriptor is only used in this call, which fails if it is not open.
            *number >= FIRST
                && rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) }).is_ok()
        };
        Self { descriptors: numbers.into_iter().filter(is_open).collect() }
    }

    /// Closes the descriptors. Each process may call this once, before it closes descriptors of its own.
    pub fn close(&self) {
        for &descriptor in &self.descriptors {
            // SAFETY: `list` was called before the program had descriptors of its own, so none of these has another owner.
            // Each process calls this at most once, and first of all that closes descriptors.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }
}

/// Makes standard input empty. A terminal that is standard output or standard error is opened again, for writing only, if
/// that is allowed, so that the process cannot read what is typed.
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

/// Opens the terminal that is `stream`, which the path leads to, for writing only. Returns `None` if it is none.
fn open_terminal(stream: impl IsTerminal, path: &str) -> Option<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let is_terminal = stream.is_terminal();
    is_terminal.then(|| rustix::fs::open(path, flags, Mode::empty()).ok()).flatten()
}
