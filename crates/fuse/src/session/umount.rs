//! Unmounting from outside: takes the mount away, and waits until its server has ended.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::guard::PATIENCE_TO_WRITE;
use super::peer::connect;
use super::task::Task;
use crate::mount::{self, MountEntry, MountError, MountId};
use crate::server::PATIENCE_TO_CLOSE;

/// How long the server may take: for the requests that it has, and to write what is not written yet.
const PATIENCE: Duration =
    Duration::from_secs(2 * PATIENCE_TO_CLOSE.as_secs() + PATIENCE_TO_WRITE.as_secs());
/// After so long somebody wants to know what is waited for.
const PATIENCE_OF_USERS: Duration = Duration::from_secs(2);

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
    /// Another file system was mounted on the directory meanwhile.
    #[error("something else was mounted on it meanwhile, and that was unmounted")]
    Another,
    /// It was unmounted, but whether its server has ended cannot be told.
    #[error("unmounted, but its server cannot be waited for: {}", .0)]
    Waiting(io::Error),
    /// It was unmounted, but its server does not end.
    #[error(
        "unmounted, but the server is still running: not all that was written may be on the image"
    )]
    StillRunning,
}

/// Unmounts what is mounted on `path` and waits for its server, for 11 minutes and 2 s at
/// most, since it may have much to write. `before_long` is called before a wait of more than a moment.
pub fn umount(path: &Path, before_long: impl FnOnce()) -> Result<(), UmountError> {
    let path: PathBuf = mount::resolve_mount_point(path).map_err(UmountError::Path)?;
    let found = MountId::find(&path).filter(|(_, entry)| entry.is_ours());
    let (id, entry) = found.ok_or(UmountError::NotMounted)?;
    // Connected before, to be told by the hang-up that the guard has ended.
    let guard = connect(&id.name(&entry.source), &trusted(&entry));
    let begun = Instant::now();
    // On a thread, since the kernel may wait for the server.
    let unmounting = Task::start(move || mount::unmount(&path));
    let unmounting = unmounting.map_err(|errno| UmountError::Waiting(errno.into()))?;
    let mut before_long = Some(before_long);
    let outcome = unmounting.outcome_within(PATIENCE_OF_USERS).or_else(|| {
        before_long.take().into_iter().for_each(|tell| tell());
        unmounting.outcome_within(PATIENCE)
    });
    outcome.ok_or(UmountError::StillRunning)??;
    if id.exists() == Some(true) {
        return Err(UmountError::Another);
    }
    let Some(guard) = guard.map_err(UmountError::Waiting)? else { return Ok(()) };
    if ends_within(&guard, PATIENCE_OF_USERS.saturating_sub(begun.elapsed()))? {
        return Ok(());
    }
    before_long.into_iter().for_each(|tell| tell());
    if ends_within(&guard, PATIENCE)? { Ok(()) } else { Err(UmountError::StillRunning) }
}

/// The users as whom the guard of a mount may run: root, this process's, and the one who has mounted.
fn trusted(entry: &MountEntry) -> Vec<u32> {
    let own = rustix::process::geteuid().as_raw();
    [Some(0), Some(own), entry.user].into_iter().flatten().collect()
}

/// Whether the guard hangs up within so much time.
fn ends_within(mut guard: &UnixStream, time: Duration) -> Result<bool, UmountError> {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        guard.set_read_timeout(Some(left)).map_err(UmountError::Waiting)?;
        match guard.read(&mut [0]) {
            // Its end. It says nothing before.
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionReset => return Ok(true),
                // Stopped and continued, or the time is over.
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                _ => return Err(UmountError::Waiting(error)),
            },
        }
    }
}
