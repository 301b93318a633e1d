//! Recovery in place: the changes of a recovery become a new checkpoint.
//!
//! Each changed node gets a new block. Data that the nodes synced after the last checkpoint refer to stays where it is,
//! and becomes used. What is used no longer is found by comparing the addresses in changed nodes with those in the nodes
//! of the checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, FsBlock, Location, Result, Unsupported};
use device::SharedDevice;
use fs::FormatOptions;
use iomap::PageCache;
use zerocopy::FromBytes;

use super::nodes::{Editor, nid_of};
use super::overlay::{Change, OverlayNode, Owner};
use super::position::{MapShape, first_block};
use super::{RecoveryReport, read_chain};
use crate::features::Feature;
use crate::inode::checksum::seal;
use crate::inode::record::InodeRecord;
use crate::nat::Nid;
use crate::node::{FLAG_BITS, Node, XATTR_POSITION};
use crate::ondisk::checkpoint::DISABLED;
use crate::ondisk::nat::RawNatEntry;
use crate::ondisk::node::{RawInode, RawNodeFooter};
use crate::ondisk::summary::RawSummary;
use crate::summaries::{BlockKind, PackSummaries};
use crate::volume::Volume;
use crate::write::{
    LogName, Logs, NodeTable, Pack, PackCounts, Space, SummaryBlocks, read_nat_entry, segment_of,
    write_nodes, write_segments,
};

/// The bit in a footer's flags of inodes and direct nodes of files that are not directories.
const COLD: u32 = 1;
/// The type of segments with warm data.
const WARM_DATA: u16 = 1;

/// Features whose structures a recovery would have to change, too.
const REFUSED: [(Feature, &str); 3] = [
    (Feature::ReadOnly, "recovering a read-only f2fs volume in place"),
    (Feature::BlockZoned, "recovering a zoned f2fs volume in place"),
    (Feature::QuotaInodes, "recovering an f2fs volume with quota in place"),
];

/// Recovers the volume on `device`, and writes the result as a new checkpoint. Returns `None`, and writes nothing, if there
/// is nothing to recover. The volume must not be in use.
///
/// A power cut leaves the state before or after, and the recovery of both is the same.
///
/// # Errors
///
/// Those of opening the volume, and:
///
/// - `Unsupported` for volumes that are read-only by their format, zoned, or have quota or disabled checkpoints.
/// - Those of an orphan that cannot be deleted completely.
/// - `NoSpace` if there are fewer than six free segments, or too few for the changed nodes.
pub fn recover_in_place(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
) -> Result<Option<RecoveryReport>> {
    let volume = Volume::open(Arc::clone(device), cache, &FormatOptions::default())?;
    let Some(report) = volume.recovery().cloned() else { return Ok(None) };
    for (feature, operation) in REFUSED {
        if volume.geometry().features.has(feature) {
            return Err(Unsupported::Operation(operation).into());
        }
    }
    if volume.checkpoint().has(DISABLED) {
        let operation = "recovering an f2fs volume with disabled checkpoints in place";
        return Err(Unsupported::Operation(operation).into());
    }
    if let Some(failure) = report.orphan_failure.clone() {
        return Err(failure);
    }
    let pack = PackSummaries::read(&volume)?;
    let mut space = Space::new(&volume, pack.sit_journal.clone());
    let mut summaries = SummaryBlocks::new(&volume, &pack);
    summaries.load_logs()?;
    let changes = AddressChanges::find(&volume)?;
    // The chain must stay intact until the new checkpoint is durable, and its data after that.
    for node in read_chain(&volume)? {
        space.reserve(node.block);
    }
    for block in changes.added.keys() {
        space.reserve(*block);
    }
    let logs = Logs::begin(&volume, &mut space, &mut summaries)?;
    let table = NodeTable::new();
    Writer { volume: &volume, space, summaries, logs, table }.write(&changes)?;
    Ok(Some(report))
}

/// The changes of the use of data blocks.
#[derive(Debug, Default)]
struct AddressChanges {
    /// Blocks that no address refers to any more.
    removed: Vec<FsBlock>,
    /// Blocks that the checkpoint does not use.
    added: BTreeMap<FsBlock, Owner>,
    /// Blocks of the checkpoint that other addresses refer to.
    moved: BTreeMap<FsBlock, Owner>,
}

