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
const CANNOT_SET: &str = "cannot set an attribute of its copy";

/// Gives a copy all the metadata of its original, which is at `from`.
pub fn preserve(from: &Path, original: &Metadata, copy: &Node) -> Result<(), Trouble> {
    let (uid, gid) = (original.uid(), original.gid());
    let there = copy.attributes();
    if (there.uid, there.gid) != (uid, gid) {
        let change =
            AttributeChange { uid: Some(uid), gid: Some(gid), ..AttributeChange::default() };
        set_attributes(copy, &change)?;
    }
    set_xattrs(from, copy)?;
    let is_symlink = copy.kind() == FileType::Symlink;
    let change = AttributeChange {
        permissions: (!is_symlink).then_some((original.mode() & 0o7777) as u16),
        accessed: Some(time(original.atime(), original.atime_nsec())),
        modified: Some(time(original.mtime(), original.mtime_nsec())),
        ..AttributeChange::default()
    };
    set_attributes(copy, &change)
}

fn time(seconds: i64, nanoseconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: nanoseconds as u32 }
}

fn set_xattrs(from: &Path, copy: &Node) -> Result<(), Trouble> {
    let read = |error: Errno| Trouble::Host("cannot read its attributes", io::Error::from(error));
    let mut buffer = vec![0; XATTR_BYTES_MAX];
    let names = match rustix::fs::llistxattr(from, &mut buffer[..]) {
        Ok(length) => buffer[..length].to_vec(),
        Err(Errno::OPNOTSUPP) => Vec::new(),
        Err(error) => return Err(read(error)),
    };
    // What the directory around a copy made it inherit is not the original's.
    for (inherited, _) in acl::ATTRIBUTES {
        match copy.remove_xattr(inherited) {
            Ok(()) | Err(Error::NoAttribute) => {}
            Err(_) if copy.kind() == FileType::Symlink => {}
            Err(error) => return Err(Trouble::Image(CANNOT_SET, error)),
        }
    }
    for name in names.split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let length = match rustix::fs::lgetxattr(from, name, &mut buffer[..]) {
            Ok(length) => length,
            // It went meanwhile.
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(read(error)),
        };
        let (name, value) = (name.to_bytes(), &buffer[..length]);
        copy.set_xattr(name, value, XattrMode::Either, Privileges::Keep)
            .map_err(|error| Trouble::Image(CANNOT_SET, error))?;
    }
    Ok(())
}
