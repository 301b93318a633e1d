//! Terminals of programs under test.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::must;

/// Opens a terminal. Returns the side of the test, and that for programs. Programs inherit neither
/// by themselves.
pub fn open_terminal() -> [OwnedFd; 2] {
    let (mut ours, mut theirs) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: the call stores two descriptors.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, none, none.cast(), none.cast()) };
    assert_eq!(opened, 0, "a terminal");
    // SAFETY: the descriptors have no other owner.
    let sides = [ours, theirs].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    for side in &sides {
        must(fcntl_setfd(side, FdFlags::CLOEXEC), "closed on exec");
    }
    sides
}
