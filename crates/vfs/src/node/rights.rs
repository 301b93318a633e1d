//! Permission checks: ownership, sticky directories, inode flags, and the privileges that changed
//! files lose.
//!
//! Not here: the permission to read, write or search by mode and ACL. For a mount, the kernel
//! checks it. A user of the library has access to the whole image.

use base::attributes::{AttributeChange, Attributes, FileType};
use base::{Error, Result};
use fs::Credentials;

/// The setuid bit.
pub(crate) const SETUID: u16 = 0o4000;
/// The setgid bit.
pub(crate) const SETGID: u16 = 0o2000;
/// The sticky bit.
pub(crate) const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o010;

/// The prefix of extended attributes of users.
const USER_XATTR: &[u8] = b"user.";

/// FS_IMMUTABLE_FL.
const IMMUTABLE: u32 = 0x10;
/// FS_APPEND_FL.
const APPEND_ONLY: u32 = 0x20;
/// FS_PROJINHERIT_FL.
const INHERIT_PROJECT: u32 = 0x2000_0000;

/// The effect of a change of a file's contents on its setuid and setgid bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privileges {
    /// They stay. For callers with CAP_FSETID.
    Keep,
    /// They are cleared. For callers without CAP_FSETID.
    Drop,
    /// They are cleared. For callers of this group without CAP_FSETID: on a file of the group,
    /// setgid stays if the group may not execute the file, when it has no effect.
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

/// Errors: files of this kind have no extended attribute of this name. As in Linux, only files and
/// directories have those of users: the permissions of others do not say who can set them.
pub(crate) fn may_have_xattr(kind: FileType, name: &[u8]) -> Result<()> {
    let has_users = matches!(kind, FileType::Regular | FileType::Directory);
    match name.starts_with(USER_XATTR) && !has_users {
        true => Err(Error::NotPermitted("only files and directories can have user attributes")),
        false => Ok(()),
    }
}

/// Fails if the inode is immutable or append-only.
pub(crate) fn may_overwrite(attributes: &Attributes) -> Result<()> {
    forbid(attributes, IMMUTABLE | APPEND_ONLY)
}

/// Returns whether the inode is append-only.
pub(crate) fn is_append_only(attributes: &Attributes) -> bool {
    attributes.flags & APPEND_ONLY != 0
}

/// Fails if `inode` may not get a name in `directory`, whose inodes have one project.
pub(crate) fn may_enter(directory: &Attributes, inode: &Attributes) -> Result<()> {
    let is_same = directory.project.unwrap_or(0) == inode.project.unwrap_or(0);
    if directory.flags & INHERIT_PROJECT != 0 && !is_same {
        return Err(Error::OtherProject);
    }
    Ok(())
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

/// Fails if the caller may not set these flags: only root may change flags that restrict root.
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

/// Returns the permissions that remain when a caller changes a file's contents or owner.
/// `is_in_group` is whether the caller is in the file's group or has CAP_FSETID.
pub(crate) fn without_privileges(kind: FileType, permissions: u16, is_in_group: bool) -> u16 {
    // Without group execute, setgid is the mark for mandatory locks, which the group's members may
    // keep. On directories, it means that new files inherit the group.
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
