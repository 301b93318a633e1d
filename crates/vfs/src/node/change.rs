//! Changes of attributes and extended attributes, with their side effects on ACLs, the mode, and
//! privileges.

use base::attributes::{AttributeChange, Attributes, FileType, Timestamp, XattrMode};
use base::{Error, Result};
use fs::Credentials;
use fs::acl::{self, Acl};
use fs::xattr::CAPABILITIES;

use crate::node::rights::{self, Privileges, SETGID, without_privileges};
use crate::node::{Node, NodeState};
use crate::volume::clock::now;

/// The maximum length of an extended attribute's value in Linux, in bytes.
const XATTR_BYTES_MAX: usize = 65_536;

/// Fails if there are times with a second or more of nanoseconds.
fn check_times<const N: usize>(times: [Option<Timestamp>; N]) -> Result<()> {
    if times.iter().flatten().any(|time| time.nanoseconds >= 1_000_000_000) {
        return Err(Error::InvalidArgument("a time has 999,999,999 nanoseconds at most"));
    }
    Ok(())
}

impl Node {
    /// Changes attributes. The change time is now, unless `change` has one. A time outside the
    /// format's range becomes the nearest time in it, as in the kernel.
    pub fn set_attributes(&self, change: &AttributeChange, by: &Credentials) -> Result<()> {
        self.check_writable()?;
        check_times([change.accessed, change.modified, change.changed])?;
        let mut state = self.lock();
        let attributes = self.attributes();
        rights::may_change_attributes(&attributes, change, by)?;
        let mut change = *change;
        change.changed = change.changed.or_else(|| Some(now()));
        if let Some(permissions) = &mut change.permissions {
            *permissions &= 0o7777;
            if !by.may_set_gid_bit(change.gid.unwrap_or(attributes.gid)) {
                *permissions &= !SETGID;
            }
        }
        let changes_owner = change.uid.is_some() || change.gid.is_some();
        if changes_owner && self.kind() != FileType::Directory {
            self.drop_capability(&mut state)?;
            let is_in_group = by.keeps_mark_of(attributes.gid);
            let left = without_privileges(self.kind(), attributes.permissions, is_in_group);
            change.permissions = change.permissions.or(Some(left));
        }
        state.is_plain &= change.permissions.is_none();
        match change.permissions {
            Some(permissions) if permissions & 0o777 != attributes.permissions & 0o777 => {
                self.change_mode(permissions, &change)
            }
            _ => self.inode().set_attributes(&change),
        }
    }

    /// Sets the times of data that a kernel has collected before it passed it on. As such data,
    /// they are accepted for immutable and append-only files.
    pub fn set_times_from_cache(
        &self,
        modified: Timestamp,
        changed: Option<Timestamp>,
    ) -> Result<()> {
        self.check_writable()?;
        check_times([Some(modified), changed])?;
        let _lock = self.lock();
        self.inode().set_attributes(&AttributeChange {
            modified: Some(modified),
            changed: changed.or_else(|| Some(now())),
            ..AttributeChange::default()
        })
    }

    /// Sets the times of access and modification to now. This is allowed on append-only files,
    /// unlike setting other times.
    pub fn touch(&self) -> Result<()> {
        self.check_writable()?;
        let _lock = self.lock();
        rights::may_change(&self.attributes())?;
        let now = Some(now());
        let change = AttributeChange {
            accessed: now,
            modified: now,
            changed: now,
            ..AttributeChange::default()
        };
        self.inode().set_attributes(&change)
    }

    /// Sets the flags of FS_IOC_SETFLAGS. Bits of `flags` that users may not change are ignored.
    pub fn set_flags(&self, flags: u32, by: &Credentials) -> Result<()> {
        self.check_writable()?;
        let _lock = self.lock();
        rights::may_change_flags(&self.attributes(), flags, by)?;
        self.inode().set_flags(flags, now())?;
        self.refit_clusters()
    }

    /// Sets the project id. New inodes in a directory with FS_PROJINHERIT_FL take it over.
    ///
    /// Errors: `NotPermitted` unless the caller owns the inode, `Unsupported` if the volume or the
    /// inode has no project ids.
    pub fn set_project(&self, project: u32, by: &Credentials) -> Result<()> {
        self.check_writable()?;
        let _lock = self.lock();
        let attributes = self.attributes();
        rights::may_change_flags(&attributes, attributes.flags, by)?;
        self.inode().set_project(project, now())
    }

    /// Changes the mode with all of `change`, and updates the ACL.
    fn change_mode(&self, permissions: u16, change: &AttributeChange) -> Result<()> {
        if self.kind() == FileType::Symlink {
            return self.inode().set_attributes(change);
        }
        let acl = match self.inode().get_xattr(acl::ACCESS) {
            Err(Error::NoAttribute) => None,
            value => Acl::parse(&value?)?,
        };
        let Some(mut acl) = acl else { return self.inode().set_attributes(change) };
        acl.set_mode(permissions);
        self.inode().set_xattr(acl::ACCESS, &acl.to_value(), XattrMode::Either, change)
    }

