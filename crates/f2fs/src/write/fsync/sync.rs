//! fsync by the chain of nodes: the changed nodes of files are written behind each other to the log
//! of warm nodes, where a recovery (roll-forward) finds them. Their data is durable before, so they
//! never refer to blocks with other contents. Not here: which callers share their flushes
//! (`group`). Source: kernel documentation, `filesystems/f2fs.rst`, and the rules of Linux for when
//! fsync(2) writes a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::attributes::FileType;
use base::view::view_at;
use base::{Error, FsBlock, InodeNumber, Result};

use super::group::Request;
use super::reason::CheckpointReason;
use crate::core::Core;
use crate::dir::WantedName;
use crate::edit::{MapShape, first_block};
use crate::inode::Inode;
use crate::nat::Nid;
use crate::node::XATTR_POSITION;
use crate::ondisk::node::{NULL_ADDRESS, RawInode, advise};
use crate::overlay::OverlayNode;
use crate::recovery::{self, ChainVersion, chain_start, mark};
use crate::write::allocate::logs::{Limits, LogName};
use crate::write::allocate::room::Demand;
use crate::write::checkpoint::batch::runs;
use crate::write::checkpoint::stored_node::{Link, stored_node};
use crate::write::writer::{FailOnPanic, Writer, WriterState};

/// The number of nodes in a chain after which a checkpoint is written, so that a recovery takes
/// little time.
const CHAIN_NODES_MAX: u64 = 4096;

/// How changes become durable.
enum Way<T> {
    /// A recovery finds them in a chain of these nodes.
    Chain(T),
    /// By a checkpoint.
    Checkpoint(CheckpointReason),
}

/// The changed nodes of an inode, in the order in which they are written.
struct Changed {
    nodes: Vec<(Nid, OverlayNode)>,
    /// The mark of the inode's own node, if it is new.
    name_mark: u32,
}

impl Writer {
    /// Makes the changes of an inode durable, whose data is on the device: by the chain if a
    /// recovery finds them there, and otherwise by a checkpoint.
    pub(crate) fn sync_inode(&self, volume: &Arc<Core>, number: InodeNumber) -> Result<()> {
        self.wait_for_delays()?;
        self.syncs().sync(number, |requests| self.sync_group(volume, requests))
    }

    /// Makes the changes of a group of inodes durable, and ends the group's requests.
    fn sync_group(&self, volume: &Arc<Core>, requests: &[Arc<Request>]) {
        let mut failed = BTreeMap::new();
        let inodes = requests.iter().map(|request| request.inode).collect();
        let result = self.sync_inodes(volume, &inodes, &mut failed);
        for request in requests {
            let own = failed.get(&request.inode).cloned();
            request.end(own.map_or_else(|| result.clone(), Err));
        }
    }

    /// Makes the changes of `inodes` durable, except of those that it adds to `failed`.
    fn sync_inodes(
        &self,
        volume: &Arc<Core>,
        inodes: &BTreeSet<InodeNumber>,
        failed: &mut BTreeMap<InodeNumber, Error>,
    ) -> Result<()> {
        let mut state = self.lock_to_sync()?;
        let _failing = FailOnPanic(self);
        let count: usize = {
            let overlay = volume.overlay_or_new().read();
            inodes.iter().map(|inode| overlay.unsynced_nodes(*inode).len()).sum()
        };
        match self.make_room(&mut state, volume, Demand::Changes(count as u64)) {
            Err(Error::NoSpace) => {
                return self.checkpoint_to_sync(&mut state, volume, CheckpointReason::NoRoom);
            }
            made => made?,
        }
        let changed = match state.changed_of(volume, inodes, failed)? {
            Way::Chain(changed) => changed,
            Way::Checkpoint(reason) => return self.checkpoint_to_sync(&mut state, volume, reason),
        };
        if changed.iter().all(|changed| changed.nodes.is_empty()) {
            drop(state);
            return self.flush(volume);
        }
        let blocks = match state.chain_blocks(volume, &changed) {
            Err(Error::NoSpace) => {
                state.chain.next = None;
                return self.checkpoint_to_sync(&mut state, volume, CheckpointReason::NoRoom);
            }
            blocks => blocks?,
        };
        let version = ChainVersion::of(&volume.checkpoint()).value();
        let flight = self.syncs().begin_flight();
        drop(state);
        let written = self.write_chain(volume, blocks);
        if written.is_ok() {
            let nodes = changed.iter().flat_map(|changed| &changed.nodes);
            volume.overlay_or_new().write().set_synced(nodes);
        }
        drop(flight);
        written.or_else(|error| self.leave_chain(volume, version, error))
    }

