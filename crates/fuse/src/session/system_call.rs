//! The system call in which a thread of the host waits for the answer to its request, as far as the
//! server must know it. The confined server cannot look it up, so it asks the guard, which reads
//! /proc/PID/syscall.
//!
//! The kernel's request for a block of a file (BMAP) is the same for the ioctl FIBMAP and for
//! swapon(2), after which the kernel writes to these blocks by itself. And it passes on no remount,
//! but a sync of it, like that of sync(2). A thread waits in its call until its request is
//! answered, so the answer is about the call that has made the request.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::Timespec;

use super::questions::{self, Asker};
use crate::requester::Requester;

/// The timeout of an answer.
const ANSWER_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// The number of attempts, and the time between them, while a thread has sent its request and does
/// not wait yet.
const ATTEMPTS: u32 = 100;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(2);

/// The command of the ioctl FIBMAP.
const FIBMAP: u64 = 1;
/// The command of fsconfig(2) that changes the options of a mounted file system.
const RECONFIGURE: u64 = 7;
/// Flags of mount(2).
const READ_ONLY: u64 = libc::MS_RDONLY;
const REMOUNT: u64 = libc::MS_REMOUNT;
const BIND: u64 = libc::MS_BIND;

/// The server's side.
#[derive(Debug)]
pub struct SystemCalls(Asker);

impl SystemCalls {
    /// Creates the server's side, which asks through `socket`.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Asker::new(socket, ANSWER_TIMEOUT))
    }

    /// Returns what the thread waits for.
    pub fn of(&self, thread: u32) -> Requester {
        match self.0.ask(thread) {
            Some(answer) if answer == Requester::Fibmap as u32 => Requester::Fibmap,
            Some(answer) if answer == Requester::Remount as u32 => Requester::Remount,
            Some(answer) if answer == Requester::Reconfiguration as u32 => {
                Requester::Reconfiguration
            }
            _ => Requester::Unknown,
        }
    }
}

/// Starts a thread of the guard that answers until the other end of `socket` is closed.
pub fn start(socket: OwnedFd) {
    questions::start("fuse-syscall", socket, answer);
}

fn answer(thread: u32) -> u32 {
    shown(thread).map_or(Requester::Unknown, |call| requester_in(&call)) as u32
}

/// Returns the number of the call in which a thread waits for the answer to its request, and its
/// arguments.
pub fn of(thread: u32) -> Option<(libc::c_long, Vec<u64>)> {
    call_in(&shown(thread)?)
}

/// Returns the contents of /proc/PID/syscall of a thread that waits.
fn shown(thread: u32) -> Option<String> {
    for _ in 0..ATTEMPTS {
        match std::fs::read_to_string(format!("/proc/{thread}/syscall")) {
            // It has sent the request, and does not sleep yet.
            Ok(call) if call.starts_with("running") => std::thread::sleep(ATTEMPT_INTERVAL),
            shown => return shown.ok(),
        }
    }
    None
}

/// Returns the number of the call in the contents of /proc/PID/syscall, and its arguments.
fn call_in(shown: &str) -> Option<(libc::c_long, Vec<u64>)> {
    let mut fields = shown.split_ascii_whitespace();
    let number = fields.next()?.parse().ok()?;
    let hexadecimal = |field: &str| u64::from_str_radix(field.strip_prefix("0x")?, 16).ok();
    let arguments = fields.take(6).map(hexadecimal).collect::<Option<_>>()?;
    Some((number, arguments))
}

/// Returns the requester for the contents of /proc/PID/syscall. Programs of 32 bits have other
/// numbers; none of theirs for swapon is one of these.
fn requester_in(shown: &str) -> Requester {
    let Some((number, arguments)) = call_in(shown) else { return Requester::Unknown };
    // Commands and flags are of 32 bits, and the kernel ignores the others.
    let argument = |index: usize| arguments.get(index).map(|argument| argument & 0xFFFF_FFFF);
    match number {
        libc::SYS_ioctl if argument(1) == Some(FIBMAP) => Requester::Fibmap,
        libc::SYS_fsconfig if argument(1) == Some(RECONFIGURE) => Requester::Reconfiguration,
        libc::SYS_mount
            if argument(3).is_some_and(|flags| {
                flags & (REMOUNT | READ_ONLY | BIND) == REMOUNT | READ_ONLY
            }) =>
        {
            Requester::Remount
        }
        _ => Requester::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;

    #[test]
    fn only_the_ioctl_fibmap_asks_for_a_block() {
        let call = |number: libc::c_long, arguments: &str| {
            requester_in(&format!("{number} {arguments} 0x7ffd00000000 0x7f0000000000\n"))
        };
        let ioctl = libc::SYS_ioctl;
        assert_eq!(call(ioctl, "0x3 0x1 0x7ffc 0x0 0x0 0x0"), Requester::Fibmap);
        assert_eq!(call(ioctl, "0x3 0x2 0x7ffc 0x0 0x0 0x0"), Requester::Unknown);
        assert_eq!(call(libc::SYS_swapon, "0x1 0x1 0x1 0x1 0x1 0x1"), Requester::Unknown);
        // swapon(2) of programs of 32 bits.
        assert_eq!(call(87, "0x1 0x1 0x1 0x1 0x1 0x1"), Requester::Unknown);
        for other in ["", "running\n", "-1 0x7ffd 0x7f\n", "16\n", "16 nonsense\n"] {
            assert_eq!(requester_in(other), Requester::Unknown, "{other}");
        }
    }

    #[test]
    fn remounts_that_make_the_volume_read_only_are_recognized() {
        let call =
            |number: libc::c_long, arguments: &str| requester_in(&format!("{number} {arguments}"));
        let mount =
            |flags: &str| call(libc::SYS_mount, &format!("0x1 0x1 0x0 {flags} 0x0 0x0 0x1 0x1"));
        assert_eq!(mount("0x21"), Requester::Remount);
        assert_eq!(mount("0xc0ed0021"), Requester::Remount);
        assert_eq!(mount("0x20"), Requester::Unknown, "writable");
        assert_eq!(mount("0x1021"), Requester::Unknown, "of one mount point");
        let fsconfig =
            |command: &str| call(libc::SYS_fsconfig, &format!("0x3 {command} 0x0 0x0 0x0 0x0"));
        assert_eq!(fsconfig("0x7"), Requester::Reconfiguration);
        assert_eq!(fsconfig("0x6"), Requester::Unknown);
        assert_eq!(call(libc::SYS_sync, "0x1 0x7 0x1 0x21 0x0 0x0"), Requester::Unknown);
    }

    #[test]
    fn the_guard_says_nothing_about_threads_that_do_not_wait() {
        let (ours, theirs) = socket::pair().unwrap();
        start(theirs);
        let calls = SystemCalls::new(ours);
        assert_eq!(calls.of(u32::MAX), Requester::Unknown);
        assert_eq!(calls.of(0), Requester::Unknown);
    }
}
