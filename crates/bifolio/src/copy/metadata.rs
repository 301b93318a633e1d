//! Owner, extended attributes, permissions and times of a copy on the host.
//!
//! The owner is set late, because root without `CAP_DAC_OVERRIDE` or `CAP_FOWNER` can set other
//! metadata only of its own files. Capabilities and set-ID bits are set after it, because a change
//! of the owner removes them. It leaves times as they are.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use base::attributes::{Attributes, Timestamp};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use vfs::Node;

use super::engine::CopyError;
use super::losses::{Loss, Losses, Reason, is_privilege};
use crate::format::acl;

/// The set-user-ID and set-group-ID bits.
pub const SET_ID: u16 = 0o6000;
/// The extended attribute with the capabilities of a program.
pub const CAPABILITIES: &[u8] = b"security.capability";
/// The prefixes of extended attributes that decide on rights on the host: security modules and
/// overlayfs trust them, also those that every user can set (overlayfs with `userxattr`,
/// fuse-overlayfs, and shares of QEMU), and `system.*` are other access control lists.
const RIGHTS: [&[u8]; 7] = [
    b"security.",
    b"trusted.",
    b"system.",
    b"user.overlay.",
    b"user.fuseoverlayfs.",
    b"user.virtfs.",
    b"user.virtiofs.",
];
/// The extended attributes with the owner, and with the first one the mode, that containers show
/// instead of those of the file.
const OVERRIDES: [&[u8]; 2] = [b"user.containers.override_stat", b"user.rootlesscontainers"];

/// Metadata to set.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The original node.
    pub node: &'a Node,
    /// The path of the original in the image.
    pub path: &'a [u8],
    /// The attributes of the original.
    pub attributes: &'a Attributes,
    /// Whether what gives rights on the host is set.
    pub privileged: bool,
    /// Counts of attributes that are not preserved.
    pub losses: &'a Losses,
}

/// Copy whose metadata is set.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A symbolic link or special file in an open directory, in which no other user can replace it.
    /// It is not opened or followed. The directory becomes the current one, since some system calls
    /// take no other, so only one thread of a copy may use this.
    Entry(BorrowedFd<'a>, &'a str),
}

/// Sets all metadata of the original on its copy. Passes errors to `report`.
pub fn preserve(wanted: &Wanted<'_>, subject: Subject<'_>, report: &mut dyn FnMut(CopyError)) {
    let mut permissions = wanted.attributes.permissions;
    let has_capabilities = set_xattrs(wanted, subject, &mut permissions, report);
    let plain = set_permissions(subject, permissions & !SET_ID);
    for outcome in [plain, set_times(wanted.attributes, subject)] {
        if let Err(error) = outcome {
            report(error);
        }
    }
    let is_owned = set_owner(wanted, subject).unwrap_or_else(|error| {
        report(error);
        false
    });
    // With another owner, the set-ID bits would grant the rights of another user.
    if permissions & SET_ID != 0 && !(is_owned && wanted.privileged) {
        let reason = if wanted.privileged { Errno::PERM.into() } else { Reason::GivesRights };
        wanted.losses.add(Loss::SetId, reason, wanted.path);
    } else if permissions & SET_ID != 0 {
        match set_permissions(subject, permissions) {
            Ok(()) if lacks_set_id(subject, permissions) => {
                wanted.losses.add(Loss::SetId, Errno::PERM, wanted.path);
            }
            Ok(()) => {}
            // The copy has another owner now, and only that one, or root with CAP_FOWNER, may
            // change its permissions.
            Err(CopyError::Host(_, error)) if is_permission(&error) => {
                wanted.losses.add(Loss::SetId, Errno::PERM, wanted.path);
            }
            Err(error) => report(error),
        }
    }
    if has_capabilities {
        copy_xattr(wanted, subject, CAPABILITIES, &mut permissions, report);
    }
}

