//! Deletion of inodes without names, and of all data of a file.

use base::{InodeNumber, Result};

use super::nodes::{Editor, Slot, nid_of};
use crate::geometry::WORD_BYTES;
use crate::inode::Inode;
use crate::nat::Nid;
use crate::node::XATTR_POSITION;
use crate::ondisk::node::INODE_NIDS;

/// Deletes an inode without a name, and all its nodes.
pub(crate) fn delete_inode(editor: &Editor<'_>, inode: &Inode) -> Result<()> {
    let mut blocks = 0;
    let data = free_nodes(editor, inode, &mut blocks);
    let xattrs = free_xattr_node(editor, inode, &mut blocks);
    let record = inode.record();
    let (start, count) = record.own_addresses();
    if count > 0 {
        let node = editor.volume.inode_node(inode.number())?;
        let addresses = node.words(start, 0, count);
        blocks += record.counted(addresses, &editor.volume.geometry().main);
    }
    editor.free_node(nid_of(inode.number()))?;
    editor.count_inodes(-1);
    editor.count_blocks_of_deleted(-blocks - 1);
    data.and(xattrs)
}

/// Frees the nodes of a file's map. Adds them and the data blocks that they refer to to `blocks`.
fn free_nodes(editor: &Editor<'_>, inode: &Inode, blocks: &mut i64) -> Result<()> {
    if !inode.record().has_map() {
        return Ok(());
    }
    editor.for_each_node(inode, &mut |node, kind| {
        editor.free_map_node(inode.record(), (node, kind), blocks)
    })
}

fn free_xattr_node(editor: &Editor<'_>, inode: &Inode, blocks: &mut i64) -> Result<()> {
    let Some(nid) = inode.record().xattr_node else { return Ok(()) };
    editor.volume.node(nid, inode.number())?.at_position(XATTR_POSITION)?;
    *blocks += 1;
    editor.free_node(nid)
}

/// Frees all data of a file, but not its extended attributes.
pub(crate) fn free_data(editor: &Editor<'_>, inode: &Inode) -> Result<()> {
    let mut blocks = 0;
    free_nodes(editor, inode, &mut blocks)?;
    let (number, record) = (inode.number(), inode.record());
    editor.count_blocks(number, -blocks)?;
    for index in 0..record.address_count {
        let byte = record.addresses_at + index as usize * WORD_BYTES;
        editor.free_slot(Slot { inode: number, nid: nid_of(number), index, byte })?;
    }
    let nodes_at = record.nodes_at;
    editor.edit_node(nid_of(number), number, |bytes| {
        if let Some(nids) = bytes.get_mut(nodes_at..nodes_at + INODE_NIDS * WORD_BYTES) {
            nids.fill(0);
        }
    })
}

impl Editor<'_> {
    /// Frees the node with a file's extended attributes, if it has one.
    pub(crate) fn free_xattrs(&self, inode: &Inode) -> Result<()> {
        // A recovery would leave the node.
        self.overlay.write().set_unsyncable(inode.number());
        let mut blocks = 0;
        free_xattr_node(self, inode, &mut blocks)?;
        self.count_blocks(inode.number(), -blocks)
    }

    /// Adds a node for a file's extended attributes.
    pub(crate) fn new_xattr_node(&mut self, inode: InodeNumber) -> Result<Nid> {
        let nid = self.new_node(inode, XATTR_POSITION)?;
        self.edit_inode(inode, |raw| raw.xattr_nid.set(nid.0))?;
        Ok(nid)
    }
}
