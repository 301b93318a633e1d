//! Checkpoints: the overlay's nodes and directory blocks go to new blocks, and tables, summaries
//! and a pack refer to them.

pub(crate) mod batch;
pub(crate) mod changes;
pub(crate) mod pack;
pub(crate) mod shifted;
pub(crate) mod stored_node;
pub(crate) mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use base::{Error, FsBlock, Result};
use iomap::BlockContents;

use super::health::Health;
use super::writer::WriterState;
use crate::checkpoint::Checkpoint;
use crate::core::Core;
use crate::edit::{Editor, has_addresses, nid_of};
use crate::geometry::Geometry;
use crate::nat::Nid;
use crate::node::XATTR_POSITION;
use crate::ondisk::nat::RawNatEntry;
use crate::ondisk::sit::RawSitEntry;
use crate::ondisk::summary::RawSummary;
use crate::overlay::{Change, OverlayNode, Owner};
use crate::summaries::BlockKind;
use crate::write::allocate::logs::LogName;
use crate::write::checkpoint::batch::Batch;
use crate::write::checkpoint::changes::AddressChanges;
use crate::write::checkpoint::pack::{Pack, PackContents, PackCounts};
use crate::write::checkpoint::stored_node::{Link, stored_node};
use crate::write::checkpoint::tables::{NodeTable, write_nodes, write_segments};
use crate::write::fsync::chain::Chain;
use crate::write::segments::segment_changes::{SegmentChanges, WriteTimes};

impl WriterState {
    /// Writes a checkpoint with all changes, and installs it. With `is_closed`, it marks the volume
    /// as unmounted.
    ///
    /// An error leaves the last checkpoint on the device as it is, but not the state in memory:
    /// nothing may be written afterwards. After `NoSpace` for a block of the main area, only the
    /// logs have moved.
    pub(super) fn write_checkpoint(&mut self, volume: &Arc<Core>, is_closed: bool) -> Result<()> {
        let (table, batch) = (NodeTable::new(), Batch::new(volume));
        let mut writer =
            CheckpointWriter { volume, state: self, table, batch, allocated: Vec::new() };
        let written = writer.write(is_closed);
        let blocks = writer.allocated;
        let segments = match written {
            Err(Error::NoSpace) => {
                // Addresses of directory blocks in the overlay are not read before the next
                // checkpoint sets them again.
                for block in blocks {
                    let (segment, index) = volume.geometry().segment_of(block);
                    self.space.release(segment, index);
                }
                // The next attempt is not due before others could have made room.
                self.changed_since = Some(Instant::now());
                return Err(Error::NoSpace);
            }
            segments => segments?,
        };
        let version = volume.checkpoint().raw.version.get().wrapping_add(1);
        let checkpoint = Checkpoint::read_written(volume.device(), volume.geometry(), version)?;
        volume.install(checkpoint);
        let mut freed = self.space.freed_segments(&segments);
        let unread = self.held.look_again();
        freed.extend(unread.into_iter().map(|block| volume.geometry().segment_of(block).0));
        self.held.note_checkpoint();
        let in_use = self.blocks_in_use(volume);
        self.space.install(segments, in_use.into_iter());
        self.discard_segments(volume, freed);
        self.times_of_moved.clear();
        self.changed_since = None;
        self.is_cleaning_futile = false;
        self.background.note_checkpoint();
        self.summaries.clear();
        self.sit_journal.clear();
        self.chain = Chain::after_checkpoint();
        Ok(())
    }

    /// Returns the blocks that are taken although no file has them: of data in flight, of atomic
    /// writes, and old ones that are being read.
    fn blocks_in_use(&self, volume: &Core) -> Vec<(u32, u64)> {
        let pending = self.pending.iter().flatten().map(FsBlock);
        let blocks = self.placements.blocks().chain(pending).chain(self.held.blocks());
        blocks.map(|block| volume.geometry().segment_of(block)).collect()
    }
}