/// Returns whether an existing directory has other permissions than the original, apart from set-ID
/// bits, or with `owners`, another owner or group.
pub fn differ(directory: impl AsFd, original: &Attributes, owners: bool) -> bool {
    let Ok(found) = rustix::fs::fstat(directory) else { return false };
    let permissions = u32::from(original.permissions & !SET_ID);
    let has_others = found.st_mode & 0o7777 & !u32::from(SET_ID) != permissions;
    let has_owner = (found.st_uid, found.st_gid) == (original.uid, original.gid);
    has_others || owners && !has_owner
}

/// Returns whether the host has left out set-ID bits of these permissions, as without CAP_FSETID
/// for a file of another group.
fn lacks_set_id(subject: Subject<'_>, permissions: u16) -> bool {
    let Subject::Open(fd) = subject else { return false };
    rustix::fs::fstat(fd).is_ok_and(|set| u32::from(permissions & SET_ID) & !set.st_mode != 0)
}

fn is_permission(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PERM.raw_os_error())
}

/// Sets only the permissions. Symbolic links and special files were created with their permissions.
pub fn set_permissions(subject: Subject<'_>, permissions: u16) -> Result<(), CopyError> {
    match subject {
        Subject::Open(fd) => rustix::fs::fchmod(fd, Mode::from_raw_mode(permissions.into()))
            .map_err(|error| {
                CopyError::Host("cannot set the permissions of the copy", error.into())
            }),
        Subject::Entry(..) => Ok(()),
    }
}

/// Sets the owner and group. Returns false if the user has no privilege for it.
fn set_owner(wanted: &Wanted<'_>, subject: Subject<'_>) -> Result<bool, CopyError> {
    let (uid, gid) = (wanted.attributes.uid, wanted.attributes.gid);
    // -1 means "unchanged" in chown(2).
    let ids =
        (uid != u32::MAX && gid != u32::MAX).then(|| (Uid::from_raw(uid), Gid::from_raw(gid)));
    let change = |uid: Option<Uid>, gid: Option<Gid>| match subject {
        Subject::Open(fd) => rustix::fs::fchown(fd, uid, gid),
        Subject::Entry(fd, name) => {
            rustix::fs::chownat(fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
        }
    };
    let outcome = match ids {
        Some((uid, gid)) => change(Some(uid), Some(gid)),
        None => Err(Errno::INVAL),
    };
    match outcome {
        Ok(()) => Ok(true),
        Err(reason) if is_privilege(reason) => {
            // A user can set the group to one of their own groups without privilege.
            if let Some((_, gid)) = ids {
                let _ = change(None, Some(gid));
            }
            wanted.losses.add(Loss::Owner, reason, wanted.path);
            Ok(false)
        }
        Err(error) => Err(CopyError::Host("cannot set the owner of the copy", error.into())),
    }
}

/// Sets the extended attributes but capabilities. Reduces `permissions` if the access control list
/// cannot be set. Returns whether there are capabilities to set.
fn set_xattrs(
    wanted: &Wanted<'_>,
    subject: Subject<'_>,
    permissions: &mut u16,
    report: &mut dyn FnMut(CopyError),
) -> bool {
    let names = match wanted.node.list_xattrs() {
        Ok(names) => names,
        Err(error) => {
            report(error.into());
            return false;
        }
    };
    // The parent directory of the copy may have default access control lists, which the original
    // did not inherit.
    for (acl, _) in acl::ATTRIBUTES.iter().filter(|(acl, _)| !names.iter().any(|name| name == acl))
    {
        match remove_xattr(subject, acl) {
            // There was no list, or lists are not supported.
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOENT) => {}
            Err(Errno::PERM | Errno::ACCESS) => {}
            Err(error) => report(CopyError::Host(
                "cannot remove inherited access control lists from the copy",
                error.into(),
            )),
        }
    }
    let mut left_out = BTreeSet::new();
    let mut has_capabilities = false;
    for name in &names {
        match right(name).filter(|_| !wanted.privileged) {
            Some(loss) => drop(left_out.insert(loss)),
            None if name == CAPABILITIES => has_capabilities = true,
            None => copy_xattr(wanted, subject, name, permissions, report),
        }
    }
    for loss in left_out {
        wanted.losses.add(loss, Reason::GivesRights, wanted.path);
    }
    has_capabilities
}

