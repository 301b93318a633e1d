//! Owner, extended attributes, permissions and times of a copy in an image.
//!
//! The owner is set first, because a change of the owner removes capabilities. Extended attributes follow, because
//! access control lists change the permissions. Times are set last, because every change updates them.

use base::Error;
use base::attributes::{AttributeChange, FileType, Timestamp, XattrMode};
use rustix::fs::Stat;
use vfs::{Node, Privileges};

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
) -> Result<(), CopyError> {
    apply(copy, &Preserved::of(original, options), |copy| {
        xattrs.for_each(|name, value| set_xattr(copy, name, value))
    })
}

/// Sets all metadata of the original on its copy, except for extended attributes.
pub fn preserve_plain(original: &Stat, copy: &Node, options: &Options) -> Result<(), CopyError> {
    apply(copy, &Preserved::of(original, options), |_| Ok(()))
}

/// Sets the owner, the extended attributes and the permissions of a file on the copy that replaces it, as if it had been
/// overwritten: without capabilities and set-ID bits. `permissions` takes the place of its own.
pub fn take_over(replaced: &Node, permissions: Option<u16>, copy: &Node) -> Result<(), CopyError> {
    const CANNOT_READ: &str = "cannot read an extended attribute of the replaced file";
    let attributes = replaced.attributes();
    let (uid, gid) = (Some(attributes.uid), Some(attributes.gid));
    set_attributes(copy, &AttributeChange { uid, gid, ..AttributeChange::default() })?;
    remove_inherited(copy)?;
    let read = |error| CopyError::Image(CANNOT_READ, error);
    for name in replaced.list_xattrs().map_err(read)? {
        if name != CAPABILITIES {
            set_xattr(copy, &name, &replaced.get_xattr(&name).map_err(read)?)?;
        }
    }
    let permissions = Some(permissions.unwrap_or(attributes.permissions & 0o777));
    set_attributes(copy, &AttributeChange { permissions, ..AttributeChange::default() })
}

/// Sets the metadata of a copy. Calls `set_xattrs` to set the extended attributes.
pub fn apply(
    copy: &Node,
    preserved: &Preserved,
    set_xattrs: impl FnOnce(&Node) -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let current = copy.attributes();
    if (current.uid, current.gid) != (preserved.uid, preserved.gid) {
        let uid = Some(preserved.uid);
        let gid = Some(preserved.gid);
        set_attributes(copy, &AttributeChange { uid, gid, ..AttributeChange::default() })?;
    }
    remove_inherited(copy)?;
    set_xattrs(copy)?;
    let is_symlink = copy.kind() == FileType::Symlink;
    let change = AttributeChange {
        permissions: (!is_symlink).then_some(preserved.permissions),
        accessed: preserved.accessed,
        modified: Some(preserved.modified),
        ..AttributeChange::default()
    };
    set_attributes(copy, &change)
}

/// Sets one extended attribute.
pub fn set_xattr(copy: &Node, name: &[u8], value: &[u8]) -> Result<(), CopyError> {
    copy.set_xattr(name, value, XattrMode::Either, Privileges::Keep)
        .map_err(|error| CopyError::Image(CANNOT_SET, error))
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