    /// Makes data durable, and then blocks of the chain, which are written at once: if a power cut
    /// keeps a block and not one before it, the chain ends before both.
    fn write_chain(&self, volume: &Core, blocks: Vec<(FsBlock, Vec<u8>)>) -> Result<()> {
        // The data comes before the nodes that refer to it.
        self.flush(volume)?;
        volume.device().write_all(runs(volume.geometry(), blocks))?;
        self.flush(volume)
    }

    /// Writes a checkpoint after `error` in writing to the chain of the checkpoint with this
    /// version: a recovery would not find what is behind that. Errors: `error` if it has shut the
    /// volume down, and those of the checkpoint.
    fn leave_chain(&self, volume: &Arc<Core>, version: u64, error: Error) -> Result<()> {
        if self.health().check().is_err() {
            return Err(error);
        }
        let mut state = self.lock_to_sync()?;
        if ChainVersion::of(&volume.checkpoint()).value() != version {
            // Another thread has written a checkpoint meanwhile, which has all changes.
            return Ok(());
        }
        tracing::warn!(%error, "synced nodes cannot be written: a checkpoint is written instead");
        state.chain.next = None;
        self.checkpoint_to_sync(&mut state, volume, CheckpointReason::WriteFailed)
    }

    /// Writes a checkpoint in place of a chain.
    fn checkpoint_to_sync(
        &self,
        state: &mut WriterState,
        volume: &Arc<Core>,
        reason: CheckpointReason,
    ) -> Result<()> {
        self.sync_checkpoints().add(reason);
        tracing::debug!(%reason, "fsync writes a checkpoint");
        self.write_checkpoint(state, volume, false)
    }
}

impl WriterState {
    /// Returns the changed nodes of `inodes`, in the order in which the chain gets them, or why a
    /// recovery would not find all changes there. Adds an inode that cannot be read to `failed`.
    fn changed_of(
        &mut self,
        volume: &Arc<Core>,
        inodes: &BTreeSet<InodeNumber>,
        failed: &mut BTreeMap<InodeNumber, Error>,
    ) -> Result<Way<Vec<Changed>>> {
        if volume.overlay_or_new().read().is_empty() {
            return Ok(Way::Chain(Vec::new()));
        }
        // New files come in the order of their names, which become durable in this order.
        let mut order: Vec<InodeNumber> = inodes.iter().copied().collect();
        let places = volume.overlay_or_new().read().places_of_names();
        order.sort_by_key(|inode| (places.get(inode).copied().unwrap_or(usize::MAX), *inode));
        let (mut all, mut named, mut count) = (Vec::new(), BTreeSet::new(), 0);
        for number in order {
            match changed_of_inode(volume, number, &named) {
                Ok(Way::Chain(changed)) => {
                    named.insert(number);
                    count += changed.nodes.len() as u64;
                    all.push(changed);
                }
                Ok(Way::Checkpoint(reason)) => return Ok(Way::Checkpoint(reason)),
                Err(error) => drop(failed.insert(number, error)),
            }
        }
        if !self.chain.is_alone() {
            return Ok(Way::Checkpoint(CheckpointReason::FirstSync));
        }
        if self.chain.nodes + count > CHAIN_NODES_MAX {
            return Ok(Way::Checkpoint(CheckpointReason::LongChain));
        }
        let expected = match self.chain.next {
            Some(next) => next,
            None if self.chain.nodes == 0 => chain_start(volume),
            None => return Ok(Way::Checkpoint(CheckpointReason::BrokenChain)),
        };
        let Self { logs, space, .. } = self;
        match logs.next_block(LogName::WarmNodes, space, volume.geometry()) {
            Ok(next) if next == expected => Ok(Way::Chain(all)),
            Ok(_) => Ok(Way::Checkpoint(CheckpointReason::BrokenChain)),
            // A checkpoint makes room in the log.
            Err(Error::NoSpace) => Ok(Way::Checkpoint(CheckpointReason::NoRoom)),
            Err(error) => Err(error),
        }
    }

