//! Which blocks of data changed their use since the last checkpoint: the addresses in changed nodes, compared with those
//! in the same nodes of the checkpoint.

use std::collections::BTreeMap;

use base::{Error, FsBlock, Location, Result};

use crate::edit::{Change, MapShape, Owner, first_block};
use crate::inode::record::InodeRecord;
use crate::nat::Nid;
use crate::node::{Node, XATTR_POSITION};
use crate::volume::Volume;

/// The changes of the use of data blocks.
#[derive(Debug, Default)]
pub(super) struct AddressChanges {
    /// Blocks that no address refers to any more.
    pub(super) removed: Vec<FsBlock>,
    /// Blocks that the checkpoint does not use.
    pub(super) added: BTreeMap<FsBlock, Owner>,
    /// Blocks of the checkpoint that other addresses refer to.
    pub(super) moved: BTreeMap<FsBlock, Owner>,
}

impl AddressChanges {
    /// Compares `nodes`, which the overlay has, with the checkpoint.
    pub(super) fn find(volume: &Volume, nodes: &[(Nid, Change)]) -> Result<Self> {
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        for (nid, change) in nodes {
            if let Some(node) = checkpointed_node(volume, *nid)? {
                collect(volume, &node, &mut before)?;
            }
            if let Change::Contents(node) = change {
                let node = Node::new(node.buffer(), *nid, node.inode)?;
                collect(volume, &node, &mut after)?;
            }
        }
        let mut changes = Self::default();
        for (block, owner) in after {
            match before.remove(&block) {
                None => drop(changes.added.insert(block, owner)),
                Some(old) if old != owner => drop(changes.moved.insert(block, owner)),
                Some(_) => {}
            }
        }
        changes.removed = before.into_keys().collect();
        Ok(changes)
    }
}

/// Returns a node of the checkpoint. `None` if its number was free.
fn checkpointed_node(volume: &Volume, nid: Nid) -> Result<Option<Node>> {
    let address = match volume.node_address(nid) {
        Err(Error::NotFound) => return Ok(None),
        address => address?,
    };
    let location = Location::inode(address.inode);
    let buffer = volume.metadata().read(address.block, "node", location)?;
    Node::new(buffer, nid, address.inode).map(Some)
}

/// Adds the data blocks that a node refers to.
fn collect(volume: &Volume, node: &Node, blocks: &mut BTreeMap<FsBlock, Owner>) -> Result<()> {
    let geometry = volume.geometry();
    let nids = geometry.addresses_per_node();
    let (start, count) = if node.inode.0 == u64::from(node.nid.0) {
        let record = InodeRecord::parse_without_checksum(node, geometry)?;
        let has_addresses = record.inline_area.is_none() && record.has_map();
        (record.addresses_at, if has_addresses { record.address_count } else { 0 })
    } else {
        let shape = MapShape { in_inode: 0, in_node: 1, nids: nids.into() };
        let position = node.position()?;
        let is_direct = position != XATTR_POSITION && first_block(position, shape).is_some();
        (0, if is_direct { nids } else { 0 })
    };
    for (index, address) in (0..).zip(node.words(start, 0, count)) {
        let block = FsBlock(address.into());
        if geometry.main.contains(&block) {
            blocks.insert(block, Owner { nid: node.nid, index });
        }
    }
    Ok(())
}