/// Sets one extended attribute. Reduces `permissions` if it is the access control list, and cannot
/// be set.
fn copy_xattr(
    wanted: &Wanted<'_>,
    subject: Subject<'_>,
    name: &[u8],
    permissions: &mut u16,
    report: &mut dyn FnMut(CopyError),
) {
    let value = match wanted.node.get_xattr(name) {
        Ok(value) => value,
        Err(error) => return report(error.into()),
    };
    let Err(error) = set_xattr(subject, name, &value) else { return };
    if name == acl::ACCESS {
        *permissions = acl::permissions_without(&value, *permissions);
    }
    match error {
        Errno::PERM if name == CAPABILITIES => {
            wanted.losses.add(Loss::Capabilities, error, wanted.path);
        }
        Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL => {
            wanted.losses.add(Loss::Xattr(names_from(prefix(name))), error, wanted.path);
        }
        Errno::NOSPC | Errno::TOOBIG | Errno::RANGE => {
            wanted.losses.add(Loss::Xattr(name.to_vec()), error, wanted.path);
        }
        error => {
            report(CopyError::Host("cannot set an extended attribute of the copy", error.into()));
        }
    }
}

/// Returns what is lost without an extended attribute that gives rights on the host, and `None` for
/// others.
fn right(name: &[u8]) -> Option<Loss> {
    if name == CAPABILITIES {
        return Some(Loss::Capabilities);
    }
    if OVERRIDES.contains(&name) {
        return Some(Loss::Xattr(name.to_vec()));
    }
    // POSIX lists are permissions, like those of the mode.
    if acl::ATTRIBUTES.iter().any(|(acl, _)| name == *acl) {
        return None;
    }
    let right = RIGHTS.into_iter().find(|right| name.starts_with(right));
    right.map(|right| Loss::Xattr(names_from(right)))
}

/// Returns the text for all names with a prefix.
fn names_from(prefix: &[u8]) -> Vec<u8> {
    [prefix, b"*"].concat()
}

/// Returns the namespace of an extended attribute, with the dot.
fn prefix(name: &[u8]) -> &[u8] {
    let dot = name.iter().position(|&byte| byte == b'.');
    name.get(..dot.map_or(name.len(), |dot| dot + 1)).unwrap_or(name)
}

fn set_xattr(subject: Subject<'_>, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    match subject {
        Subject::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
        Subject::Entry(fd, entry) => {
            rustix::process::fchdir(fd)?;
            rustix::fs::lsetxattr(entry, name, value, XattrFlags::empty())
        }
    }
}

fn remove_xattr(subject: Subject<'_>, name: &[u8]) -> rustix::io::Result<()> {
    match subject {
        Subject::Open(fd) => rustix::fs::fremovexattr(fd, name),
        // Symbolic links inherit no lists. Special files are only accessible by path.
        Subject::Entry(fd, entry) => {
            rustix::process::fchdir(fd)?;
            rustix::fs::lremovexattr(entry, name)
        }
    }
}

fn set_times(attributes: &Attributes, subject: Subject<'_>) -> Result<(), CopyError> {
    let time = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        // Larger numbers have special meanings in utimensat(2).
        tv_nsec: time.nanoseconds.min(999_999_999).into(),
    };
    let times = Timestamps {
        last_access: time(attributes.accessed),
        last_modification: time(attributes.modified),
    };
    let outcome = match subject {
        Subject::Open(fd) => rustix::fs::futimens(fd, &times),
        Subject::Entry(fd, name) => {
            rustix::fs::utimensat(fd, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        }
    };
    outcome.map_err(|error| {
        CopyError::Host("cannot set the times of the copy", io::Error::from(error))
    })
}