    /// Sets an extended attribute, named with its prefix. A POSIX ACL sets the mode too, and clears
    /// the setgid bit unless [`Privileges::Keep`] is given.
    ///
    /// Errors: also `InvalidArgument` for what setxattr(2) refuses on all file systems
    /// ([`fs::xattr::check_settable`]).
    pub fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        privileges: Privileges,
    ) -> Result<()> {
        fs::xattr::check_settable(name, value)?;
        self.check_writable()?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(Error::InvalidArgument("the attribute's value is too large"));
        }
        let mut state = self.lock();
        let attributes = self.attributes();
        rights::may_overwrite(&attributes)?;
        rights::may_have_xattr(self.kind(), name)?;
        let mut change = AttributeChange { changed: Some(now()), ..AttributeChange::default() };
        match name {
            acl::ACCESS => {
                let permissions = match self.acl(value)? {
                    None => return self.remove_if_exists(name, &change),
                    Some(acl) if acl.is_mode() => {
                        change.permissions = Some(acl.apply_to(attributes.permissions));
                        self.clear_set_gid(&mut change, privileges);
                        return self.replace_acl_by_mode(&change);
                    }
                    Some(acl) => acl.apply_to(attributes.permissions),
                };
                change.permissions = Some(permissions);
                self.clear_set_gid(&mut change, privileges);
            }
            acl::DEFAULT if self.kind() != FileType::Directory => {
                return Err(Error::NotPermitted("only directories can have a default ACL"));
            }
            acl::DEFAULT if self.acl(value)?.is_none() => {
                return self.remove_if_exists(name, &change);
            }
            CAPABILITIES => state.is_plain = false,
            _ => {}
        }
        self.inode().set_xattr(name, value, mode, &change)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        let _lock = self.lock();
        rights::may_overwrite(&self.attributes())?;
        let change = AttributeChange { changed: Some(now()), ..AttributeChange::default() };
        self.inode().remove_xattr(name, &change)
    }

    /// Makes the inode durable. With `data_only`, makes attributes durable only if reading the data
    /// needs them.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        self.sync_with(0..u64::MAX, data_only, None)
    }

    /// Removes the privileges of a file that a change of its contents clears. The caller holds the
    /// lock.
    pub(crate) fn drop_privileges(
        &self,
        state: &mut NodeState,
        privileges: Privileges,
    ) -> Result<()> {
        if state.is_plain {
            return Ok(());
        }
        self.drop_capability(state)?;
        let Attributes { permissions, gid, .. } = self.attributes();
        let left = match privileges {
            Privileges::Keep => permissions,
            _ => without_privileges(self.kind(), permissions, privileges.is_in_group(gid)),
        };
        if left != permissions {
            self.inode().set_attributes(&AttributeChange {
                permissions: Some(left),
                changed: Some(now()),
                ..AttributeChange::default()
            })?;
        }
        // If bits are left, the next caller may have no right to keep them.
        state.is_plain = left == without_privileges(self.kind(), left, false);
        Ok(())
    }

    fn drop_capability(&self, state: &mut NodeState) -> Result<()> {
        if state.is_plain {
            return Ok(());
        }
        let change = AttributeChange { changed: Some(now()), ..AttributeChange::default() };
        match self.inode().get_xattr(CAPABILITIES) {
            Ok(_) => self.inode().remove_xattr(CAPABILITIES, &change),
            Err(Error::NoAttribute) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn acl(&self, value: &[u8]) -> Result<Option<Acl>> {
        if self.kind() == FileType::Symlink {
            return Err(Error::NotPermitted("symbolic links cannot have an ACL"));
        }
        Acl::parse(value)
    }

    fn clear_set_gid(&self, change: &mut AttributeChange, privileges: Privileges) {
        if privileges == Privileges::Keep {
            return;
        }
        if let Some(permissions) = &mut change.permissions {
            *permissions &= !SETGID;
        }
    }

    /// Removes the ACL and sets the mode, which expresses all of the ACL.
    fn replace_acl_by_mode(&self, change: &AttributeChange) -> Result<()> {
        match self.inode().remove_xattr(acl::ACCESS, change) {
            Err(Error::NoAttribute) => self.inode().set_attributes(change),
            done => done,
        }
    }

    fn remove_if_exists(&self, name: &[u8], change: &AttributeChange) -> Result<()> {
        match self.inode().remove_xattr(name, change) {
            Err(Error::NoAttribute) => Ok(()),
            done => done,
        }
    }

    fn check_writable(&self) -> Result<()> {
        if self.volume().is_writable { self.volume().mark_in_use() } else { Err(Error::ReadOnly) }
    }
}
