//! Owner, extended attributes, permissions and times of a copy, in the order that keeps them: a
//! change of the owner takes capabilities away, so it comes first; an access control list changes
//! the permissions; and everything touches the times, so they come last.

use std::ffi::CStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base::Error;
use base::attributes::{AttributeChange, FileType, Timestamp, XattrMode};
use rustix::io::Errno;
use vfs::{Node, Privileges};

use super::{Trouble, set_attributes};
use crate::format::acl;

/// The longest list of names, and the largest value, that Linux gives, in bytes.
const XATTR_BYTES_MAX: usize = 65_536;
const CANNOT_SET: &str = "cannot set an extended attribute of the copy";

/// What copies keep of their originals, beside extended attributes.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The low 12 bits of the mode.
    pub permissions: u16,
    /// When the original was last read, if that is known.
    pub accessed: Option<Timestamp>,
    /// When it was last changed.
    pub modified: Timestamp,
}

impl Kept {
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

/// Gives a copy all the metadata of its original, which is at `from`.
pub fn preserve(from: &Path, original: &Metadata, copy: &Node) -> Result<(), Trouble> {
    keep(copy, &Kept::of(original), |copy| set_xattrs(from, copy))
}

/// Gives a copy its metadata, and has `set_xattrs` set its extended attributes when it is time.
pub fn keep(
    copy: &Node,
    kept: &Kept,
    set_xattrs: impl FnOnce(&Node) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let there = copy.attributes();
    if (there.uid, there.gid) != (kept.uid, kept.gid) {
        let (uid, gid) = (Some(kept.uid), Some(kept.gid));
        set_attributes(copy, &AttributeChange { uid, gid, ..AttributeChange::default() })?;
    }
    remove_inherited(copy)?;
    set_xattrs(copy)?;
    let is_symlink = copy.kind() == FileType::Symlink;
    let change = AttributeChange {
        permissions: (!is_symlink).then_some(kept.permissions),
        accessed: kept.accessed,
        modified: Some(kept.modified),
        ..AttributeChange::default()
    };
    set_attributes(copy, &change)
}

/// Sets one extended attribute.
pub fn set_xattr(copy: &Node, name: &[u8], value: &[u8]) -> Result<(), Trouble> {
    copy.set_xattr(name, value, XattrMode::Either, Privileges::Keep)
        .map_err(|error| Trouble::Image(CANNOT_SET, error))
}

fn time(seconds: i64, nanoseconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: nanoseconds as u32 }
}

/// What the directory around a copy made it inherit is not the original's.
fn remove_inherited(copy: &Node) -> Result<(), Trouble> {
    for (inherited, _) in acl::ATTRIBUTES {
        match copy.remove_xattr(inherited) {
            Ok(()) | Err(Error::NoAttribute) => {}
            Err(_) if copy.kind() == FileType::Symlink => {}
            Err(error) => return Err(Trouble::Image(CANNOT_SET, error)),
        }
    }
    Ok(())
}

fn set_xattrs(from: &Path, copy: &Node) -> Result<(), Trouble> {
    let read =
        |error: Errno| Trouble::Host("cannot read extended attributes", io::Error::from(error));
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
            // It went meanwhile.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(read(error)),
        };
        set_xattr(copy, name.to_bytes(), &buffer[..length])?;
    }
    Ok(())
}
