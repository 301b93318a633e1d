//! Extended attributes of an inode: the list in the inode, which goes on in a node of its own.
//! Not here: the list's entries (`xattr`).

use base::{Location, Result};
use fs::xattr::NameIndex;

use super::Inode;
use crate::node::XATTR_POSITION;
use crate::ondisk::node::RawNodeFooter;
use crate::xattr;
use crate::xattr::entries::Entries;

/// The attribute whose value is the inode's advice flags. It is not stored, and not listed, as in
/// Linux.
pub(crate) const ADVISE: &[u8] = b"system.advise";

impl Inode {
    /// Returns the names of the extended attributes with their prefixes, such as `user.mime_type`.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        xattr::list(&self.xattr_bytes()?, Location::inode(self.number()))
    }

    /// Returns the value of an extended attribute. POSIX ACLs have the form of getxattr(2). Errors:
    /// `NoAttribute` if there is no attribute of this name.
    pub fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if name == ADVISE {
            return Ok(vec![self.advise()?]);
        }
        xattr::get(&self.xattr_bytes()?, name, Location::inode(self.number()))
    }

    /// Returns the value of the extended attribute with this stored name, in its stored form.
    pub(super) fn stored_xattr(&self, index: NameIndex, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let bytes = self.xattr_bytes()?;
        let entries = Entries::parse(&bytes, Location::inode(self.number()))?;
        Ok(entries.find(index, name).map(|entry| entry.value.to_vec()))
    }

    /// Returns the bytes of the list of extended attributes.
    pub(crate) fn xattr_bytes(&self) -> Result<Vec<u8>> {
        let record = self.record();
        let mut bytes = Vec::new();
        if !record.inline_xattrs.is_empty() {
            let node = self.volume().inode_node(self.number())?;
            bytes.extend(node.bytes().get(record.inline_xattrs.clone()).unwrap_or_default());
        }
        if let Some(nid) = record.xattr_node {
            let node = self.volume().node(nid, self.number())?.at_position(XATTR_POSITION)?;
            let length = node.bytes().len() - size_of::<RawNodeFooter>();
            bytes.extend(&node.bytes()[..length]);
        }
        Ok(bytes)
    }
}