    /// Allocates blocks of the chain for nodes, and returns the blocks' contents. The last node of
    /// an inode, which is the inode's own if that has changed, makes the others count.
    fn chain_blocks(
        &mut self,
        volume: &Core,
        changed: &[Changed],
    ) -> Result<Vec<(FsBlock, Vec<u8>)>> {
        let geometry = volume.geometry();
        let version = ChainVersion::of(&volume.checkpoint()).value();
        let (mut blocks, limits) = (Vec::new(), Limits::leave(self.to_write(volume)));
        for Changed { nodes, name_mark } in changed {
            for (index, (nid, node)) in nodes.iter().enumerate() {
                let Self { logs, space, chain, .. } = self;
                let block = logs.allocate(LogName::WarmNodes, 1, limits, space, geometry)?.start;
                let next = logs.next_block(LogName::WarmNodes, space, geometry)?;
                let is_own = node.inode.0 == u64::from(nid.0);
                let marks = match (index + 1 == nodes.len(), is_own) {
                    (true, true) => mark::FSYNC | name_mark,
                    (true, false) => mark::FSYNC,
                    (false, _) => 0,
                };
                let link = Link { marks, version, next };
                let stored = stored_node(geometry, (*nid, node), LogName::WarmNodes, link);
                blocks.push((block, stored));
                chain.nodes += 1;
                chain.next = Some(next);
            }
        }
        Ok(blocks)
    }
}

/// Returns the changed nodes of an inode, or why a recovery would not find all changes in the
/// chain. `named` has the inodes whose nodes come before. Indirect nodes are left out, since a
/// recovery makes them anew.
fn changed_of_inode(
    volume: &Arc<Core>,
    number: InodeNumber,
    named: &BTreeSet<InodeNumber>,
) -> Result<Way<Changed>> {
    let inode = volume.inode(number)?;
    let attributes = inode.attributes();
    let record = inode.record();
    if let Some(reason) = reason_of_file(volume, &inode)? {
        return Ok(Way::Checkpoint(reason));
    }
    let is_new_inode = is_new(volume, number)?;
    if is_new_inode && let Some(reason) = reason_of_new_name(volume, &inode, named)? {
        return Ok(Way::Checkpoint(reason));
    }
    let shape = MapShape::of(record, volume.geometry());
    let (mut direct, mut has_blocks_behind) = (Vec::new(), false);
    let nodes = volume.overlay_or_new().read().unsynced_nodes(number);
    for (nid, node) in nodes {
        let position = node.position();
        if position == XATTR_POSITION {
            direct.push((nid, node));
            continue;
        }
        let Some(start) = first_block(position, shape) else { continue };
        let (first_byte, count) = match position {
            0 => record.own_addresses(),
            _ => (0, record.addresses_per_node),
        };
        let end = volume.geometry().block_size.blocks_for(attributes.size);
        let buffer = crate::node::Node::new(node.buffer(), nid, node.inode)?;
        let addresses = (start..).zip(buffer.words(first_byte, 0, count));
        has_blocks_behind |=
            addresses.into_iter().any(|(at, address)| at >= end && address != NULL_ADDRESS);
        direct.push((nid, node));
    }
    // A recovery takes blocks past the end for data, unless they are there on purpose.
    if has_blocks_behind && inode.advise()? & advise::KEEP_SIZE == 0 {
        return Ok(Way::Checkpoint(CheckpointReason::BlocksPastEnd));
    }
    let name_mark = if is_new_inode { mark::DENTRY } else { 0 };
    Ok(Way::Chain(Changed { nodes: direct, name_mark }))
}

