//! Mounting and unmounting, by system calls if the host allows them, otherwise through
//! `fusermount3`. Not here: the service of a mount's connection.

mod again;
mod claim;
mod control;
mod helper;
mod identity;
mod loop_device;
mod mount_point;
mod option_list;
mod options;
mod system;
pub(crate) mod table;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

pub use again::{mount_again, served};
pub use claim::{Claim, Claimed, retry_while_in_use};
pub use control::abort;
pub use identity::{MountId, open_mount};
pub use loop_device::{LoopBacking, LoopDevice, backing_file, loop_backing};
pub use mount_point::{open as open_root, open_for_requests, path_of};
pub use option_list::{OptionError, split_option};
pub use options::{MountOptions, Preference};
pub use system::{Detached, lift_limit_on_writeback};
pub use table::{MountEntry, has_option};

/// The subtype that the mount table shows after "fuse.".
pub const SUBTYPE: &str = "bifolio";

/// A request to mount.
#[derive(Clone, Debug)]
pub struct MountRequest<'a> {
    /// The path of the image. The mount shows it as its source, unless a block device is mounted.
    pub source: OsString,
    /// The directory, as an absolute path without symbolic links.
    pub directory: &'a Path,
    /// The options.
    pub options: &'a MountOptions,
}

/// The treatment of a mount that is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// Fail if the mount is in use.
    None,
    /// Detach the mount from the directory tree at once. It ends with its last user.
    Detach,
}

/// An error of mounting or unmounting.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// /dev/fuse does not exist, or cannot be opened.
    #[error("cannot open /dev/fuse: {}; `modprobe fuse` may help", text(.0))]
    Device(Errno),
    /// The kernel refused to mount.
    #[error("cannot mount: {}", text(.0))]
    Mount(Errno),
    /// The block device is in use.
    #[error("{} is in use: it is mounted, or open exclusively", .0.display())]
    InUse(PathBuf),
    /// The kernel refused to unmount.
    #[error("cannot unmount: {}", text(.0))]
    Unmount(Errno),
    /// `fusermount3` could not be run.
    #[error("cannot run fusermount3: {0}; it is in the package fuse3")]
    NoHelper(io::Error),
    /// `fusermount3` failed for this reason.
    #[error("fusermount3 failed: {0}")]
    Helper(String),
    /// The volume is mounted on this directory for reading, and was to be mounted for writing.
    #[error("it is mounted read-only on {}: remount it with rw, or unmount it first", .0.display())]
    ReadOnly(PathBuf),
    /// A mount whose server has died has a mount below it, on this directory.
    #[error("{} has a mount, which would end with it: unmount that first", .0.display())]
    Below(PathBuf),
    /// The server of the mount on this directory, of the same volume, does not answer.
    #[error(
        "it is mounted on {}, whose server does not answer, maybe since its device does not: try again later",
        .0.display()
    )]
    NoAnswer(PathBuf),
    /// Root has no right to mount, so that `fusermount3` was tried, and has failed, too.
    #[error(
        "cannot mount: root has no right to it in this mount namespace (CAP_SYS_ADMIN, which containers often take; a user \
         namespace needs its own mount namespace, as by `unshare -Urm`)"
    )]
    NoRight,
    /// The mount point already has a bifolio mount, of this source.
    #[error("{0} is mounted on it already")]
    Occupied(String),
}

/// Fails with `Occupied` if `directory` already has a bifolio mount.
pub fn check_free(directory: &Path) -> Result<(), MountError> {
    match table::find(directory).filter(MountEntry::is_ours) {
        Some(entry) => Err(MountError::Occupied(entry.source.to_string_lossy().into_owned())),
        None => Ok(()),
    }
}

/// Mounts, and returns the connection.
pub fn mount(request: &MountRequest<'_>) -> Result<OwnedFd, MountError> {
    if rustix::process::geteuid().is_root() {
        return match system::Detached::new(&request.source, request.options, None) {
            // Root has no CAP_SYS_ADMIN, as in a container.
            Err(MountError::Mount(errno @ (Errno::PERM | Errno::NOSYS))) => helper::mount(request)
                .map_err(|error| match error {
                    MountError::Helper(_) if errno == Errno::PERM => MountError::NoRight,
                    error => error,
                }),
            made => made?.attach(request.directory),
        };
    }
    helper::mount(request)
}

/// Unmounts `directory`. Fails with `Unmount(EBUSY)` if the mount is in use. If a block device is
/// mounted, the kernel waits until its server has written all data.
pub fn unmount(directory: &Path) -> Result<(), MountError> {
    if rustix::process::geteuid().is_root() {
        match system::unmount(directory) {
            Err(MountError::Unmount(Errno::PERM)) => {}
            done => return done,
        }
    }
    helper::unmount(directory, Force::None)
}

/// Returns whether the mount on `directory` is in use. Returns false if this cannot be determined
/// without unmounting.
pub fn is_in_use(directory: &Path) -> bool {
    rustix::process::geteuid().is_root() && system::is_in_use(directory)
}

/// Detaches the mount `id` from `directory`, even if it is in use. Does nothing if it is not
/// mounted there. If a block device is mounted, the kernel may wait until its server has written
/// all data.
pub fn detach(directory: &Path, id: &MountId) -> Result<(), MountError> {
    if rustix::process::geteuid().is_root() {
        match system::detach(directory, id) {
            Err(MountError::Unmount(Errno::PERM)) => {}
            done => return done,
        }
    }
    match MountId::find(directory) {
        Some((found, entry)) if found == *id && entry.is_ours() => {
            helper::unmount(directory, Force::Detach)
        }
        _ => Ok(()),
    }
}

/// Returns the mount whose root is `path`: the topmost one if there are several.
pub fn find_mount(path: &Path) -> Option<MountEntry> {
    table::find(path)
}

/// Returns all bifolio mounts of `image`, a file or block device, in this mount namespace.
pub fn mounts_of(image: &Path) -> Vec<MountEntry> {
    let identity = |path: &Path| {
        let metadata = path.metadata().ok()?;
        let is_device = metadata.file_type().is_block_device();
        Some(if is_device { (0, metadata.rdev()) } else { (metadata.dev(), metadata.ino()) })
    };
    let Some(wanted) = identity(image) else { return Vec::new() };
    let is_wanted = |path: &Path| identity(path) == Some(wanted);
    // Of a disk, a partition may be mounted by its own device.
    let disk = match wanted {
        (0, device) => {
            format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
        }
        _ => String::new(),
    };
    let is_partition = |path: &Path| {
        let name = path.file_name().filter(|_| !disk.is_empty());
        name.is_some_and(|name| Path::new(&disk).join(name).join("partition").exists())
    };
    let mut entries = table::ours();
    entries.retain(|entry| {
        let source = Path::new(&entry.source);
        let name = source.file_name();
        let file = name.and_then(|name| backing_file(&Path::new("/sys/block").join(name)));
        is_wanted(source) || is_partition(source) || file.is_some_and(|file| is_wanted(&file))
    });
    entries
}

/// Returns `path` without symbolic links. The last component is kept as it is if it cannot be
/// accessed, such as the root of a mount whose server has ended.
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

/// Returns the host's text for an error, without the error number that Rust adds.
pub fn text(errno: &Errno) -> String {
    let text = io::Error::from(*errno).to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
