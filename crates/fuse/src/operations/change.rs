//! SETATTR, SETXATTR and REMOVEXATTR. The kernel has checked the caller's permission.

use base::attributes::{AttributeChange, Timestamp};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use vfs::{Privileges, XattrMode};
use zerocopy::FromBytes;

use super::xattrs::F2FS_ADVISE;
use crate::protocol::{
    FATTR_ATIME, FATTR_ATIME_NOW, FATTR_CTIME, FATTR_FH, FATTR_GID, FATTR_KILL_SUIDGID, FATTR_MODE,
    FATTR_MTIME, FATTR_MTIME_NOW, FATTR_SIZE, FATTR_UID, InHeader, InitFlags,
    SETXATTR_ACL_KILL_SGID, SetAttrIn, SetXattrIn, SetXattrInExtension,
};
use crate::reply::{Answer, Outcome, Reply};
use crate::request;
use crate::server::Server;

impl Server {
    /// SETATTR. The answer has the form of GETATTR's.
    pub(crate) fn set_attr(
        &self,
        header: &InHeader,
        operation: &SetAttrIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let node = &self.known(header.node)?.node;
        let mut change = self.attribute_change(operation)?;
        if operation.valid & FATTR_SIZE != 0 {
            let kill = operation.valid & FATTR_KILL_SUIDGID != 0;
            node.set_size(operation.size, self.privileges(header, kill))?;
        }
        if operation.valid & !FATTR_CTIME == 0 {
            // This remains of a chown that names neither an owner nor a group. It clears setuid and
            // setgid all the same.
            change.uid = Some(node.attributes().uid);
        }
        let from_cache = change.modified.filter(|_| self.is_from_cache(operation));
        if let Some(modified) = from_cache {
            node.set_times_from_cache(modified, change.changed)?;
        } else if is_touch(operation) {
            node.touch()?;
        } else if change != AttributeChange::default() {
            let by = self.options.owners.credentials(header);
            node.set_attributes(&change, &by)?;
        }
        reply.push(&self.attr_out(&node.attributes()))?;
        Ok(Answer::Payload)
    }

    /// SETXATTR: the name and the value follow.
    pub(crate) fn set_xattr(
        &self,
        header: &InHeader,
        operation: &SetXattrIn,
        rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        let (extra_flags, rest) = if self.agreed_on(InitFlags::SETXATTR_EXT) {
            let (extension, rest) =
                SetXattrInExtension::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
            (extension.extra_flags, rest)
        } else {
            (0, rest)
        };
        let end = rest.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
        let name = &rest[..end];
        self.check_namespace(name)?;
        let value = &rest[end + 1..];
        let value = value.get(..operation.size as usize).ok_or(Errno::INVAL)?;
        let flags = XattrFlags::from_bits(operation.flags).ok_or(Errno::INVAL)?;
        let mode = match (flags.contains(XattrFlags::CREATE), flags.contains(XattrFlags::REPLACE)) {
            (false, false) => XattrMode::Either,
            (true, false) => XattrMode::Create,
            (false, true) => XattrMode::Replace,
            (true, true) => return Err(Errno::INVAL.into()),
        };
        let privileges = self.privileges(header, extra_flags & SETXATTR_ACL_KILL_SGID != 0);
        let node = &self.known(header.node)?.node;
        // For other names, the kernel has checked the permission.
        if name == F2FS_ADVISE && !self.is_owner(header, node) {
            return Err(Errno::PERM.into());
        }
        let old = || node.get_xattr(name).ok();
        let value = self.options.owners.stored_value(name, value, old)?;
        node.set_xattr(name, &value, mode, privileges)?;
        Ok(Answer::Payload)
    }

    /// REMOVEXATTR.
    pub(crate) fn remove_xattr(
        &self,
        header: &InHeader,
        (): &(),
        rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        let name = request::name(rest)?;
        self.check_namespace(name)?;
        self.known(header.node)?.node.remove_xattr(name)?;
        Ok(Answer::Payload)
    }

    /// Returns the effect on setuid and setgid that the kernel requests. The kernel passes only the
    /// caller's primary group.
    pub(super) fn privileges(&self, header: &InHeader, kill: bool) -> Privileges {
        if kill {
            Privileges::DropFor(self.options.owners.credentials(header).gid)
        } else {
            Privileges::Keep
        }
    }

    /// Returns whether the kernel writes the times of data that it has collected, with fsync(2), at
    /// close(2), or in the background. Programs do not set times through open files in this way.
    fn is_from_cache(&self, operation: &SetAttrIn) -> bool {
        let times = FATTR_MTIME | FATTR_CTIME | FATTR_FH;
        self.agreed_on(InitFlags::WRITEBACK_CACHE)
            && operation.valid & FATTR_FH != 0
            && operation.valid & !times == 0
    }

    /// Returns the attributes to change, with owners translated to those of the image.
    fn attribute_change(&self, operation: &SetAttrIn) -> Result<AttributeChange, Errno> {
        let has = |flag| operation.valid & flag != 0;
        let time = |flag, seconds: u64, nanoseconds: u32| {
            if !has(flag) {
                Ok(None)
            } else if nanoseconds >= 1_000_000_000 {
                Err(Errno::INVAL)
            } else {
                Ok(Some(Timestamp { seconds: seconds as i64, nanoseconds }))
            }
        };
        let now = vfs::now();
        let owners = &self.options.owners;
        let accessed = time(FATTR_ATIME, operation.accessed, operation.accessed_nanoseconds)?;
        let modified = time(FATTR_MTIME, operation.modified, operation.modified_nanoseconds)?;
        Ok(AttributeChange {
            permissions: has(FATTR_MODE).then_some((operation.mode & 0o7777) as u16),
            uid: has(FATTR_UID).then(|| owners.user(operation.uid)).transpose()?,
            gid: has(FATTR_GID).then(|| owners.group(operation.gid)).transpose()?,
            accessed: if has(FATTR_ATIME_NOW) { Some(now) } else { accessed },
            modified: if has(FATTR_MTIME_NOW) { Some(now) } else { modified },
            changed: time(FATTR_CTIME, operation.changed, operation.changed_nanoseconds)?,
        })
    }
}

/// Returns whether the only change is to set both times to now.
fn is_touch(operation: &SetAttrIn) -> bool {
    let now = FATTR_ATIME_NOW | FATTR_MTIME_NOW;
    let other = FATTR_MODE | FATTR_UID | FATTR_GID | FATTR_CTIME;
    operation.valid & now == now && operation.valid & other == 0
}
