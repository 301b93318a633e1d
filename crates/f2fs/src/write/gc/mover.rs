//! The move of a section's live blocks. Nodes and directory blocks become changed ones, unchanged:
//! the next checkpoint writes them elsewhere. Data of files is copied as it lies on the device, so
//! it may be encrypted or compressed, and its addresses change. The old blocks stay as they are
//! until the next checkpoint is durable.
//!
//! The lock of changes is held meanwhile, so no address changes, and no checkpoint frees blocks,
//! between the look at an owner and the change. Data in the cache stays there: its folios refer to
//! no block. A folio that is dirty, or under writeback, gets its own new blocks at the end of its
//! write, whatever the address is by then. A section with a block that is being overwritten in
//! place is left as it is.
//!
//! Not here: the choice of the section, and old blocks that are still being read
//! (`write/segments/held.rs`).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use base::{Error, FileBlock, FsBlock, InodeNumber, Result};

use super::owners::{DataBlock, LiveBlocks, Owners};
use crate::core::Core;
use crate::edit::Editor;
use crate::nat::Nid;
use crate::overlay::OverlayNode;
use crate::write::allocate::logs::{Limits, LogName};
use crate::write::allocate::room::Wanted;
use crate::write::writer::WriterState;

/// The number of blocks between two blocks that are read with them. A further read takes longer.
const GAP_MAX: u64 = 16;

/// The result of cleaning a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::write) enum Cleaned {
    /// The number of blocks that were moved, or will be by the next checkpoint, after which the
    /// section is free.
    Moved(u64),
    /// Nothing was moved, since this pinned file has blocks there.
    Pinned(InodeNumber),
    /// Nothing was moved, since a part of it is being overwritten, or is damaged.
    Unmovable,
    /// Nothing was moved, since the next checkpoint would have no room for the nodes that change.
    NoRoom,
}

impl WriterState {
    /// Moves the live blocks of a section. Errors: `NoSpace` if there is no room for data, and
    /// those of the device, which leave all files as they are.
    pub(in crate::write) fn clean_section(
        &mut self,
        volume: &Arc<Core>,
        section: u32,
    ) -> Result<Cleaned> {
        let segments = volume.geometry().segments_of(section);
        if self.is_overwritten(volume, &segments) {
            return Ok(Cleaned::Unmovable);
        }
        let mut owners = Owners::new(volume);
        let mut found = Vec::new();
        for segment in segments.clone() {
            if self.space.is_empty(segment) {
                continue;
            }
            let live = self.live_blocks(volume, &mut owners, segment);
            match live {
                Ok(LiveBlocks { pinned: Some(inode), .. }) => return Ok(Cleaned::Pinned(inode)),
                Ok(live) => found.push((segment, live)),
                Err(error @ Error::Corrupt(_)) => {
                    tracing::debug!(section, %error, "a section cannot be cleaned");
                    return Ok(Cleaned::Unmovable);
                }
                Err(error) => return Err(error),
            }
        }
        // No log fills the holes from now on.
        self.space.set_cleaned(segments.clone(), true);
        if !self.has_room_for_moved(volume, &found) {
            self.space.set_cleaned(segments, false);
            return Ok(Cleaned::NoRoom);
        }
        let mut moved = 0;
        for (segment, live) in found {
            moved += (live.nodes.len() + live.data.len()) as u64;
            self.move_nodes(volume, &live.nodes)?;
            let (files, others): (Vec<_>, Vec<_>) =
                live.data.into_iter().partition(|data| !data.is_metadata);
            move_directory_blocks(volume, &others)?;
            self.move_data(volume, segment, &files)?;
        }
        Ok(Cleaned::Moved(moved))
    }

    /// Returns whether a write in flight overwrites a block of `segments`. A copy might miss it.
    fn is_overwritten(&self, volume: &Core, segments: &Range<u32>) -> bool {
        let mut blocks = self.placements.overwritten();
        blocks.any(|block| segments.contains(&volume.geometry().segment_of(block).0))
    }

    fn live_blocks(
        &self,
        volume: &Core,
        owners: &mut Owners<'_>,
        segment: u32,
    ) -> Result<LiveBlocks> {
        let summary = self.summaries.get(volume, segment)?;
        owners.of_segment(segment, &summary, |index| self.space.is_taken(segment, index))
    }

    /// Returns whether the next checkpoint has room for all nodes and directory blocks that change.
    fn has_room_for_moved(&self, volume: &Core, found: &[(u32, LiveBlocks)]) -> bool {
        let mut nodes = BTreeSet::new();
        let mut directory_blocks = 0;
        for (_, live) in found {
            nodes.extend(live.nodes.iter().copied());
            for block in &live.data {
                // A change of an address changes the node, and no other.
                nodes.insert(block.slot.nid);
                directory_blocks += u64::from(block.is_metadata);
            }
        }
        let overlay = volume.overlay_or_new().read();
        let new_nodes = nodes.iter().filter(|nid| overlay.node(**nid).is_none()).count() as u64;
        drop(overlay);
        let moved = Wanted { nodes: new_nodes + directory_blocks, directory_blocks };
        self.has_room(self.changed(volume) + moved)
    }

