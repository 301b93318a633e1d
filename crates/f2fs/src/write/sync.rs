//! fsync by the chain of nodes: the changed nodes of a file are written behind each other to the log of warm nodes, where a
//! recovery finds them. Their data is durable before, so they never refer to blocks with other contents.
//! Source: kernel documentation, `filesystems/f2fs.rst`, and the rules of Linux for when fsync(2) writes a checkpoint.

use std::sync::Arc;

use base::attributes::FileType;
use base::{DeviceOffset, Error, FsBlock, InodeNumber, Result};
use zerocopy::FromBytes;

use super::logs::LogName;
use super::writer::{State, Writer};
use crate::edit::{MapShape, OverlayNode, first_block};
use crate::inode::Inode;
use crate::inode::checksum::seal;
use crate::inode::record::advise;
use crate::nat::Nid;
use crate::node::{FLAG_BITS, XATTR_POSITION};
use crate::ondisk::node::{NULL_ADDRESS, RawInode, RawNodeFooter};
use crate::recovery::{ChainVersion, chain_start, mark};
use crate::volume::Volume;

/// The number of nodes in a chain after which a checkpoint is written, so that a recovery takes little time.
const CHAIN_NODES_MAX: u64 = 4096;

/// The chain since the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    /// The number of its nodes.
    nodes: u64,
    /// The block of the next node. `None` before the first one, and after an error.
    next: Option<FsBlock>,
}

impl Writer {
    /// Makes the changes of an inode durable, whose data is on the device: by the chain if a recovery finds them there, and
    /// otherwise by a checkpoint.
    pub(crate) fn sync_inode(&self, volume: &Arc<Volume>, number: InodeNumber) -> Result<()> {
        self.wait_for_delays();
        let mut state = self.lock()?;
        let mut nodes = volume.overlay_or_new().read().unsynced_nodes(number);
        self.make_room(&mut state, volume, nodes.len() as u64)?;
        if volume.overlay_or_new().read().is_empty() {
            return volume.device().flush();
        }
        let inode = volume.inode(number)?;
        if !state.can_chain(volume, &inode, &mut nodes)? {
            return self.write_checkpoint(&mut state, volume, false);
        }
        // The data comes before the nodes that refer to it.
        volume.device().flush()?;
        if nodes.is_empty() {
            return Ok(());
        }
        let written = state.write_chain(volume, &inode, &nodes);
        let durable = written.and_then(|()| volume.device().flush());
        if durable.is_err() {
            // Nodes behind these would not be found.
            state.chain.next = None;
            return durable;
        }
        volume.overlay_or_new().write().set_synced(nodes.iter().map(|(nid, _)| *nid));
        Ok(())
    }
}