/// Returns why a recovery would not find all changes of an inode in a chain, if it is for what it
/// is, or for earlier changes.
fn reason_of_file(volume: &Arc<Core>, inode: &Inode) -> Result<Option<CheckpointReason>> {
    let attributes = inode.attributes();
    if attributes.kind != FileType::Regular {
        return Ok(Some(CheckpointReason::NotRegular));
    }
    if attributes.links != 1 {
        return Ok(Some(CheckpointReason::HardLinks));
    }
    if inode.record().compression.is_some() {
        return Ok(Some(CheckpointReason::Compressed));
    }
    if volume.overlay_or_new().read().is_unsyncable(inode.number()) {
        return Ok(Some(CheckpointReason::UnrecordedChange));
    }
    Ok(follows_removal(volume, inode)?.then_some(CheckpointReason::RemovedName))
}

/// Returns why a recovery would not find the name of an inode that the last checkpoint does not
/// have.
fn reason_of_new_name(
    volume: &Arc<Core>,
    inode: &Inode,
    named: &BTreeSet<InodeNumber>,
) -> Result<Option<CheckpointReason>> {
    let parent = InodeNumber(inode.parent()?.into());
    {
        let overlay = volume.overlay_or_new().read();
        // Earlier changes of names become durable before later ones.
        if !overlay.keeps_order_of_names(inode.number(), named) {
            return Ok(Some(CheckpointReason::EarlierNames));
        }
        if overlay.is_unsyncable(parent) {
            return Ok(Some(CheckpointReason::DirectoryChanged));
        }
    }
    if inode.advise()? & advise::LOST_NAME != 0 {
        return Ok(Some(CheckpointReason::UnknownName));
    }
    Ok(is_new(volume, parent)?.then_some(CheckpointReason::NewDirectory))
}

/// Returns whether a name in the directory of an inode with one name was removed since the last
/// checkpoint, or may have been. The chain cannot say so: a recovery would find the inode's new
/// contents beside the old name. A program that removes its journal to commit must not find the
/// journal again beside a file that it has synced after that.
pub(crate) fn follows_removal(volume: &Arc<Core>, inode: &Inode) -> Result<bool> {
    if volume.overlay_or_new().read().with_removed_names().is_empty() {
        return Ok(false);
    }
    let parent = InodeNumber(inode.parent()?.into());
    let is_marked = volume.overlay_or_new().read().with_removed_names().contains(&parent);
    // The stored name may be one that the inode has no longer: then its directory is unknown.
    Ok(is_marked || !has_stored_name(volume, inode, parent)?)
}

/// Returns whether `inode` has the name that it stores, in the directory `parent`.
fn has_stored_name(volume: &Arc<Core>, inode: &Inode, parent: InodeNumber) -> Result<bool> {
    if inode.advise()? & advise::LOST_NAME != 0 {
        return Ok(false);
    }
    let node = volume.inode_node(inode.number())?;
    let raw: &RawInode = view_at(node.bytes(), 0, "inode", node.location())?;
    let found = volume.inode(parent).and_then(|directory| {
        let shape = directory.directory_shape()?;
        let (name, hash) = recovery::stored_name(raw, &shape, node.location())?;
        directory.find(&WantedName::stored(name, hash, &shape))
    });
    match found {
        Ok(found) => Ok(found.is_some_and(|found| found.inode == inode.number())),
        Err(Error::NotFound | Error::NotDirectory | Error::Corrupt(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether the last checkpoint does not have an inode.
fn is_new(volume: &Core, number: InodeNumber) -> Result<bool> {
    match volume.node_address(crate::edit::nid_of(number)) {
        Ok(_) => Ok(false),
        Err(Error::NotFound) => Ok(true),
        Err(error) => Err(error),
    }
}
