//! Owner, attributes, permissions and times of a copy, in the order that keeps them: a change of
//! the owner drops capabilities and set-ID bits, so it comes first; every change touches the times,
//! so they come last.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use base::attributes::{Attributes, Timestamp};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use vfs::Node;

use super::engine::Trouble;
use super::losses::{Loss, Losses, is_privilege};
use crate::format::acl;

const SET_ID: u16 = 0o6000;

/// What to set.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The original.
    pub node: &'a Node,
    /// Its path in the image.
    pub path: &'a [u8],
    /// Its attributes.
    pub attributes: &'a Attributes,
    /// Where to count what cannot be kept.
    pub losses: &'a Losses,
}

/// A copy whose metadata can be set.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// An entry of an open directory that cannot be opened itself; links are not followed.
    Entry(BorrowedFd<'a>, &'a str),
}

/// Gives a copy all the metadata of its original. What cannot be given goes to `tell`.
pub fn preserve(wanted: &Wanted<'_>, subject: Subject<'_>, tell: &mut dyn FnMut(Trouble)) {
    let mut permissions = wanted.attributes.permissions;
    let is_owned = set_owner(wanted, subject).unwrap_or_else(|trouble| {
        tell(trouble);
        false
    });
    if !is_owned && permissions & SET_ID != 0 {
        // They would give another user's rights away.
        wanted.losses.add(Loss::SetId, Errno::PERM, wanted.path);
        permissions &= !SET_ID;
    }
    set_xattrs(wanted, subject, tell);
    for outcome in [set_permissions(subject, permissions), set_times(wanted.attributes, subject)] {
        if let Err(trouble) = outcome {
            tell(trouble);
        }
    }
}

/// Sets permissions only. Entries that cannot be opened were made with theirs.
pub fn set_permissions(subject: Subject<'_>, permissions: u16) -> Result<(), Trouble> {
    match subject {
        Subject::Open(fd) => rustix::fs::fchmod(fd, Mode::from_raw_mode(permissions.into()))
            .map_err(|error| Trouble::Host("cannot set the permissions of the copy", error.into())),
        Subject::Entry(..) => Ok(()),
    }
}

/// Sets the owner and group. False when they could not be kept for want of privilege.
fn set_owner(wanted: &Wanted<'_>, subject: Subject<'_>) -> Result<bool, Trouble> {
    let (uid, gid) = (wanted.attributes.uid, wanted.attributes.gid);
    // -1 means "leave it" to the host.
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
            // A group of one's own can be kept even so.
            if let Some((_, gid)) = ids {
                let _ = change(None, Some(gid));
            }
            wanted.losses.add(Loss::Owner, reason, wanted.path);
            Ok(false)
        }
        Err(error) => Err(Trouble::Host("cannot set the owner of the copy", error.into())),
    }
}

fn set_xattrs(wanted: &Wanted<'_>, subject: Subject<'_>, tell: &mut dyn FnMut(Trouble)) {
    let names = match wanted.node.list_xattrs() {
        Ok(names) => names,
        Err(error) => return tell(error.into()),
    };
    // What the directory around a copy made it inherit is not the original's.
    for (acl, _) in acl::ATTRIBUTES.iter().filter(|(acl, _)| !names.iter().any(|name| name == acl))
    {
        match remove_xattr(subject, acl) {
            // There was none, or can be none.
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOENT) => {}
            Err(Errno::PERM | Errno::ACCESS) => {}
            Err(error) => tell(Trouble::Host(
                "cannot remove inherited access control lists from the copy",
                error.into(),
            )),
        }
    }
    for name in names {
        let value = match wanted.node.get_xattr(&name) {
            Ok(value) => value,
            Err(error) => {
                tell(error.into());
                continue;
            }
        };
        match set_xattr(subject, &name, &value) {
            Ok(()) => {}
            Err(reason @ (Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP)) => {
                let dot = name.iter().position(|&byte| byte == b'.');
                let prefix = name.get(..dot.map_or(name.len(), |dot| dot + 1)).unwrap_or(&name);
                wanted.losses.add(Loss::Xattr(prefix.to_vec()), reason, wanted.path);
            }
            Err(error) => {
                tell(Trouble::Host("cannot set an extended attribute of the copy", error.into()))
            }
        }
    }
}

fn set_xattr(subject: Subject<'_>, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    match subject {
        Subject::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
        Subject::Entry(fd, entry) => {
            rustix::fs::lsetxattr(process_path(fd, entry), name, value, XattrFlags::empty())
        }
    }
}

fn remove_xattr(subject: Subject<'_>, name: &[u8]) -> rustix::io::Result<()> {
    match subject {
        Subject::Open(fd) => rustix::fs::fremovexattr(fd, name),
        // Symbolic links inherit none, and for special files there is only a path.
        Subject::Entry(fd, entry) => rustix::fs::lremovexattr(process_path(fd, entry), name),
    }
}

/// A path to an entry of an open directory, for system calls that take no directory.
fn process_path(directory: BorrowedFd<'_>, entry: &str) -> String {
    format!("/proc/self/fd/{}/{entry}", directory.as_fd().as_raw_fd())
}

fn set_times(attributes: &Attributes, subject: Subject<'_>) -> Result<(), Trouble> {
    let time = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        // Larger numbers have other meanings to the host.
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
    outcome
        .map_err(|error| Trouble::Host("cannot set the times of the copy", io::Error::from(error)))
}
