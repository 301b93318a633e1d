//! Mount points, accessed by paths without symbolic links. After a path was resolved, the owner of
//! a directory on it may replace that directory by a symbolic link. Root must not follow the link
//! to mount or unmount.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens the directory `path`, the root of a mount or a mount point, with `access`: `PATH` or
/// `RDONLY`. Fails with ELOOP if the path leads through a symbolic link (from Linux 5.6 on), and
/// with ENOTDIR if it ends in one.
pub fn open(path: &Path, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // EPERM: containers may forbid system calls that they do not know.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::open(path, flags, Mode::empty()),
        opened => opened,
    }
}

/// Opens the directory `root`, which was opened with `PATH`, for requests.
pub fn open_for_requests(root: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(root, ".", flags, Mode::empty())
}

/// Returns a path that leads to an open file or directory, and never to another one.
pub fn path_of(opened: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

/// A mount point, as a name in an open directory. The mount itself is not opened, and thus not in
/// use.
#[derive(Debug)]
pub struct MountPoint {
    parent: OwnedFd,
    name: OsString,
}

impl MountPoint {
    /// Finds the mount point at `path`. Fails like [`open`].
    pub fn find(path: &Path) -> Result<Self, Errno> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => (parent, name.to_owned()),
            // The root directory.
            _ => (path, ".".into()),
        };
        Ok(Self { parent: open(parent, OFlags::PATH)?, name })
    }

    /// Returns the path of the mount point. Only its last component can become a symbolic link.
    pub fn path(&self) -> PathBuf {
        path_of(&self.parent).join(&self.name)
    }
}
