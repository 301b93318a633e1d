//! The check of extended attributes: the node that has some of them, and the bounds of their list.

use base::Location;

use super::Check;
use super::inodes::File;
use crate::node::{Node, XATTR_POSITION};
use crate::ondisk::node::RawNodeFooter;
use crate::xattr::entries::Entries;

impl Check<'_> {
    pub(super) fn check_xattrs(&mut self, file: &mut File<'_>, inode: &Node) {
        let area = file.record.inline_xattrs.clone();
        let mut bytes = inode.bytes().get(area).unwrap_or_default().to_vec();
        let location = Location::inode(file.number());
        if let Some(nid) = file.record.xattr_node {
            let read = self.claim_node(nid.0, file.number(), XATTR_POSITION, file.location());
            // Without its end, the list cannot be checked.
            let Some(read) = read else { return };
            file.blocks += 1;
            let length = read.node.bytes().len().saturating_sub(size_of::<RawNodeFooter>());
            bytes.extend(read.node.bytes().get(..length).unwrap_or_default());
        }
        self.report.ok(Entries::parse(&bytes, location));
    }
}
