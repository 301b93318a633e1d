//! Remounts: changes of a mount's options. Not here: options of the mount's server, which cannot change.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::Getter;
use rustix::mount::MountFlags;

use super::sync::{SyncError, mark_clean, mark_in_use};
use crate::mount::{self, MountId, has_option};
use crate::operations::IS_WRITABLE;

/// The options to change. `None` leaves an option unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remount {
    /// Whether the mount is writable.
    pub writable: Option<bool>,
    /// Whether setuid and setgid bits have an effect.
    pub suid: Option<bool>,
    /// Whether device files can be opened.
    pub dev: Option<bool>,
    /// Whether programs can be executed.
    pub exec: Option<bool>,
}

/// An error of a remount.
#[derive(Debug, thiserror::Error)]
pub enum RemountError {
    /// The directory does not exist.
    #[error("{}", .0)]
    Path(io::Error),
    /// The directory is not a mount point of bifolio.
    #[error("is not a bifolio mount")]
    NotMounted,
    /// The volume is open read-only, which a remount cannot change.
    #[error("it was mounted read-only: unmount it, and mount it for writing")]
    OpenReadOnly,
    /// The kernel refused.
    #[error("cannot remount: {}", mount::text(.0))]
    Refused(Errno),
    /// The mount is writable now, but the volume is not: another host may have had it in the meantime.
    #[error("the volume cannot be written again: unmount it, and mount it again: {}", .0)]
    NotInUse(#[source] SyncError),
    /// The mount is read-only now, but not all data is durable.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

/// Changes the options of the mount on `path`. If it becomes read-only, makes all written data durable, and marks the volume
/// as clean, as Linux does: programs that do not replay a journal then read the current contents.
pub fn remount(path: &Path, change: Remount) -> Result<(), RemountError> {
    let path = mount::resolve_mount_point(path).map_err(RemountError::Path)?;
    let found = MountId::find(&path).filter(|(_, entry)| entry.is_ours());
    let (id, entry) = found.ok_or(RemountError::NotMounted)?;
    // The path may lead to another mount by now. An open directory stays on its mount.
    let root = mount::open_root(&path, OFlags::PATH).map_err(RemountError::Refused)?;
    if MountId::of(&root) != Some(id) {
        return Err(RemountError::NotMounted);
    }
    if change.writable == Some(true) && !is_writable(&path).map_err(RemountError::Refused)? {
        return Err(RemountError::OpenReadOnly);
    }
    let flags = flags(&entry.options, &entry.super_options, change);
    let changed = rustix::mount::mount_remount(mount::path_of(&root), flags, c"");
    changed.map_err(RemountError::Refused)?;
    if flags.contains(MountFlags::RDONLY) {
        mark_clean(&path)?;
    } else if change.writable == Some(true) {
        mark_in_use(&path).map_err(RemountError::NotInUse)?;
    }
    Ok(())
}

/// Returns whether the server has the volume open for writing.
fn is_writable(path: &Path) -> Result<bool, Errno> {
    let root = mount::open_root(path, OFlags::RDONLY)?;
    // SAFETY: the request stores one `u32`.
    let answer = unsafe { rustix::ioctl::ioctl(&root, Getter::<IS_WRITABLE, u32>::new()) };
    answer.map(|answer| answer != 0)
}

/// Returns all flags of the changed mount, including unchanged ones, since the kernel clears missing flags. `options` are those
/// of the mount, and `super_options` those of its file system.
fn flags(options: &str, super_options: &str, change: Remount) -> MountFlags {
    let has = |option: &str| has_option(options, option);
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, !change.writable.unwrap_or(!has("ro")));
    flags.set(MountFlags::NOSUID, !change.suid.unwrap_or(!has("nosuid")));
    flags.set(MountFlags::NODEV, !change.dev.unwrap_or(!has("nodev")));
    flags.set(MountFlags::NOEXEC, !change.exec.unwrap_or(!has("noexec")));
    flags.set(MountFlags::NOATIME, has("noatime"));
    flags.set(MountFlags::NODIRATIME, has("nodiratime"));
    flags.set(MountFlags::RELATIME, has("relatime"));
    flags.set(MountFlags::STRICTATIME, !has("relatime") && !has("noatime"));
    flags.set(MountFlags::SYNCHRONOUS, has_option(super_options, "sync"));
    flags.set(MountFlags::DIRSYNC, has_option(super_options, "dirsync"));
    flags.set(MountFlags::LAZYTIME, has_option(super_options, "lazytime"));
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_not_to_change_are_kept() {
        let change = Remount { writable: Some(false), suid: Some(true), ..Remount::default() };
        let found = flags("rw,nosuid,nodev,relatime", "rw,user_id=0", change);
        assert_eq!(found, MountFlags::RDONLY | MountFlags::NODEV | MountFlags::RELATIME);
        let found = flags("ro,noexec,noatime", "ro,lazytime", Remount::default());
        let kept = MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NOATIME;
        assert_eq!(found, kept | MountFlags::LAZYTIME);
        let found = flags("rw,relatime", "rw,sync,dirsync,user_id=0", Remount::default());
        let kept = MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC | MountFlags::RELATIME;
        assert_eq!(found, kept);
    }
}
