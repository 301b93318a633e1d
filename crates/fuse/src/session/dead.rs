//! Mounts whose servers have died. They stay until they are unmounted, so that no program writes to the directory below
//! without noticing. Not here: the guard, which leaves them.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::process;
use super::retry;
use super::task::Task;
use crate::mount::{self, MountEntry, MountError, MountId, table};

/// The time within which a server that has not died answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of dead mounts on one directory.
const DEAD_MAX: usize = 16;

/// Unmounts the bifolio mounts on `directory` whose servers have died, also if programs still use them. Returns their block
/// devices.
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
        if !is_dead_by_child(&directory).map_err(MountError::Mount)? {
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

/// Returns the block devices of the mounts in this mount namespace whose servers have died. They stay claimed until these mounts
/// have ended, but nothing can access them through these any more.
///
/// This function **forks**: no other thread may be running.
pub fn dead_devices() -> Vec<OsString> {
    let mut asked: Vec<(String, bool)> = Vec::new();
    let mut devices = Vec::new();
    for entry in table::ours().into_iter().filter(MountEntry::is_block_device) {
        let known = asked.iter().find(|(device, _)| *device == entry.device);
        let is_dead = match known {
            Some((_, is_dead)) => *is_dead,
            // Another mount may cover this one; then its mount point leads to that.
            None => is_dead_by_child(&entry.mount_point).unwrap_or(false),
        };
        asked.push((entry.device, is_dead));
        if is_dead {
            devices.push(entry.source);
        }
    }
    devices
}

/// Returns whether the mount on `directory` has no connection to a server. Returns false if a server does not answer.
pub fn is_dead(directory: &Path) -> bool {
    let directory = directory.to_owned();
    let asking = Task::start(move || has_no_server(&directory));
    asking.ok().and_then(|asking| asking.outcome_within(ANSWER_TIMEOUT)).unwrap_or(false)
}

/// [`is_dead`] without a thread, which would prevent later forks: a server may never answer.
fn is_dead_by_child(directory: &Path) -> Result<bool, Errno> {
    let answer = process::ask_child(ANSWER_TIMEOUT, || has_no_server(directory))?;
    Ok(answer.unwrap_or(false))
}

/// Returns whether a request to the mount fails because it has no server. The kernel answers statfs(2) from no cache.
fn has_no_server(directory: &Path) -> bool {
    let answer = retry(|| rustix::fs::statfs(directory));
    matches!(answer, Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CONNREFUSED))
}
