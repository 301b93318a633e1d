//! Owner, extended attributes, permissions and times of a copy in an image.
//!
//! The owner is set first, because a change of the owner removes capabilities. Extended attributes
//! follow, because access control lists change the permissions. Times are set last, because every
//! change updates them.

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
/// Why a format refuses an extended attribute although the volume has free space.
pub const DOES_NOT_FIT: &str = "it does not fit beside the other attributes of the file, which have limited space in this format";

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
    apply(copy, &Preserved::of(original, options), lost, |copy, permissions| {
        xattrs.for_each(lost, |name, value| {
            set_xattr(copy, (name, value), permissions, lost).map(drop)
        })?;
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
    apply(copy, &Preserved::of(original, options), lost, |_, _| Ok(false))
}

/// Sets the owner, the extended attributes and the permissions of a file on the copy that replaces
/// it, as if it had been overwritten: without capabilities and set-ID bits. `permissions` takes the
/// place of its own.
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
    let mut permissions = permissions.unwrap_or(attributes.permissions & 0o777);
    copy_xattrs(replaced, copy, |name| name != CAPABILITIES, &mut permissions, lost)?;
    let permissions = Some(permissions);
    set_attributes(copy, &AttributeChange { permissions, ..AttributeChange::default() })
}

/// Sets the extended attributes of a file in an image on a copy, of those names that `wanted`
/// accepts. Counts those that cannot be read or set. Without its access control list, the copy must
/// have less `permissions`.
pub fn copy_xattrs(
    original: &Node,
    copy: &Node,
    wanted: impl Fn(&[u8]) -> bool,
    permissions: &mut u16,
    lost: Lost<'_>,
) -> Result<(), CopyError> {
    let names = original.list_xattrs().unwrap_or_else(|error| {
        lost.add(ALL, error.to_string());
        Vec::new()
    });
    for name in names.iter().filter(|name| wanted(name)) {
        match original.get_xattr(name) {
            Ok(value) => drop(set_xattr(copy, (name, &value), permissions, lost)?),
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

/// Sets the metadata of a new copy, as [`update`] does. Removes access control lists that it has
/// inherited.
pub fn apply(
    copy: &Node,
    preserved: &Preserved,
    lost: Lost<'_>,
    set_xattrs: impl FnOnce(&Node, &mut u16) -> Result<bool, CopyError>,
) -> Result<(), CopyError> {
    remove_inherited(copy)?;
    update(copy, preserved, lost, set_xattrs)
}

/// Sets the metadata of a copy. Calls `set_xattrs` to set the extended attributes, which returns
/// whether it has set an access control list that decides on the permissions. It gets the
/// permissions, and reduces them if the list cannot be set.
pub fn update(
    copy: &Node,
    preserved: &Preserved,
    lost: Lost<'_>,
    set_xattrs: impl FnOnce(&Node, &mut u16) -> Result<bool, CopyError>,
) -> Result<(), CopyError> {
    let current = copy.attributes();
    if (current.uid, current.gid) != (preserved.uid, preserved.gid) {
        let uid = Some(preserved.uid);
        let gid = Some(preserved.gid);
        set_attributes(copy, &AttributeChange { uid, gid, ..AttributeChange::default() })?;
    }
    let mut permissions = preserved.permissions;
    if set_xattrs(copy, &mut permissions)? {
        permissions = permissions & !0o777 | copy.attributes().permissions & 0o777;
    }
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

/// Sets one extended attribute. Counts it, and returns false, if the volume cannot have it, or not
/// beside the others of the file. Reduces `permissions` if it is the access control list. Errors:
/// also `NoSpace` if the volume is full.
pub fn set_xattr(
    copy: &Node,
    (name, value): (&[u8], &[u8]),
    permissions: &mut u16,
    lost: Lost<'_>,
) -> Result<bool, CopyError> {
    let reason = match copy.set_xattr(name, value, XattrMode::Either, Privileges::Keep) {
        Ok(()) => return Ok(true),
        Err(
            error @ (Error::Unsupported(_)
            | Error::InvalidArgument(_)
            | Error::NotPermitted(_)
            | Error::NameTooLong),
        ) => error.to_string(),
        Err(Error::NoSpace) if !is_full(copy, value.len()) => DOES_NOT_FIT.to_owned(),
        Err(error) => return Err(CopyError::Image(CANNOT_SET, error)),
    };
    if name == acl::ACCESS {
        *permissions = acl::permissions_without(value, *permissions);
    }
    lost.add(&describe(name), reason);
    Ok(false)
}

/// Returns whether a volume may have no free space for a value of so many bytes: the blocks for it,
/// and those that say where it is, beside those that ext4 keeps for the conversion of unwritten
/// extents.
pub fn is_full(copy: &Node, bytes: usize) -> bool {
    /// An inode for the value, a block of its map, and a block of attributes.
    const OTHER_BLOCKS: u64 = 3;
    const RESERVED_FRACTION: u64 = 50;
    const RESERVED_BLOCKS_MAX: u64 = 4096;
    let counts = copy.statfs();
    let blocks = (bytes as u64).div_ceil(u64::from(counts.block_size.max(1)));
    let reserved = (counts.blocks / RESERVED_FRACTION + 1).min(RESERVED_BLOCKS_MAX);
    counts.blocks_free < blocks + OTHER_BLOCKS + reserved
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
