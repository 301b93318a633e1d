//! Attaching a connection to the directory tree and taking it off again: by mount(2) where that is
//! allowed, otherwise through `fusermount3`. Not here: serving the connection.

mod helper;
mod options;
mod system;
mod table;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

pub use options::{IoUring, MountOptions, OptionError};
pub use system::lift_limit_on_writeback;
pub use table::MountEntry;

/// The subtype that mounts show after "fuse.".
pub const SUBTYPE: &str = "bifolio";

/// What to mount, and where.
#[derive(Clone, Debug)]
pub struct MountRequest<'a> {
    /// What the mount shows as its source: the path of the image.
    pub source: OsString,
    /// The directory, as an absolute path without symbolic links.
    pub directory: &'a Path,
    /// The options.
    pub options: &'a MountOptions,
    /// The block size of the volume when all of a block device is mounted. The kernel then holds
    /// the device, as it does for its own file systems.
    pub block_device: Option<u32>,
}

/// How hard to try to unmount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// Only while nobody uses the mount.
    None,
    /// Take it out of the tree at once; it goes away when its last user does.
    Detach,
}

/// Why a mount or unmount did not happen.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no /dev/fuse, or it cannot be opened.
    #[error("cannot open /dev/fuse: {}; `modprobe fuse` may help", text(.0))]
    Device(Errno),
    /// mount(2) refused.
    #[error("cannot mount: {}", text(.0))]
    Mount(Errno),
    /// umount(2) refused.
    #[error("cannot unmount: {}", text(.0))]
    Unmount(Errno),
    /// `fusermount3` could not be run.
    #[error("cannot run fusermount3: {0}; the package fuse3 has it")]
    NoHelper(io::Error),
    /// `fusermount3` ran and failed; it has said why on standard error.
    #[error("fusermount3 failed: {0}")]
    Helper(String),
    /// The mount point is one already.
    #[error("{0} is mounted on it already")]
    Occupied(String),
}

/// Mounts and gives the connection.
pub fn mount(request: &MountRequest<'_>) -> Result<OwnedFd, MountError> {
    if let Some(entry) = table::find(request.directory) {
        if entry.is_ours() {
            return Err(MountError::Occupied(entry.source.to_string_lossy().into_owned()));
        }
    }
    if rustix::process::geteuid().is_root() {
        match system::mount(request) {
            // Root without the capability, as in a container.
            Err(MountError::Mount(Errno::PERM)) => {}
            done => return done,
        }
    }
    helper::mount(request)
}

/// Unmounts `directory`. `Unmount(EBUSY)` when somebody uses the mount and `force` is none.
pub fn unmount(directory: &Path, force: Force) -> Result<(), MountError> {
    if rustix::process::geteuid().is_root() {
        match system::unmount(directory, force) {
            Err(MountError::Unmount(Errno::PERM)) => {}
            done => return done,
        }
    }
    helper::unmount(directory, force)
}

/// The mount that `path` is the root of: the topmost one, if there are several.
pub fn find_mount(path: &Path) -> Option<MountEntry> {
    table::find(path)
}

/// `path` without symbolic links. The last component is not looked at when it cannot be, as the
/// root of a mount without a server cannot.
pub fn resolve_mount_point(path: &Path) -> io::Result<PathBuf> {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), _, _) => Ok(path),
        (Err(error), Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            parent.canonicalize().map(|parent| parent.join(name)).map_err(|_| error)
        }
        (Err(error), _, _) => Err(error),
    }
}

/// The host's error text without the error number that Rust adds.
fn text(errno: &Errno) -> String {
    let text = io::Error::from(*errno).to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