impl State {
    /// Returns whether the changed nodes of an inode can be written to the chain. Removes indirect nodes from `nodes`, which
    /// a recovery makes anew.
    fn can_chain(
        &mut self,
        volume: &Volume,
        inode: &Inode,
        nodes: &mut Vec<(Nid, OverlayNode)>,
    ) -> Result<bool> {
        let attributes = inode.attributes();
        let record = inode.record();
        let is_simple = attributes.kind == FileType::Regular
            && attributes.links == 1
            && record.compression.is_none()
            && !volume.overlay_or_new().read().is_unsyncable(inode.number());
        if !is_simple || self.chain.nodes + nodes.len() as u64 > CHAIN_NODES_MAX {
            return Ok(false);
        }
        let expected = match self.chain.next {
            Some(next) => next,
            None if self.chain.nodes == 0 => chain_start(volume),
            None => return Ok(false),
        };
        if self.next_block(volume)? != expected {
            return Ok(false);
        }
        if is_new(volume, inode.number())? {
            let parent = InodeNumber(inode.parent()?.into());
            let keeps_order = {
                let overlay = volume.overlay_or_new().read();
                // Earlier changes of names become durable before later ones.
                overlay.has_only_name_of(inode.number()) && !overlay.is_unsyncable(parent)
            };
            if !keeps_order || is_new(volume, parent)? {
                return Ok(false);
            }
        }
        let nids = volume.geometry().addresses_per_node();
        let shape = MapShape {
            in_inode: record.address_count.into(),
            in_node: record.addresses_per_node.into(),
            nids: nids.into(),
        };
        let (mut direct, mut has_blocks_behind) = (Vec::new(), false);
        for (nid, node) in nodes.drain(..) {
            let position = node.position();
            if position == XATTR_POSITION {
                direct.push((nid, node));
                continue;
            }
            let Some(start) = first_block(position, shape) else { continue };
            let (first_byte, count) = match position {
                0 if record.inline_area.is_some() => (0, 0),
                0 => (record.addresses_at, record.address_count),
                _ => (0, record.addresses_per_node),
            };
            let end = volume.geometry().block_size.blocks_for(attributes.size);
            let buffer = crate::node::Node::new(node.buffer(), nid, node.inode)?;
            let addresses = (start..).zip(buffer.words(first_byte, 0, count));
            has_blocks_behind |=
                addresses.into_iter().any(|(at, address)| at >= end && address != NULL_ADDRESS);
            direct.push((nid, node));
        }
        *nodes = direct;
        // A recovery takes blocks behind the end for data, unless they are there on purpose.
        Ok(!has_blocks_behind || inode.advise()? & advise::KEEP_SIZE != 0)
    }

    /// Returns the block that the next node of the chain gets.
    fn next_block(&mut self, volume: &Volume) -> Result<FsBlock> {
        let Self { logs, space, .. } = self;
        logs.next_block(LogName::WarmNodes, space, volume.geometry())
    }

    /// Writes nodes to the chain. The last one is the inode's own, and makes the others count.
    fn write_chain(
        &mut self,
        volume: &Volume,
        inode: &Inode,
        nodes: &[(Nid, OverlayNode)],
    ) -> Result<()> {
        let geometry = volume.geometry();
        let version = ChainVersion::of(&volume.checkpoint()).value();
        let mut marks = mark::FSYNC;
        if is_new(volume, inode.number())? {
            marks |= mark::DENTRY;
        }
        for (index, (nid, node)) in nodes.iter().enumerate() {
            let is_last = index + 1 == nodes.len();
            let mut bytes = node.contents.to_vec();
            let Self { logs, space, .. } = self;
            let block = logs.allocate(LogName::WarmNodes, 1, 0, space, geometry)?.start;
            let next = logs.next_block(LogName::WarmNodes, space, geometry)?;
            let footer_at = bytes.len() - size_of::<RawNodeFooter>();
            let footer =
                RawNodeFooter::mut_from_bytes(&mut bytes[footer_at..]).expect("of this size");
            let is_own = node.inode.0 == u64::from(nid.0);
            let marks = match (is_last, is_own) {
                (true, true) => marks,
                (true, false) => mark::FSYNC,
                (false, _) => 0,
            };
            footer.flags.set(node.position() << FLAG_BITS | mark::COLD | marks);
            footer.checkpoint_version.set(version);
            // Addresses have 32 bits.
            footer.next_block.set(next.0 as u32);
            if is_own {
                let (raw, _) = RawInode::mut_from_prefix(&mut bytes).expect("a block is larger");
                raw.extent = Default::default();
                seal(&mut bytes, *nid, geometry);
            }
            let offset = DeviceOffset(block.0 << geometry.block_size.shift());
            volume.device().write_at(offset, &bytes)?;
            self.chain.nodes += 1;
            self.chain.next = Some(next);
        }
        Ok(())
    }
}

/// Returns whether the last checkpoint does not have an inode.
fn is_new(volume: &Volume, number: InodeNumber) -> Result<bool> {
    match volume.node_address(crate::edit::nid_of(number)) {
        Ok(_) => Ok(false),
        Err(Error::NotFound) => Ok(true),
        Err(error) => Err(error),
    }
}
