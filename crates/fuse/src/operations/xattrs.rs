//! GETXATTR and LISTXATTR.

use std::borrow::Cow;

use rustix::io::Errno;

use crate::owners::NO_ID;
use crate::protocol::{GetXattrIn, GetXattrOut, InHeader};
use crate::reply::{Answer, Outcome, Reply};
use crate::request;
use crate::server::Server;

/// The namespace that only the superuser sees.
const TRUSTED: &[u8] = b"trusted.";
/// The supported namespaces. Names in other namespaces are refused, not reported as missing.
const NAMESPACES: [&[u8]; 4] = [b"user.", TRUSTED, b"security.", b"system.posix_acl_"];

/// The attribute with the advice flags of an inode of f2fs.
pub(super) const F2FS_ADVISE: &[u8] = b"system.advise";

impl Server {
    /// GETXATTR.
    pub(crate) fn get_xattr(
        &self,
        header: &InHeader,
        operation: &GetXattrIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let name = request::name(rest)?;
        self.check_namespace(name)?;
        let value = self.known(header.node)?.node.get_xattr(name)?;
        let value = self.options.owners.shown_value(name, Cow::Owned(value));
        answer(&value, operation.size, reply)
    }

    /// LISTXATTR: names, each with a NUL at its end.
    pub(crate) fn list_xattr(
        &self,
        header: &InHeader,
        operation: &GetXattrIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let mut list = Vec::new();
        for name in self.known(header.node)?.node.list_xattrs()? {
            // A caller without an id may be root. A superfluous name does less harm than an
            // attribute that is lost in a copy.
            if matches!(header.uid, 0 | NO_ID) || !name.starts_with(TRUSTED) {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        answer(&list, operation.size, reply)
    }

    /// Fails with EOPNOTSUPP for names outside of the supported namespaces.
    pub(super) fn check_namespace(&self, name: &[u8]) -> Result<(), Errno> {
        let is_advise = name == F2FS_ADVISE && self.volume().feature_bits().is_some();
        if is_advise || NAMESPACES.iter().any(|namespace| name.starts_with(namespace)) {
            Ok(())
        } else {
            Err(Errno::OPNOTSUPP)
        }
    }
}

/// Answers with the value, or with its size if the caller's room, `size`, is zero. Fails with
/// ERANGE if the value does not fit.
fn answer(value: &[u8], size: u32, reply: &mut Reply<'_>) -> Outcome {
    if size == 0 {
        let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
        reply.push(&GetXattrOut { size, padding: 0 })?;
    } else {
        reply.limit(size as usize);
        reply.push_bytes(value)?;
    }
    Ok(Answer::Payload)
}
