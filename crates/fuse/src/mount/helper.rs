//! Mounts through `fusermount3`, the setuid program of the package fuse3, for users other than root. It mounts, and
//! returns the connection over the socket whose descriptor is in _FUSE_COMMFD.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use vfs::AccessTimes;

use crate::mount::{Force, MountError, MountRequest, SUBTYPE};
use crate::socket;

const PROGRAM: &str = "fusermount3";

/// Mounts, and returns the connection.
pub fn mount(request: &MountRequest<'_>) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(MountError::Mount)?;
    // Only this end of the socket is inherited by the program.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(MountError::Mount)?;
    let mut helper = Command::new(PROGRAM)
        .arg("-o")
        .arg(options(request))
        .arg("--")
        .arg(request.directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .spawn()
        .map_err(MountError::NoHelper)?;
    drop(theirs);
    let received = socket::receive(&ours, &mut [0]);
    let status = helper.wait().map_err(MountError::NoHelper)?;
    match received {
        Ok((_, Some(connection))) => Ok(connection),
        _ => Err(MountError::Helper(status.to_string())),
    }
}

/// Unmounts `directory`.
pub fn unmount(directory: &Path, force: Force) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    // Quiet, since the caller decides whether to report a busy mount.
    command.args(["-u", "-q"]);
    if force == Force::Detach {
        command.arg("-z");
    }
    let status = command
        .arg("--")
        .arg(directory)
        .stdin(Stdio::null())
        .status()
        .map_err(MountError::NoHelper)?;
    if status.success() {
        return Ok(());
    }
    match force {
        Force::None => Err(MountError::Unmount(Errno::BUSY)),
        Force::Detach => Err(MountError::Helper(status.to_string())),
    }
}

/// Returns the list for the option `-o`.
fn options(request: &MountRequest<'_>) -> OsString {
    let mut list = b"subtype=".to_vec();
    list.extend_from_slice(SUBTYPE.as_bytes());
    for (option, is_set) in [
        (",default_permissions", request.options.checks_access()),
        (",ro", !request.options.writable),
        (",rw", request.options.writable),
        (",nosuid", !request.options.suid),
        (",suid", request.options.suid),
        (",nodev", !request.options.dev),
        (",dev", request.options.dev),
        (",noexec", !request.options.exec),
        // fusermount3 has no other option for access times. The server keeps them as the options say in any case.
        (",noatime", request.options.access.times == AccessTimes::Never),
        (",sync", request.options.sync),
        (",allow_other", request.options.allow_other),
    ] {
        if is_set {
            list.extend_from_slice(option.as_bytes());
        }
    }
    list.extend_from_slice(b",fsname=");
    for &byte in request.source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            list.push(b'\\');
        }
        list.push(byte);
    }
    OsString::from_vec(list)
}
