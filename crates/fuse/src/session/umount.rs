//! Unmounting by another program, including the wait for the end of the mount's server.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::dead;
use super::guard::WRITE_TIMEOUT;
use super::mark::{End, FoundGuard};
use super::task::Task;
use crate::mount::{self, MountEntry, MountError, MountId};
use crate::server::CLOSE_TIMEOUT;

/// The time within which the server has to end. It answers requests in flight, and may have much
/// data to write.
const END_TIMEOUT: Duration =
    Duration::from_secs(2 * CLOSE_TIMEOUT.as_secs() + WRITE_TIMEOUT.as_secs());
/// The time after which users want to know the reason for a wait.
const SILENT_WAIT: Duration = Duration::from_secs(2);

/// What the user should know about an unmount that goes on, or has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UmountNotice {
    /// The server takes long to write its data.
    Waiting,
    /// The server had died before. Without a sync, data that was written shortly before may be
    /// lost.
    Died,
}

/// An error of unmounting.
#[derive(Debug, thiserror::Error)]
pub enum UmountError {
    /// The directory does not exist.
    #[error("{}", .0)]
    Path(io::Error),
    /// The directory is not a mount point of bifolio.
    #[error("is not a bifolio mount")]
    NotMounted,
    /// The mount could not be unmounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Another file system was mounted on the directory in the meantime, and was unmounted instead.
    #[error("another file system was mounted on it in the meantime, and was unmounted instead")]
    Another,
    /// The mount was unmounted, but its server has failed.
    #[error("unmounted, but {}", .0)]
    Failed(String),
    /// The mount was unmounted, but waiting for its server has failed.
    #[error("unmounted, but cannot wait for its server: {}", .0)]
    Waiting(io::Error),
    /// The mount was unmounted, and it is unknown when its server ends.
    #[error(
        "unmounted, but it is unknown when the server ends: do not use the image until its `bifolio` process has ended"
    )]
    NoGuard,
    /// The mount was unmounted, but its server does not end.
    #[error(
        "unmounted, but the server is still running: data may be missing in the image; do not use it until the server has ended"
    )]
    StillRunning,
}

/// Unmounts the bifolio mount on `path` and waits for its server, which may have much data to
/// write, for up to 11 minutes and 2 s. Calls `notify` if the wait takes longer than 2 s, and if
/// there is no server any more.
pub fn umount(path: &Path, mut notify: impl FnMut(UmountNotice)) -> Result<(), UmountError> {
    let path: PathBuf = mount::resolve_mount_point(path).map_err(UmountError::Path)?;
    let found = MountId::find(&path).filter(|(_, entry)| entry.is_ours());
    let (id, entry) = found.ok_or(UmountError::NotMounted)?;
    // Before the guard can end.
    let guard = find_guard(&id, &entry);
    // Not if there is a guard: a request that a slow server does not answer would keep the mount in
    // use.
    let is_dead = guard.is_none() && dead::is_dead(entry.clone());
    let others = id.others();
    let begun = Instant::now();
    // On another thread, since the kernel may wait for the server.
    let unmounting = Task::start(move || mount::unmount(&path));
    let unmounting = unmounting.map_err(|errno| UmountError::Waiting(errno.into()))?;
    let mut is_silent = true;
    let outcome = unmounting.outcome_within(SILENT_WAIT).or_else(|| {
        is_silent = false;
        notify(UmountNotice::Waiting);
        unmounting.outcome_within(rest(begun))
    });
    outcome.ok_or(UmountError::StillRunning)??;
    if id.exists() == Some(true) {
        return Err(UmountError::Another);
    }
    // Mounts of a block device share its number, which no other file system has as long as one of
    // them exists.
    let has_new = || entry.is_block_device() && !id.others().is_empty();
    if others.iter().any(MountId::is_attached) || has_new() {
        // The server ends with the last mount of the volume.
        return Ok(());
    }
    if is_dead {
        notify(UmountNotice::Died);
        return Ok(());
    }
    let without_guard =
        if entry.is_written_by_unmounting() { Ok(()) } else { Err(UmountError::NoGuard) };
    let Some(guard) = guard else { return without_guard };
    let mut end = None;
    if is_silent {
        end = end_within(&guard, SILENT_WAIT.saturating_sub(begun.elapsed()))?;
        if end.is_none() {
            notify(UmountNotice::Waiting);
        }
    }
    if end.is_none() {
        end = end_within(&guard, rest(begun))?;
    }
    match end {
        Some(End::Success) => Ok(()),
        Some(End::Failure(error)) => Err(UmountError::Failed(error)),
        Some(End::Killed) => without_guard,
        None => Err(UmountError::StillRunning),
    }
}

/// Returns how much longer to wait for the end of the server.
fn rest(begun: Instant) -> Duration {
    (SILENT_WAIT + END_TIMEOUT).saturating_sub(begun.elapsed())
}

/// Detaches the bifolio mount on `path` at once, even if it is in use, and does not wait for its
/// server, which ends with the last user of the mount.
pub fn umount_lazily(path: &Path) -> Result<(), UmountError> {
    let path: PathBuf = mount::resolve_mount_point(path).map_err(UmountError::Path)?;
    let found = MountId::find(&path).filter(|(_, entry)| entry.is_ours());
    let (id, _) = found.ok_or(UmountError::NotMounted)?;
    Ok(mount::detach(&path, &id)?)
}

/// Returns the guard of a mount. That of a further mount of a block device is found by the device.
fn find_guard(id: &MountId, entry: &MountEntry) -> Option<FoundGuard> {
    let users = trusted(entry);
    let by_device = || {
        let is_block_device = entry.is_block_device();
        is_block_device.then(|| FoundGuard::find(&id.name_of_device(), &users)).flatten()
    };
    FoundGuard::find(&id.name(&entry.source), &users).or_else(by_device)
}

/// Returns the users as whom the guard of a mount may run: root, the user of this process, and the
/// user who has mounted.
fn trusted(entry: &MountEntry) -> Vec<u32> {
    let own = rustix::process::geteuid().as_raw();
    [Some(0), Some(own), entry.user].into_iter().flatten().collect()
}

fn end_within(guard: &FoundGuard, timeout: Duration) -> Result<Option<End>, UmountError> {
    guard.end_within(timeout).map_err(UmountError::Waiting)
}
