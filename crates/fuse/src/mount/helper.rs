//! Mounts through `fusermount3`, the setuid program of the package fuse3, for users other than
//! root. It mounts, and returns the connection over the socket whose descriptor is in _FUSE_COMMFD.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use vfs::AccessTimes;

use crate::mount::{Force, MountError, MountRequest, SUBTYPE};
use crate::socket;

const PROGRAM: &str = "fusermount3";
/// What the program's messages begin with.
const PREFIX: &str = "fusermount3: ";
/// The text of EBUSY, which the program does not translate.
const BUSY: &str = "Device or resource busy";

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
    let helper = Command::new(PROGRAM)
        .arg("-o")
        .arg(options(request))
        .arg("--")
        .arg(request.directory)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    drop(theirs);
    let received = socket::receive(&ours, &mut [0]);
    let output = helper.wait_with_output().map_err(MountError::NoHelper)?;
    match received {
        Ok((_, Some(connection))) => {
            // It leaves out options that only root may give, and says so.
            if !output.stderr.is_empty() {
                let directory = request.directory.display();
                tracing::warn!("{directory}: mounted by {PROGRAM}: {}", reason(&output));
            }
            Ok(connection)
        }
        _ => Err(MountError::Helper(reason(&output))),
    }
}

/// Unmounts `directory`.
pub fn unmount(directory: &Path, force: Force) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if force == Force::Detach {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(directory)
        .stdin(Stdio::null())
        .output()
        .map_err(MountError::NoHelper)?;
    if output.status.success() {
        return Ok(());
    }
    let reason = reason(&output);
    match force {
        // The caller may try again.
        Force::None if reason.contains(BUSY) => Err(MountError::Unmount(Errno::BUSY)),
        _ => Err(MountError::Helper(reason)),
    }
}

/// Returns why the program has failed: what it has printed, or else its status.
fn reason(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = said.lines().map(|line| line.strip_prefix(PREFIX).unwrap_or(line).trim());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { output.status.to_string() } else { lines.join("; ") }
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
        // fusermount3 has no other option for access times. The server keeps them as the options
        // say in any case.
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
