//! Remounts: changes of a mount's options. Not here: how the guard opens an image for writing
//! (`upgrade`).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater};
use rustix::mount::MountFlags;

use super::sync::{SyncError, mark_clean, mark_in_use};
use crate::mount::{self, MountId, has_option};
use crate::operations::{BECOME_WRITABLE, IS_WRITABLE, REASON_BYTES_MAX};
use crate::retry::retry_for;

/// The time in which a mount that is in use may cease to be, before a remount fails. A removed file
/// that was closed is in use until the server has answered the kernel's RELEASE, which close(2)
/// does not wait for.
const IN_USE_TIME: Duration = Duration::from_secs(2);

/// The options to change. `None` leaves an option unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remount {
    /// Whether only the mount on the directory is changed, and not the file system, which all of
    /// its mounts share.
    pub only_mount: bool,
    /// Whether the mount is writable. Unless `only_mount` is set, this concerns the file system.
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
    /// The volume is open for reading, and cannot be opened for writing, for this reason.
    #[error("cannot make it writable: {}", .0)]
    OpenReadOnly(String),
    /// A file is open for writing, or a removed file is open.
    #[error("cannot remount: it is in use: a file is open for writing, or a removed file is open")]
    Busy,
    /// The kernel refused.
    #[error("cannot remount: {}", mount::text(.0))]
    Refused(Errno),
    /// The mount is writable now, but the volume is not: another host may have had it in the
    /// meantime.
    #[error("the volume cannot be written again: unmount it, and mount it again: {}", .0)]
    NotInUse(#[source] SyncError),
    /// The mount is read-only now, but not all data is durable.
    #[error(transparent)]
    Sync(#[from] SyncError),
}

/// What becomes of the file system of a mount whose options change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    /// Only the mount changes.
    Mount,
    /// The file system becomes read-only, and with it all of its mounts.
    ReadOnly,
    /// The file system becomes writable. Its other mounts may have been mounted read-only.
    Writable,
}

/// Changes the options of the mount on `path`. As in Linux, its other mounts keep theirs, but
/// `writable` concerns the file system that they share. If it becomes read-only, makes all written
/// data durable, and marks the volume as clean, as Linux does: programs that do not replay a
/// journal then read the current contents.
pub fn remount(path: &Path, change: Remount) -> Result<(), RemountError> {
    let path = mount::resolve_mount_point(path).map_err(RemountError::Path)?;
    let found = MountId::find(&path).filter(|(_, entry)| entry.is_ours());
    let (id, entry) = found.ok_or(RemountError::NotMounted)?;
    // The path may lead to another mount by now. An open directory stays on its mount.
    let root = mount::open_root(&path, OFlags::PATH).map_err(RemountError::Refused)?;
    if MountId::of(&root) != Some(id) {
        return Err(RemountError::NotMounted);
    }
    let scope = scope(&entry.super_options, change);
    let becomes_writable = change.writable == Some(true) && !change.only_mount;
    let change_to = |change, scope| {
        let flags = flags(&entry.options, &entry.super_options, change, scope);
        rustix::mount::mount_remount(mount::path_of(&root), flags, c"")
    };
    let is_opened = becomes_writable && !is_writable(&root).map_err(RemountError::Refused)?;
    if is_opened {
        // A user who may not change the mount does not get the volume opened for writing either.
        let same = Remount { only_mount: true, ..Remount::default() };
        change_to(same, Scope::Mount).map_err(RemountError::Refused)?;
        become_writable(&root)?;
    }
    let changed =
        retry_for(IN_USE_TIME, |errno| *errno == Errno::BUSY, || change_to(change, scope));
    if changed.is_err() && is_opened {
        let _ = mark_clean(&root);
    }
    changed.map_err(|errno| match errno {
        Errno::BUSY => RemountError::Busy,
        errno => RemountError::Refused(errno),
    })?;
    match scope {
        Scope::Mount => Ok(()),
        Scope::ReadOnly => Ok(mark_clean(&root)?),
        Scope::Writable => mark_in_use(&root).map_err(RemountError::NotInUse),
    }
}

/// Returns whether the server has the volume open for writing.
fn is_writable(root: &OwnedFd) -> Result<bool, Errno> {
    let answer = requested::<IS_WRITABLE, { size_of::<u32>() }>(root)?;
    Ok(u32::from_ne_bytes(answer) != 0)
}