impl AddressChanges {
    fn find(volume: &Volume) -> Result<Self> {
        let nodes = volume.overlay_or_new().read().nodes();
        let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
        for (nid, change) in nodes {
            if let Some(node) = checkpointed_node(volume, nid)? {
                collect(volume, &node, &mut before)?;
            }
            if let Change::Contents(node) = change {
                let node = Node::new(node.buffer(), nid, node.inode)?;
                collect(volume, &node, &mut after)?;
            }
        }
        let mut changes = Self::default();
        for (block, owner) in &after {
            match before.remove(block) {
                None => drop(changes.added.insert(*block, *owner)),
                Some(old) if old != *owner => drop(changes.moved.insert(*block, *owner)),
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

/// The writer of a checkpoint with the changes of an overlay.
struct Writer<'v> {
    volume: &'v Arc<Volume>,
    space: Space<'v>,
    summaries: SummaryBlocks<'v>,
    logs: Logs<'v>,
    /// The new entries of changed and freed nodes.
    table: NodeTable,
}

impl Writer<'_> {
    fn write(mut self, changes: &AddressChanges) -> Result<()> {
        let volume = self.volume;
        for block in &changes.removed {
            self.space.set_free(*block)?;
        }
        for (block, owner) in &changes.added {
            self.space.set_used(*block, WARM_DATA)?;
            self.set_owner(*block, *owner)?;
        }
        for (block, owner) in &changes.moved {
            self.set_owner(*block, *owner)?;
        }
        self.write_directory_blocks()?;
        let nodes = volume.overlay_or_new().read().nodes();
        for (nid, change) in nodes {
            self.write_node(nid, change)?;
        }
        for (nid, entry) in &volume.checkpoint().nat_journal {
            self.table.entry(*nid).or_insert_with(|| entry.clone());
        }
        let free_segments = self.space.free_segments(&self.logs.segments())?;
        let sit_versions = write_segments(volume, &self.space.changes())?;
        let nat_versions = write_nodes(volume, &self.table)?;
        self.summaries.write()?;
        let versions = (&sit_versions, &nat_versions);
        let counts = self.counts(free_segments);
        let pack = Pack::new(volume, counts, versions, &self.logs, &self.summaries)?;
        pack.write()?.flush()?.commit()
    }

    fn counts(&self, free_segments: u32) -> PackCounts {
        let raw = &self.volume.checkpoint().raw;
        let more = self.volume.recovered_counts();
        // The recovery has only counted what it found in use.
        let add =
            |count: u32, more: i64| (i64::from(count) + more).clamp(0, u32::MAX.into()) as u32;
        PackCounts {
            blocks: raw.valid_block_count.get().saturating_add_signed(more.blocks),
            nodes: add(raw.valid_nodes.get(), more.nodes),
            inodes: add(raw.valid_inodes.get(), more.inodes),
            free_segments,
        }
    }

    fn set_owner(&mut self, block: FsBlock, owner: Owner) -> Result<()> {
        let version = self.version(owner.nid)?;
        let (segment, index) = segment_of(self.volume.geometry(), block);
        self.summaries.set(segment, index, BlockKind::Data, summary(owner, version))
    }

    /// Returns the version of a node's number.
    fn version(&self, nid: Nid) -> Result<u8> {
        Ok(read_nat_entry(self.volume, nid)?.version)
    }

    /// Writes the changed blocks of directories, and stores their addresses.
    fn write_directory_blocks(&mut self) -> Result<()> {
        let volume = self.volume;
        let mut editor = Editor::new(volume);
        let blocks = volume.overlay_or_new().read().directory_blocks();
        for ((directory, at), contents) in blocks {
            let is_deleted = matches!(
                volume.overlay_or_new().read().node(nid_of(directory)),
                Some(Change::Freed)
            );
            if is_deleted {
                continue;
            }
            let slot = editor.slot_of(directory, at, false)?;
            let slot = slot.expect("the recovery has reserved the block");
            let old = FsBlock(editor.address(slot)?.into());
            let owner = slot.owner();
            let owner_summary = summary(owner, self.version(owner.nid)?);
            let (space, summaries) = (&mut self.space, &mut self.summaries);
            if volume.geometry().main.contains(&old) {
                space.set_free(old)?;
            }
            let log = LogName::HotData;
            let new = self.logs.append(log, owner_summary, &contents, space, summaries)?;
            // Addresses have 32 bits.
            editor.set_address(slot, new.0 as u32)?;
        }
        Ok(())
    }

    fn write_node(&mut self, nid: Nid, change: Change) -> Result<()> {
        let old = match self.volume.node_address(nid) {
            Err(Error::NotFound) => None,
            address => Some(address?),
        };
        if let Some(old) = &old {
            self.space.set_free(old.block)?;
        }
        let mut entry = read_nat_entry(self.volume, nid)?;
        match change {
            Change::Freed => {
                // A node that the recovery itself has added and freed has no entry.
                if old.is_none() {
                    return Ok(());
                }
                entry.version = entry.version.wrapping_add(1);
                entry.block.set(0);
            }
            Change::Contents(node) => {
                let block = self.write_contents(nid, &node)?;
                let (inode, block) = ((node.inode.0 as u32).into(), (block.0 as u32).into());
                entry = RawNatEntry { version: entry.version, inode, block };
            }
        }
        self.table.insert(nid.0, entry);
        Ok(())
    }

    /// Writes a node to the log for its kind.
    fn write_contents(&mut self, nid: Nid, node: &OverlayNode) -> Result<FsBlock> {
        let geometry = self.volume.geometry();
        let is_dir = self.volume.inode(node.inode)?.attributes().is_dir();
        let mut bytes = node.contents.to_vec();
        let footer_at = bytes.len() - size_of::<RawNodeFooter>();
        let footer = RawNodeFooter::mut_from_bytes(&mut bytes[footer_at..]).expect("of this size");
        let position = footer.flags.get() >> FLAG_BITS;
        let shape =
            MapShape { in_inode: 0, in_node: 1, nids: geometry.addresses_per_node().into() };
        let is_direct = position == XATTR_POSITION || first_block(position, shape).is_some();
        let log = match (is_direct, is_dir) {
            (false, _) => LogName::ColdNodes,
            (true, true) => LogName::HotNodes,
            (true, false) => LogName::WarmNodes,
        };
        let cold = if log == LogName::WarmNodes { COLD } else { 0 };
        footer.flags.set(position << FLAG_BITS | cold);
        // Of no chain: the version of no checkpoint is zero.
        footer.checkpoint_version.set(0);
        footer.next_block.set(0);
        if node.inode.0 == u64::from(nid.0) {
            let (raw, _) = RawInode::mut_from_prefix(&mut bytes).expect("a block is larger");
            // The cached extent may have other blocks now.
            raw.extent = Default::default();
            seal(&mut bytes, nid, geometry);
        }
        let owner = RawSummary { nid: nid.0.into(), version: 0, index: 0.into() };
        self.logs.append(log, owner, &bytes, &mut self.space, &mut self.summaries)
    }
}

fn summary(owner: Owner, version: u8) -> RawSummary {
    RawSummary { nid: owner.nid.0.into(), version, index: owner.index.into() }
}