    /// Makes nodes of the last checkpoint changed ones, with the same contents. fsync(2) need not
    /// write them: a recovery finds the old ones.
    fn move_nodes(&self, volume: &Arc<Core>, nodes: &[Nid]) -> Result<()> {
        for nid in nodes {
            let node = volume.any_node(*nid)?;
            let (inode, block) = (node.inode, node.block());
            let contents = node.bytes().to_vec().into();
            let node = OverlayNode { inode, block, contents, is_synced: true };
            volume.overlay_or_new().write().put_node(*nid, node)?;
        }
        Ok(())
    }

    /// Moves data of files from a segment to the log of cold data.
    pub(in crate::write) fn move_data(
        &mut self,
        volume: &Arc<Core>,
        segment: u32,
        data: &[DataBlock],
    ) -> Result<()> {
        let geometry = volume.geometry();
        let stored = read_blocks(volume, data)?;
        let written = self.space.written(segment);
        let (mut rest, mut rest_stored) = (data, stored.as_slice());
        while !rest.is_empty() {
            let limits = Limits::leave(self.to_write(volume).and_nodes(rest.len() as u64));
            let Self { logs, space, .. } = self;
            let new =
                logs.allocate(LogName::ColdData, rest.len() as u64, limits, space, geometry)?;
            let count = (new.end.0 - new.start.0) as usize;
            let (these, others) = rest.split_at(count);
            let (copied, others_stored) = rest_stored.split_at(count * geometry.block_size.len());
            let moved = volume
                .device()
                .write_at(geometry.device_offset(new.start), copied)
                .and_then(|()| self.move_addresses(volume, these, new.start));
            if let Err(error) = moved {
                self.logs.release(new, &mut self.space, geometry);
                return Err(error);
            }
            for block in new.start.0..new.end.0 {
                self.times_of_moved.insert(FsBlock(block), written);
            }
            (rest, rest_stored) = (others, others_stored);
        }
        Ok(())
    }

    /// Gives data, which was copied, the addresses from `new` on: all or nothing.
    fn move_addresses(
        &mut self,
        volume: &Arc<Core>,
        data: &[DataBlock],
        new: FsBlock,
    ) -> Result<()> {
        let editor = Editor::new(volume);
        volume.overlay_or_new().write().begin();
        let mut edited = Ok(());
        for (number, DataBlock { slot, .. }) in (0..).zip(data) {
            // Addresses have 32 bits.
            let address = (new.0 + number) as u32;
            edited = editor.edit_node(slot.nid, slot.inode, |bytes| {
                bytes[slot.byte..slot.byte + 4].copy_from_slice(&address.to_le_bytes());
            });
            if edited.is_err() {
                break;
            }
        }
        volume.overlay_or_new().write().end(edited.is_ok());
        edited?;
        // First the generations, then the look at the reads.
        let inodes: BTreeSet<InodeNumber> = data.iter().map(|block| block.slot.inode).collect();
        let inodes = inodes.into_iter().flat_map(|inode| volume.residents().find(inode));
        inodes.for_each(|inode| inode.map_changed());
        for data in data {
            let part = part_of(data);
            let old = data.block..FsBlock(data.block.0 + 1);
            self.held.hold(volume, (data.slot.inode, &part), &[old]);
        }
        Ok(())
    }
}

/// Reads blocks of data of a segment, one after the other. Those between them may be unreadable.
fn read_blocks(volume: &Core, data: &[DataBlock]) -> Result<Vec<u8>> {
    let block_bytes = volume.geometry().block_size.len();
    let mut stored = Vec::with_capacity(data.len() * block_bytes);
    let read = |blocks: &[DataBlock], stored: &mut Vec<u8>| -> Result<()> {
        let (first, last) = (blocks[0].block, blocks[blocks.len() - 1].block);
        let mut span = vec![0; (last.0 - first.0 + 1) as usize * block_bytes];
        volume.device().read_at(volume.geometry().device_offset(first), &mut span)?;
        for block in blocks {
            let at = (block.block.0 - first.0) as usize * block_bytes;
            stored.extend_from_slice(&span[at..at + block_bytes]);
        }
        Ok(())
    };
    for near in data.chunk_by(|one, next| one.is_before(next, GAP_MAX)) {
        match read(near, &mut stored) {
            Err(Error::Io(_)) => near
                .chunk_by(|one, next| one.is_before(next, 0))
                .try_for_each(|run| read(run, &mut stored))?,
            read => read?,
        }
    }
    Ok(stored)
}

/// Returns the part of a file that is read together with a block.
fn part_of(data: &DataBlock) -> Range<FileBlock> {
    match data.cluster {
        Some(size) => {
            let first = size.first_block(data.at);
            first..FileBlock(first.0 + u64::from(size.blocks()))
        }
        None => data.at..FileBlock(data.at.0 + 1),
    }
}

/// Makes blocks of directories, symbolic links and quota files changed ones, with the same
/// contents.
fn move_directory_blocks(volume: &Arc<Core>, blocks: &[DataBlock]) -> Result<()> {
    for DataBlock { block, slot, at, .. } in blocks {
        if volume.overlay_or_new().read().directory_block(slot.inode, *at).is_some() {
            continue;
        }
        let location = base::Location::inode(slot.inode).at_file_block(*at);
        let contents = volume.metadata().read(*block, "directory block", location)?.to_vec();
        volume.overlay_or_new().write().put_directory_block(slot.inode, *at, contents)?;
    }
    Ok(())
}
