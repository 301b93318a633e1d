//! What guard and server leave of their caller: its terminal, directory, environment and
//! namespaces. Not here: the fork (`crate::child`).
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;

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

/// Removes all variables of the environment, and overwrites their values. No other thread may be
/// running.
pub fn clear_environment() {
    let first = first_environment();
    // SAFETY: no other thread reads the environment. Each pointer, up to the null, is to a string
    // that the process may write: the kernel has put it on the stack, or the C library on the heap.
    // Nobody reads it afterwards, since clearenv removes all pointers. The memory of the first
    // environment is a part of the stack that has nothing else.
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

/// Returns the addresses of the memory with the environment of the program's start. The C library
/// copies variables of its own (`GLIBC_TUNABLES`), and no pointer is left to the first ones. `None`
/// if the host does not show it.
fn first_environment() -> Option<Range<usize>> {
    /// The position of the first address behind the name of the program (proc_pid_stat(5), field
    /// 50).
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

/// Leaves the terminal's session. The process receives no more signals from the terminal, also when
/// the terminal closes.
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

/// Replaces standard input and output by /dev/null, and standard error by `error`, so that no
/// program waits for this process to close them.
pub fn leave_streams(null: &OwnedFd, error: &OwnedFd) -> Result<(), Errno> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(error)
}
