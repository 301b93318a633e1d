//! Syncs of a mount by other programs: first of data that the kernel holds, then of data that the
//! server holds. If the kernel passes sync(2) and syncfs(2) on to the server, these calls do the
//! same.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::NoArg;

use crate::mount;
use crate::operations::{MARK_CLEAN, MARK_IN_USE, SYNC_VOLUME};

/// An error of [`sync`].
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The directory does not exist, or cannot be opened.
    #[error("{}", mount::text(.0))]
    Path(Errno),
    /// The directory is not a mount point of bifolio.
    #[error("is not a bifolio mount")]
    NotMounted,
    /// Not all written data could be made durable.
    #[error("not all written data could be made durable: {}", mount::text(.0))]
    Failed(Errno),
}

/// Makes all data written to the mount on `path` durable.
pub fn sync(path: &Path) -> Result<(), SyncError> {
    let of =
        |error: io::Error| SyncError::Path(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    let path = mount::resolve_mount_point(path).map_err(of)?;
    mount::find_mount(&path).filter(|entry| entry.is_ours()).ok_or(SyncError::NotMounted)?;
    let root = mount::open_root(&path, OFlags::PATH).map_err(SyncError::Path)?;
    request::<SYNC_VOLUME>(&root)
}

/// Makes all data written to the mount with the directory `root` durable, and marks the volume as
/// clean, after the mount has become read-only.
pub(super) fn mark_clean(root: &OwnedFd) -> Result<(), SyncError> {
    request::<MARK_CLEAN>(root)
}

/// Marks the volume of the mount with the directory `root` as in use, after the mount has become
/// writable.
pub(super) fn mark_in_use(root: &OwnedFd) -> Result<(), SyncError> {
    request::<MARK_IN_USE>(root)
}

/// Makes the kernel send its data to the server, and then sends a request without an argument.
fn request<const COMMAND: u32>(root: &OwnedFd) -> Result<(), SyncError> {
    let root = mount::open_for_requests(root).map_err(SyncError::Path)?;
    // First the kernel sends its data to the server.
    let sent = rustix::fs::syncfs(&root);
    // SAFETY: the request has no argument.
    let done = unsafe { rustix::ioctl::ioctl(&root, NoArg::<COMMAND>::new()) };
    sent.and(done).map_err(SyncError::Failed)
}