/// Makes a request that stores an answer of `BYTES` bytes at most. What the server leaves out is
/// zero: it may answer with less.
fn requested<const REQUEST: Opcode, const BYTES: usize>(
    root: &OwnedFd,
) -> Result<[u8; BYTES], Errno> {
    let root = mount::open_for_requests(root)?;
    const { assert!((REQUEST >> 16) & 0x3FFF == BYTES as Opcode, "the number has the size") };
    let mut answer = [0; BYTES];
    // SAFETY: the kernel stores at most the size that is in the number of the request.
    unsafe { rustix::ioctl::ioctl(&root, Updater::<REQUEST, _>::new(&mut answer)) }?;
    Ok(answer)
}

/// Has the server open the volume for writing.
fn become_writable(root: &OwnedFd) -> Result<(), RemountError> {
    let reason = requested::<BECOME_WRITABLE, REASON_BYTES_MAX>(root);
    let reason = reason.map_err(RemountError::Refused)?;
    let text = reason.split(|byte| *byte == 0).next().unwrap_or_default();
    match text {
        [] => Ok(()),
        text => Err(RemountError::OpenReadOnly(base::text::printable(text).into_owned())),
    }
}

/// Returns what becomes of the file system, which has these options. mount(8) passes all options of
/// the mount, and not only those that are to change: as with the kernel's file systems, any remount
/// of a mount that is read-only by itself, other than with `bind`, makes the file system read-only,
/// too.
fn scope(super_options: &str, change: Remount) -> Scope {
    let is_read_only = has_option(super_options, "ro");
    match change.writable {
        _ if change.only_mount => Scope::Mount,
        Some(true) if is_read_only => Scope::Writable,
        Some(false) if !is_read_only => Scope::ReadOnly,
        _ => Scope::Mount,
    }
}

/// Returns all flags of the changed mount, including unchanged ones, since the kernel clears
/// missing flags. `options` are those of the mount, and `super_options` those of its file system.
fn flags(options: &str, super_options: &str, change: Remount, scope: Scope) -> MountFlags {
    let has = |option: &str| has_option(options, option);
    let read_only = match change.writable {
        Some(false) if scope == Scope::Mount && !change.only_mount => has("ro"),
        Some(writable) => !writable,
        None => has("ro"),
    };
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::BIND, scope == Scope::Mount);
    flags.set(MountFlags::RDONLY, read_only);
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

    /// Returns the flags for a change of a mount with these options.
    fn changed(options: &str, super_options: &str, change: Remount) -> MountFlags {
        flags(options, super_options, change, scope(super_options, change))
    }

    #[test]
    fn options_that_are_not_to_change_are_kept() {
        let change = Remount { writable: Some(false), suid: Some(true), ..Remount::default() };
        let found = changed("rw,nosuid,nodev,relatime", "rw,user_id=0", change);
        assert_eq!(found, MountFlags::RDONLY | MountFlags::NODEV | MountFlags::RELATIME);
        let found = changed("ro,noexec,noatime", "ro,lazytime", Remount::default());
        let kept = MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::NOATIME;
        assert_eq!(found, kept | MountFlags::LAZYTIME | MountFlags::BIND);
        let change = Remount { writable: Some(true), ..Remount::default() };
        let found = changed("rw,relatime", "ro,sync,dirsync,user_id=0", change);
        let kept = MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC | MountFlags::RELATIME;
        assert_eq!(found, kept);
    }

    #[test]
    fn only_changes_between_read_only_and_writable_reach_the_file_system() {
        const RO: MountFlags = MountFlags::RDONLY;
        const MOUNT: MountFlags = MountFlags::BIND;
        let none = MountFlags::empty();
        for (mount, file_system, writable, expected) in [
            ("rw", "rw", None, MOUNT),
            ("rw", "rw", Some(true), MOUNT),
            ("rw", "rw", Some(false), RO),
            ("ro", "rw", None, MOUNT | RO),
            ("ro", "rw", Some(false), RO),
            ("ro", "rw", Some(true), MOUNT),
            ("rw", "ro", None, MOUNT),
            ("rw", "ro", Some(false), MOUNT),
            ("rw", "ro", Some(true), none),
            ("ro", "ro", Some(true), none),
            ("ro", "ro", Some(false), MOUNT | RO),
        ] {
            let change = Remount { writable, exec: Some(true), ..Remount::default() };
            let options = format!("{mount},noexec,relatime");
            let found = changed(&options, file_system, change);
            let found = found & (RO | MOUNT | MountFlags::NOEXEC);
            assert_eq!(found, expected, "{mount} of {file_system}, {writable:?}");
        }
        let change = Remount { only_mount: true, writable: Some(false), ..Remount::default() };
        assert_eq!(changed("rw,noatime", "rw", change), MOUNT | RO | MountFlags::NOATIME);
    }
}
