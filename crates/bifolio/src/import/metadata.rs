//! Owner, extended attributes, permissions and times of a copy in an image.
//!
//! The owner is set first, because a change of the owner removes capabilities. Extended attributes follow, because
//! access control lists change the permissions. Times are set last, because every change updates them.

use std::ffi::CStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base::Error;
use base::attributes::{AttributeChange, FileType, Timestamp, XattrMode};
use rustix::io::Errno;
use vfs::{Node, Privileges};

use super::{CopyError, set_attributes};
use crate::archive::Member;
use crate::format::acl;

/// Maximum size of a list of names, and of a value, in Linux.
const XATTR_BYTES_MAX: usize = 65_536;
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

    fn of(original: &Metadata) -> Self {
        Self {
            uid: original.uid(),
            gid: original.gid(),
            permissions: (original.mode() & 0o7777) as u16,
            accessed: Some(time(original.atime(), original.atime_nsec())),
            modified: time(original.mtime(), original.mtime_nsec()),
        }
    }
}

/// Sets all metadata of the original, which is at `from`, on its copy.
pub fn preserve(from: &Path, original: &Metadata, copy: &Node) -> Result<(), CopyError> {
    apply(copy, &Preserved::of(original), |copy| set_xattrs(from, copy))
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

fn time(seconds: i64, nanoseconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: nanoseconds as u32 }
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

fn set_xattrs(from: &Path, copy: &Node) -> Result<(), CopyError> {
    let read =
        |error: Errno| CopyError::Host("cannot read extended attributes", io::Error::from(error));
    let mut buffer = vec![0; XATTR_BYTES_MAX];
    let names = match rustix::fs::llistxattr(from, &mut buffer[..]) {
        Ok(length) => buffer[..length].to_vec(),
        Err(Errno::OPNOTSUPP) => Vec::new(),
        Err(error) => return Err(read(error)),
    };
    for name in names.split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let length = match rustix::fs::lgetxattr(from, name, &mut buffer[..]) {
            Ok(length) => length,
            // The attribute was removed since the names were listed.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(read(error)),
        };
        set_xattr(copy, name.to_bytes(), &buffer[..length])?;
    }
    Ok(())
}