/// The writer of a checkpoint.
struct CheckpointWriter<'v> {
    volume: &'v Arc<Core>,
    state: &'v mut WriterState,
    /// The new entries of changed and freed nodes.
    table: NodeTable,
    /// The blocks to be written.
    batch: Batch<'v>,
    /// The blocks of the main area for new nodes and directory blocks.
    allocated: Vec<FsBlock>,
}

impl CheckpointWriter<'_> {
    /// Writes the checkpoint. Returns the changed entries of the segment information table.
    fn write(&mut self, is_closed: bool) -> Result<BTreeMap<u32, RawSitEntry>> {
        let volume = self.volume;
        let geometry = volume.geometry();
        self.write_directory_blocks()?;
        let mut nodes = volume.overlay_or_new().read().nodes();
        let mut changes = self.address_changes(&nodes)?;
        if self.state.copy_shifted(volume, &changes.moved)? {
            nodes = volume.overlay_or_new().read().nodes();
            changes = self.address_changes(&nodes)?;
        }
        for (block, owner) in changes.added.iter().chain(&changes.moved) {
            self.set_owner(*block, *owner)?;
        }
        let (mut freed, mut new) = (Vec::new(), Vec::new());
        for (nid, change) in nodes {
            self.write_node(nid, change, &mut freed, &mut new)?;
        }
        for (nid, entry) in &volume.checkpoint().nat_journal {
            self.table.entry(*nid).or_insert_with(|| entry.clone());
        }
        let WriterState { logs, space, clock, times_of_moved, health, .. } = &mut *self.state;
        logs.find_next(space)?;
        let times = WriteTimes { now: clock.now(), of_moved: times_of_moved };
        let mut segments = SegmentChanges::new(space, logs.segments(), times);
        let data = (BlockKind::Data, changes.removed.iter());
        let wrong_data = changes.unused + set_all_free(&mut segments, geometry, data, health)?;
        let nodes = (BlockKind::Node, freed.iter().copied());
        let wrong_nodes = set_all_free(&mut segments, geometry, nodes, health)?;
        for (block, _) in &changes.added {
            segments.set_used(geometry, *block, LogName::WarmData.segment_type())?;
        }
        for (block, log) in new {
            segments.set_used(geometry, block, log.segment_type())?;
        }
        logs.note_holes(|segment, index| segments.is_used(segment, index));
        let (free_segments, used) = (segments.free_segments(), segments.used());
        let mut segments = segments.into_changed();
        for (number, entry) in &self.state.sit_journal {
            segments.entry(*number).or_insert_with(|| entry.clone());
        }
        let sit_versions = write_segments(volume, &segments, &mut self.batch)?;
        let nat_versions = write_nodes(volume, &self.table, &mut self.batch)?;
        let mut counts = self.counts(free_segments);
        counts.blocks += u64::from(wrong_data) + u64::from(wrong_nodes);
        let is_changed = counts.follow(used);
        if wrong_data > 0 || is_changed {
            self.state.health.set_corrupt();
        }
        let orphans = volume.overlay_or_new().read().orphans().clone();
        let contents = PackContents {
            counts,
            versions: (&sit_versions, &nat_versions),
            orphans: &orphans,
            is_quota_damaged: self.state.quotas.is_damaged(),
            needs_fsck: self.state.health.is_corrupt(),
            is_closed,
            time: self.state.clock.now(),
        };
        let WriterState { logs, space, summaries, .. } = &mut *self.state;
        let pack = Pack::new((volume, space), &contents, logs, summaries)?;
        summaries.write(volume, &mut self.batch)?;
        pack.write(&mut self.batch)?.flush()?.commit()?;
        Ok(segments)
    }

    /// Compares the addresses in `nodes`, which the overlay has, with those of the last checkpoint.
    fn address_changes(&self, nodes: &[(Nid, Change)]) -> Result<AddressChanges> {
        let (space, geometry) = (&self.state.space, self.volume.geometry());
        AddressChanges::find(self.volume, nodes, |block| space.is_used(geometry, block))
    }

    fn counts(&self, free_segments: u32) -> PackCounts {
        let checkpoint = self.volume.checkpoint();
        let raw = &checkpoint.raw;
        let more = self.volume.changed_counts();
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
        let version = self.volume.nat_entry(owner.nid)?.version;
        let owner = RawSummary { nid: owner.nid.0.into(), version, index: owner.index.into() };
        let at = self.volume.geometry().segment_of(block);
        let WriterState { space, summaries, .. } = &mut *self.state;
        summaries.set((self.volume, space), at, BlockKind::Data, owner)
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
            let slot = slot.expect("an operation has reserved the block");
            let WriterState { logs, space, .. } = &mut *self.state;
            let new = logs.allocate_for_directory(space, volume.geometry())?;
            self.add(new, contents)?;
            // Addresses have 32 bits.
            editor.set_address(slot, new.0 as u32)?;
        }
        Ok(())
    }

    /// Adds an allocated block with its contents.
    fn add(&mut self, block: FsBlock, contents: BlockContents) -> Result<()> {
        self.allocated.push(block);
        self.batch.add(block, contents)
    }

    /// Writes a node, or frees its number. Adds the block that it had to `freed`, and the one that
    /// it gets to `new`.
    fn write_node(
        &mut self,
        nid: Nid,
        change: Change,
        freed: &mut Vec<FsBlock>,
        new: &mut Vec<(FsBlock, LogName)>,
    ) -> Result<()> {
        let old = match self.volume.node_address(nid) {
            Err(Error::NotFound) => None,
            address => Some(address?),
        };
        freed.extend(old.map(|old| old.block));
        let mut entry = self.volume.nat_entry(nid)?;
        match change {
            Change::Freed => {
                // A node that was added and freed since the last checkpoint has no entry.
                if old.is_none() {
                    return Ok(());
                }
                entry.version = entry.version.wrapping_add(1);
                entry.block.set(0);
            }
            Change::Contents(node) => {
                let (block, log) = self.write_contents(nid, &node)?;
                new.push((block, log));
                let (inode, block) = ((node.inode.0 as u32).into(), (block.0 as u32).into());
                entry = RawNatEntry { version: entry.version, inode, block };
            }
        }
        self.table.insert(nid.0, entry);
        Ok(())
    }

    /// Writes a node to the log for its kind.
    fn write_contents(&mut self, nid: Nid, node: &OverlayNode) -> Result<(FsBlock, LogName)> {
        let geometry = self.volume.geometry();
        let is_dir = match self.volume.inode(node.inode) {
            // Cleaning has taken a node that its inode does not refer to, and the inode was removed
            // without it. The node belongs to nothing, as before.
            Err(Error::NotFound) => false,
            inode => inode?.attributes().is_dir(),
        };
        let position = node.position();
        let is_direct = position == XATTR_POSITION || has_addresses(position, geometry);
        let log = match (is_direct, is_dir) {
            (false, _) => LogName::ColdNodes,
            (true, true) => LogName::HotNodes,
            (true, false) => LogName::WarmNodes,
        };
        let stored = stored_node(geometry, (nid, node), log, Link::NONE);
        let WriterState { logs, space, .. } = &mut *self.state;
        let block = logs.allocate_for_node(log, space, geometry)?;
        self.add(block, stored.into())?;
        let owner = RawSummary { nid: nid.0.into(), version: 0, index: 0.into() };
        let at = geometry.segment_of(block);
        let WriterState { space, summaries, .. } = &mut *self.state;
        summaries.set((self.volume, space), at, BlockKind::Node, owner)?;
        Ok((block, log))
    }
}

/// Makes blocks of data or of nodes free. Returns the number of those that the table had as free
/// already, as one that two files had, or in a segment of the other kind: that concerns nothing
/// else, so the checkpoint is written all the same.
fn set_all_free(
    segments: &mut SegmentChanges<'_>,
    geometry: &Geometry,
    (kind, blocks): (BlockKind, impl Iterator<Item = FsBlock>),
    health: &Health,
) -> Result<u32> {
    let mut wrong = 0;
    for block in blocks {
        match segments.set_free(geometry, block, kind) {
            Err(error @ Error::Corrupt(_)) => {
                health.found(&error);
                wrong += 1;
            }
            result => result?,
        }
    }
    Ok(wrong)
}
