//! Which blocks of data changed their use since the last checkpoint: the addresses in changed
//! nodes, compared with those in the same nodes of the checkpoint.

use base::{Error, FsBlock, InodeNumber, Location, Result};

use crate::core::Core;
use crate::edit::has_addresses;
use crate::inode::record::InodeRecord;
use crate::nat::Nid;
use crate::node::{Node, footer};
use crate::overlay::{Change, Owner};
use crate::write::segments::block_set::BlockSet;

/// The changes of the use of data blocks.
#[derive(Debug, Default)]
pub(crate) struct AddressChanges {
    /// Blocks of the checkpoint that no address refers to any more.
    pub(crate) removed: BlockSet,
    /// The number of removed addresses of blocks that the checkpoint does not use, in damaged
    /// files.
    pub(crate) unused: u32,
    /// Blocks that the checkpoint does not use, in order.
    pub(crate) added: Vec<(FsBlock, Owner)>,
    /// Blocks of the checkpoint that other addresses refer to, in order.
    pub(crate) moved: Vec<(FsBlock, Owner)>,
}

impl AddressChanges {
    /// Compares `nodes`, which the overlay has, with the checkpoint. `is_used` returns whether the
    /// checkpoint uses a block of the main area.
    pub(crate) fn find(
        volume: &Core,
        nodes: &[(Nid, Change)],
        is_used: impl Fn(FsBlock) -> bool,
    ) -> Result<Self> {
        let (mut before, mut after, mut unused) = (BlockSet::default(), Vec::new(), 0);
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
                let in_main = |address: &u32| {
                    let block = FsBlock(u64::from(*address));
                    volume.geometry().main.contains(&block).then_some(block)
                };
                match old.and_then(in_main) {
                    Some(block) if is_used(block) => before.insert(block),
                    // The block may be a new one of another file.
                    Some(_) => unused += 1,
                    None => {}
                }
                if let Some(block) = new.and_then(in_main) {
                    // A node has about a thousand addresses.
                    after.push((block, Owner { nid: *nid, index: index as u16 }));
                }
            }
        }
        after.sort_unstable_by_key(|(block, owner): &(FsBlock, Owner)| {
            (*block, owner.nid.0, owner.index)
        });
        after.dedup_by_key(|(block, _)| *block);
        // What is the same at its place was left out, so a block that was there before has another
        // owner now.
        let (moved, added) = after.into_iter().partition(|(block, _)| before.remove(*block));
        Ok(Self { removed: before, unused, added, moved })
    }
}

/// Returns a node of the checkpoint. `None` if its number was free.
pub(crate) fn checkpointed_node(volume: &Core, nid: Nid) -> Result<Option<Node>> {
    let address = match volume.node_address(nid) {
        Err(Error::NotFound) => return Ok(None),
        address => address?,
    };
    let location = Location::inode(address.inode);
    let buffer = volume.metadata().read(address.block, "node", location)?;
    // That of the table may be wrong. The change was made to a node of this inode, and mends the
    // table.
    let inode = InodeNumber(footer(&buffer, location)?.inode.get().into());
    Node::new(buffer, nid, inode).map(Some)
}

/// Returns the addresses of data in a node.
fn addresses(volume: &Core, node: &Node) -> Result<Vec<u32>> {
    let (start, count) = place_of_addresses(volume, node)?;
    Ok(node.words(start, 0, count).collect())
}

/// Returns the address of data at `index` in a node. `None` if it has not so many.
pub(crate) fn address_at(volume: &Core, node: &Node, index: u32) -> Result<Option<u32>> {
    let (start, count) = place_of_addresses(volume, node)?;
    Ok((index < count).then(|| node.words(start, index, 1).next()).flatten())
}

/// Returns the byte of the first address of data in a node, and the number of addresses.
fn place_of_addresses(volume: &Core, node: &Node) -> Result<(usize, u32)> {
    let geometry = volume.geometry();
    if node.inode.0 == u64::from(node.nid.0) {
        return Ok(InodeRecord::parse_without_checksum(node, geometry)?.own_addresses());
    }
    let is_direct = has_addresses(node.position()?, geometry);
    Ok((0, if is_direct { geometry.addresses_per_node() } else { 0 }))
}
