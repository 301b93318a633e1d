//! Limits of resources: memory, open files, threads, and the sizes of files.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{Needs, Proof};

/// The maximum number of open files of a process that needs no more.
pub const FILES_MAX: u64 = 4096;
/// The maximum number of threads of the user. Other servers may have the same user.
const THREADS_MAX: u64 = 8192;
/// The maximum of bytes by which messages in files may grow, if the process may write to no other
/// file.
const MESSAGES_BYTES_MAX: u64 = 64 << 20;

/// The resources that a process may use.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// The maximum of memory in addition to what the process has mapped already, in bytes.
    pub memory_max: u64,
    /// The maximum number of open files.
    pub files_max: u64,
}

/// Sets the limits, which cannot be raised again without privileges.
pub fn set(needs: &Needs<'_>, proof: &Proof) -> Result<(), String> {
    let mapped = proof.mapped_bytes()?;
    limit(Resource::As, "address space", mapped.saturating_add(needs.resources.memory_max))?;
    limit(Resource::Nofile, "open files", needs.resources.files_max)?;
    limit(Resource::Nproc, "threads", THREADS_MAX)?;
    // A dump would have the contents of files, and keys.
    limit(Resource::Core, "core dump", 0)?;
    if !needs.writable && !needs.output {
        let messages = largest_message_file().map_err(|errno| format!("open files: {errno}"))?;
        let bytes = messages.map_or(0, |size| size.saturating_add(MESSAGES_BYTES_MAX));
        limit(Resource::Fsize, "file size", bytes)?;
    }
    Ok(())
}

/// Raises the limit of open files to the highest that the user may have. Ignores errors: opening
/// more files fails then.
pub fn raise_file_limit() {
    if let Ok(limit) = get(Resource::Nofile) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Lowers a limit to `max`, unless it is lower already, and checks it.
fn limit(resource: Resource, name: &str, max: u64) -> Result<(), String> {
    let refused = |errno| format!("the limit of {name}: {errno}");
    let Rlimit { current, maximum } = get(resource).map_err(refused)?;
    let lowered = |limit: Option<u64>| Some(limit.map_or(max, |limit| limit.min(max)));
    let wanted = Rlimit { current: lowered(current), maximum: lowered(maximum) };
    setrlimit(resource, wanted).map_err(refused)?;
    let maximum = get(resource).map_err(refused)?.maximum;
    if maximum.is_some_and(|limit| limit <= max) {
        Ok(())
    } else {
        Err(format!("the limit of {name} is not in force"))
    }
}

/// Returns a limit. Unlike `rustix::process::getrlimit`, returns an error if the host refuses the
/// call.
pub fn get(resource: Resource) -> Result<Rlimit, Errno> {
    // If the host answers without storing anything, no limit is in force.
    let none = libc::RLIM_INFINITY;
    let mut found = libc::rlimit { rlim_cur: none, rlim_max: none };
    // SAFETY: the call stores to `found` only.
    if unsafe { libc::getrlimit(resource as _, &raw mut found) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::PERM));
    }
    let finite = |limit: libc::rlim_t| (limit != libc::RLIM_INFINITY).then_some(limit);
    Ok(Rlimit { current: finite(found.rlim_cur), maximum: finite(found.rlim_max) })
}

/// Returns the size of the largest regular file that is open for writing: those are for messages.
/// The descriptors that the process has are low.
fn largest_message_file() -> Result<Option<u64>, Errno> {
    let mut largest = None;
    for number in 0..FILES_MAX as i32 {
        // SAFETY: the descriptor is only used here, in the only thread. If it is not open, the
        // calls fail.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let flags = match fcntl_getfl(file) {
            Ok(flags) => flags,
            Err(Errno::BADF) => continue,
            Err(errno) => return Err(errno),
        };
        let is_writable = flags & OFlags::RWMODE != OFlags::RDONLY;
        let stat = fstat(file)?;
        if is_writable && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            largest = largest.max(Some(u64::try_from(stat.st_size).unwrap_or(0)));
        }
    }
    Ok(largest)
}
