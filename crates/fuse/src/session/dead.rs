//! Mounts whose servers have died. They stay until they are unmounted, so that no program writes to the directory below
//! without noticing. Not here: the guard, which leaves them.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::process::{self, Side};
use super::task::Task;
use super::{SessionError, retry};
use crate::mount::{self, MountEntry, MountError, MountId};

/// The time within which a server that has not died answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of dead mounts on one directory.
const DEAD_MAX: usize = 16;
/// The exit status of a child that has found a dead mount.
const IS_DEAD: u8 = 3;

/// Unmounts the bifolio mounts on `directory` whose servers have died, also if programs still use them. Returns their block
/// devices.
///
/// This function **forks**: no other thread may be running.
pub fn remove_dead(directory: &Path) -> Result<Vec<OsString>, MountError> {
    let mut devices = Vec::new();
    let Ok(directory) = mount::resolve_mount_point(directory) else { return Ok(devices) };
    for _ in 0..DEAD_MAX {
        let found = MountId::find(&directory).filter(|(_, entry)| MountEntry::is_ours(entry));
        let Some((id, entry)) = found else { break };
        if !is_dead_by_child(&directory).map_err(MountError::Mount)? {
            break;
        }
        mount::detach(&directory, &id)?;
        if entry.is_block_device() {
            devices.push(entry.source);
        }
    }
    Ok(devices)
}

/// Returns whether the mount on `directory` has no connection to a server. Returns false if a server does not answer.
pub fn is_dead(directory: &Path) -> bool {
    let directory = directory.to_owned();
    let asking = Task::start(move || has_no_server(&directory));
    asking.ok().and_then(|asking| asking.outcome_within(ANSWER_TIMEOUT)).unwrap_or(false)
}

/// [`is_dead`] without a thread, which would prevent later forks: a server may never answer.
fn is_dead_by_child(directory: &Path) -> Result<bool, Errno> {
    match process::fork()? {
        Side::Child => {
            let status = if has_no_server(directory) { IS_DEAD } else { 0 };
            std::process::exit(status.into());
        }
        Side::Parent(child) => {
            let ended = child.ended_within::<std::convert::Infallible>(ANSWER_TIMEOUT);
            if ended.is_none() {
                child.kill();
            }
            Ok(matches!(ended, Some(Err(SessionError::Reported(IS_DEAD)))))
        }
    }
}

/// Returns whether a request to the mount fails because it has no server. The kernel answers statfs(2) from no cache.
fn has_no_server(directory: &Path) -> bool {
    let answer = retry(|| rustix::fs::statfs(directory));
    matches!(answer, Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CONNREFUSED))
}
