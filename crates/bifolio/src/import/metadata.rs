//! Owner, extended attributes, permissions and times of a copy in an image.
//!
//! The owner is set first, because a change of the owner removes capabilities. Extended attributes follow, because
//! access control lists change the permissions. Times are set last, because every change updates them.

use base::Error;
use base::attributes::{AttributeChange, FileType, Timestamp, XattrMode};
use rustix::fs::Stat;
use vfs::{Node, Privileges};

use super::losses::Lost;
use super::xattrs::Xattrs;
use super::{CopyError, Options, permissions, set_attributes};
use crate::archive::Member;
use crate::copy::CAPABILITIES;
use crate::format::acl;

const CANNOT_SET: &str = "cannot set an extended attribute of the copy";

/// Attributes that copies preserve, except extended attributes.
#[derive(Clone, Debug)]
pub struct Preserved {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The low 12 bits of the mode.
    pub permissions: u16,
    /// The time of the last access, if it is known.
    pub accessed: Option<Timestamp>,
    /// The time of the last change.
    pub modified: Timestamp,
}

impl Preserved {
    /// Returns the attributes of a member of an archive.
    pub fn of_member(member: &Member) -> Self {
        Self {
            uid: member.uid,
            gid: member.gid,
            permissions: member.permissions,
            accessed: member.accessed,
            modified: member.modified,
        }
    }

    fn of(original: &Stat, options: &Options) -> Self {
        let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        Self {
            uid: options.owner.unwrap_or(original.st_uid),
            gid: options.group.unwrap_or(original.st_gid),
            permissions: permissions(original),
            accessed: Some(time(original.st_atime, original.st_atime_nsec as u32)),
            modified: time(original.st_mtime, original.st_mtime_nsec as u32),
        }
    }
}

/// Sets all metadata of the original on its copy.
pub fn preserve(
    original: &Stat,
    xattrs: &Xattrs<'_>,
    copy: &Node,
    options: &Options,
    lost: Lost<'_>,
) -> Result<(), CopyError> {
    apply(copy, &Preserved::of(original, options), lost, |copy| {
        xattrs.for_each(lost, |name, value| set_xattr(copy, name, value, lost).map(drop))?;
        Ok(false)
    })
}

/// Sets all metadata of the original on its copy, except for extended attributes.
pub fn preserve_plain(
    original: &Stat,
    copy: &Node,
    options: &Options,
    lost: Lost<'_>,
) -> Result<(), CopyError> {
    apply(copy, &Preserved::of(original, options), lost, |_| Ok(false))
}

/// Sets the owner, the extended attributes and the permissions of a file on the copy that replaces it, as if it had been
/// overwritten: without capabilities and set-ID bits. `permissions` takes the place of its own.
pub fn take_over(
    replaced: &Node,
    permissions: Option<u16>,
    copy: &Node,
    lost: Lost<'_>,
) -> Result<(), CopyError> {
    let attributes = replaced.attributes();
    let (uid, gid) = (Some(attributes.uid), Some(attributes.gid));
    set_attributes(copy, &AttributeChange { uid, gid, ..AttributeChange::default() })?;
    remove_inherited(copy)?;
    copy_xattrs(replaced, copy, |name| name != CAPABILITIES, lost)?;
    let permissions = Some(permissions.unwrap_or(attributes.permissions & 0o777));
    set_attributes(copy, &AttributeChange { permissions, ..AttributeChange::default() })
}

/// Sets the extended attributes of a file in an image on a copy, of those names that `wanted` accepts. Counts those that cannot
/// be read.
pub fn copy_xattrs(
    original: &Node,
    copy: &Node,
    wanted: impl Fn(&[u8]) -> bool,
    lost: Lost<'_>,
) -> Result<(), CopyError> {
    let names = original.list_xattrs().unwrap_or_else(|error| {
        lost.add(ALL, error.to_string());
        Vec::new()
    });
    for name in names.iter().filter(|name| wanted(name)) {
        match original.get_xattr(name) {
            Ok(value) => drop(set_xattr(copy, name, &value, lost)?),
            Err(error) => lost.add(&describe(name), error.to_string()),
        }
    }
    Ok(())
}

/// What is lost if the names of attributes cannot be read.
pub const ALL: &[u8] = b"the list of extended attributes";

/// Returns what is lost without an extended attribute.
pub fn describe(name: &[u8]) -> Vec<u8> {
    [b"the attribute ", name].concat()
}

/// Sets the metadata of a copy. Calls `set_xattrs` to set the extended attributes, which returns whether it has set an access
/// control list that decides on the permissions.
pub fn apply(
    copy: &Node,
    preserved: &Preserved,
    lost: Lost<'_>,
    set_xattrs: impl FnOnce(&Node) -> Result<bool, CopyError>,
) -> Result<(), CopyError> {
    let current = copy.attributes();
    if (current.uid, current.gid) != (preserved.uid, preserved.gid) {
        let uid = Some(preserved.uid);
        let gid = Some(preserved.gid);
        set_attributes(copy, &AttributeChange { uid, gid, ..AttributeChange::default() })?;
    }
    remove_inherited(copy)?;
    let permissions = match set_xattrs(copy)? {
        true => preserved.permissions & !0o777 | copy.attributes().permissions & 0o777,
        false => preserved.permissions,
    };
    let is_symlink = copy.kind() == FileType::Symlink;
    let change = AttributeChange {
        permissions: (!is_symlink).then_some(permissions),
        accessed: preserved.accessed,
        modified: Some(preserved.modified),
        ..AttributeChange::default()
    };
    set_attributes(copy, &change)?;
    // The volume has taken the nearest time that it can store.
    let is_exact = |wanted: Option<Timestamp>, stored: Timestamp| {
        wanted.is_none_or(|wanted| wanted.seconds == stored.seconds)
    };
    let stored = copy.attributes();
    if !is_exact(change.modified, stored.modified) || !is_exact(change.accessed, stored.accessed) {
        lost.add(b"a time", "it is out of the range of the volume's inodes");
    }
    Ok(())
}

/// Sets one extended attribute. Counts it, and returns false, if the volume cannot have it.
pub fn set_xattr(
    copy: &Node,
    name: &[u8],
    value: &[u8],
    lost: Lost<'_>,
) -> Result<bool, CopyError> {
    match copy.set_xattr(name, value, XattrMode::Either, Privileges::Keep) {
        Ok(()) => Ok(true),
        Err(
            error @ (Error::Unsupported(_)
            | Error::InvalidArgument(_)
            | Error::NotPermitted(_)
            | Error::NameTooLong),
        ) => {
            lost.add(&describe(name), error.to_string());
            Ok(false)
        }
        Err(error) => Err(CopyError::Image(CANNOT_SET, error)),
    }
}

/// Removes access control lists that the copy inherited from its parent directory.
fn remove_inherited(copy: &Node) -> Result<(), CopyError> {
    for (inherited, _) in acl::ATTRIBUTES {
        match copy.remove_xattr(inherited) {
            Ok(()) | Err(Error::NoAttribute) => {}
            Err(_) if copy.kind() == FileType::Symlink => {}
            Err(error) => return Err(CopyError::Image(CANNOT_SET, error)),
        }
    }
    Ok(())
}
