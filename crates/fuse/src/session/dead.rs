//! Mounts whose servers have died. They stay until they are unmounted, so that no program writes to
//! the directory below without noticing. Not here: the guard, which leaves them.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::task::Task;
use crate::child;
use crate::mount::{self, MountEntry, MountError, MountId, table};
use crate::retry::retry;

/// The time within which a server that has not died answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of dead mounts on one directory.
const DEAD_MAX: usize = 16;

/// Unmounts the bifolio mounts on `directory` whose servers have died, also if programs still use
/// them. Returns their block devices.
///
/// This function **forks**: no other thread may be running.
///
/// # Errors
///
/// `Below` if there is a mount below the directory, which would end with it.
pub fn remove_dead(directory: &Path) -> Result<Vec<OsString>, MountError> {
    let mut devices = Vec::new();
    let Ok(directory) = mount::resolve_mount_point(directory) else { return Ok(devices) };
    for _ in 0..DEAD_MAX {
        let found = MountId::find(&directory).filter(|(_, entry)| MountEntry::is_ours(entry));
        let Some((id, entry)) = found else { break };
        if !is_dead_by_child(&entry).map_err(MountError::Mount)? {
            break;
        }
        if let Some(below) = table::below(&directory) {
            return Err(MountError::Below(below));
        }
        mount::detach(&directory, &id)?;
        if entry.is_block_device() {
            devices.push(entry.source);
        }
    }
    Ok(devices)
}

/// Returns whether a block device has mounts in this mount namespace whose server has died. It
/// stays claimed until these mounts have ended, but nothing can access it through them any more.
/// Only servers of this device are asked.
///
/// This function **forks**, unless other threads are running.
pub fn is_dead_device(device: &Path) -> bool {
    let Ok(number) = device.metadata().map(|metadata| metadata.rdev()) else { return false };
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let mounts = table::ours().into_iter();
    let mut mounts = mounts.filter(|entry| entry.is_block_device() && entry.device == number);
    // All of them have one server, but another mount may cover the first one.
    mounts.any(|entry| match is_dead_by_child(&entry) {
        Err(Errno::BUSY) => is_dead(entry),
        answer => answer.unwrap_or(false),
    })
}

/// Returns whether a mount has no connection to a server. Returns false if a server does not
/// answer.
pub fn is_dead(mount: MountEntry) -> bool {
    let asking = Task::start(move || has_no_server(&mount));
    asking.ok().and_then(|asking| asking.outcome_within(ANSWER_TIMEOUT)).unwrap_or(false)
}

/// [`is_dead`] without a thread, which would prevent later forks: a server may never answer. Fails
/// with EBUSY if other threads are running.
fn is_dead_by_child(mount: &MountEntry) -> Result<bool, Errno> {
    let answer = child::ask(ANSWER_TIMEOUT, || has_no_server(mount))?;
    Ok(answer.unwrap_or(false))
}

/// Returns whether a request to a mount fails because it has no server. The kernel answers
/// statfs(2) from no cache.
fn has_no_server(mount: &MountEntry) -> bool {
    // The kernel opens it without a request.
    let Ok(root) = mount::open_mount(mount, OFlags::PATH) else { return false };
    let answer = retry(|| rustix::fs::fstatfs(&root));
    // CANCELED: the request waited for a ring of the server.
    matches!(
        answer,
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CONNREFUSED | Errno::CANCELED)
    )
}
