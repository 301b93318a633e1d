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
            let old = match checkpointed_node(volume, *nid)? {
                Some(node) => addresses(volume, &node)?,
                None => Vec::new(),
            };
            let new = match change {
                Change::Contents(node) => {
                    addresses(volume, &Node::new(node.buffer(), *nid, node.inode)?)?
                }
                Change::Freed => Vec::new(),
            };
            // Most addresses are the same.
            for index in 0..old.len().max(new.len()) {
                let (old, new) = (old.get(index), new.get(index));
                if old == new {
                    continue;
                }
                // A node has about a thousand addresses.
                let owner = Owner { nid: *nid, index: index as u16 };
                for (address, blocks) in [(old, &mut before), (new, &mut after)] {
                    let block = address.map(|address| FsBlock(u64::from(*address)));
                    if let Some(block) =
                        block.filter(|block| volume.geometry().main.contains(block))
                    {
                        blocks.insert(block, owner);
                    }
                }
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

/// Returns the addresses of data in a node.
fn addresses(volume: &Volume, node: &Node) -> Result<Vec<u32>> {
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
    Ok(node.words(start, 0, count).collect())
}
