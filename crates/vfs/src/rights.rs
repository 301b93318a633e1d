//! Permissions that are checked here: ownership, sticky directories, inode flags, and the privileges that files
//! lose.
//!
//! Not here: permission to read, write or search by mode and ACL. For a mount, the kernel checks that; a user of
//! the library has access to the whole image.

use base::attributes::{AttributeChange, Attributes, FileType};
use base::{Error, Result};
use fs::Credentials;

/// The setuid, setgid and sticky bits.
pub(crate) const SETUID: u16 = 0o4000;
pub(crate) const SETGID: u16 = 0o2000;
pub(crate) const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o010;

/// Flags as FS_IOC_GETFLAGS numbers them.
const IMMUTABLE: u32 = 0x10;
const APPEND_ONLY: u32 = 0x20;

/// How a change of a file's contents affects its setuid and setgid bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privileges {
    /// They stay, since the caller has CAP_FSETID.
    Keep,
    /// They are cleared, since another user wrote the contents.
    Drop,
    /// They are cleared, for a caller of this group. On a file of that group, setgid stays if the group may
    /// not execute the file: it has no effect then.
    DropFor(u32),
}

impl Privileges {
    /// Returns whether the caller is known to be in group `gid`.
    pub(crate) fn is_in_group(self, gid: u32) -> bool {
        self == Self::DropFor(gid)
    }
}

/// Fails if the inode is immutable.
pub(crate) fn may_change(attributes: &Attributes) -> Result<()> {
    forbid(attributes, IMMUTABLE)
}

/// Fails if the inode's data may not be changed, or only be appended to.
pub(crate) fn may_overwrite(attributes: &Attributes) -> Result<()> {
    forbid(attributes, IMMUTABLE | APPEND_ONLY)
}

/// Fails if the name of `inode` may not be removed from `directory`.
pub(crate) fn may_remove(
    directory: &Attributes,
    inode: &Attributes,
    by: &Credentials,
) -> Result<()> {
    may_overwrite(directory)?;
    may_overwrite(inode)?;
    let sticky = directory.permissions & STICKY != 0;
    if sticky && !by.owns(inode) && !by.owns(directory) {
        return Err(Error::NotPermitted("the directory is sticky"));
    }
    Ok(())
}

/// Fails if the attributes may not be changed in this way.
pub(crate) fn may_change_attributes(
    now: &Attributes,
    change: &AttributeChange,
    by: &Credentials,
) -> Result<()> {
    may_overwrite(now)?;
    if by.privileged {
        return Ok(());
    }
    if !by.owns(now) {
        return Err(Error::NotPermitted("the caller is not the owner"));
    }
    if change.uid.is_some_and(|uid| uid != now.uid) {
        return Err(Error::NotPermitted("only root may change a file's owner"));
    }
    if change.gid.is_some_and(|gid| gid != now.gid && !by.is_in_group(gid)) {
        return Err(Error::NotPermitted("the caller is not in the group"));
    }
    Ok(())
}

/// Fails if the flags may not be changed in this way: only root changes those that restrict root.
pub(crate) fn may_change_flags(now: &Attributes, flags: u32, by: &Credentials) -> Result<()> {
    if by.privileged {
        return Ok(());
    }
    if !by.owns(now) {
        return Err(Error::NotPermitted("the caller is not the owner"));
    }
    match (now.flags ^ flags) & (IMMUTABLE | APPEND_ONLY) {
        0 => Ok(()),
        _ => Err(Error::NotPermitted(
            "only root may make files immutable or append-only, or the reverse",
        )),
    }
}

/// Returns the permissions that remain when a caller, in the file's group (or with CAP_FSETID) or not,
/// changes its contents or owner.
pub(crate) fn without_privileges(kind: FileType, permissions: u16, is_in_group: bool) -> u16 {
    // Setgid without group execute marks files for mandatory locks, which the group's members may keep. On
    // directories it makes the group inherited.
    let is_mark = permissions & GROUP_EXECUTE == 0;
    let setgid = if is_mark && is_in_group { 0 } else { SETGID };
    match kind {
        FileType::Directory => permissions,
        _ => permissions & !SETUID & !setgid,
    }
}

fn forbid(attributes: &Attributes, flags: u32) -> Result<()> {
    match attributes.flags & flags {
        0 => Ok(()),
        found if found & IMMUTABLE != 0 => Err(Error::NotPermitted("the file is immutable")),
        _ => Err(Error::NotPermitted("the file is append-only")),
    }
}
