//! Unmounting from outside: takes the mount away, and waits until its server has ended.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::guard::presence;
use crate::mount::{self, Force, MountError};

/// How long the server may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a mount was not unmounted.
#[derive(Debug, thiserror::Error)]
pub enum UmountError {
    /// There is no such directory.
    #[error("{}", .0)]
    Path(io::Error),
    /// Nothing of ours is mounted there.
    #[error("no bifolio mount")]
    NotMounted,
    /// It could not be unmounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// It was unmounted, but its server does not end.
    #[error("unmounted, but the server is still running")]
    StillRunning,
}

/// Unmounts what is mounted on `path` and waits for its server.
pub fn umount(path: &Path) -> Result<(), UmountError> {
    let path: PathBuf = mount::resolve_mount_point(path).map_err(UmountError::Path)?;
    let entry = mount::find_mount(&path).filter(|entry| entry.is_ours());
    let entry = entry.ok_or(UmountError::NotMounted)?;
    // Connected before, to be told by the hang-up that the guard has ended. No connection: the
    // guard was killed, or runs where it cannot be seen.
    let guard = presence(&entry.device).and_then(|name| UnixStream::connect_addr(&name).ok());
    mount::unmount(&path, Force::None)?;
    let Some(mut guard) = guard else { return Ok(()) };
    guard.set_read_timeout(Some(PATIENCE)).map_err(UmountError::Path)?;
    match guard.read(&mut [0]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(UmountError::StillRunning),
        _ => Ok(()),
    }
}
