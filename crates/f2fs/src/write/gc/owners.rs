//! The live blocks of a segment, and what refers to them. A block is live if the last checkpoint
//! uses it, and the node that its summary names still refers to it.

use std::collections::HashMap;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileBlock, FsBlock, InodeNumber, Problem, Result};

use crate::compress::ClusterSize;
use crate::core::Core;
use crate::edit::{Editor, MapShape, Slot, first_block, nid_of};
use crate::geometry::{SEGMENT_BLOCKS, WORD_BYTES};
use crate::inode::record::{InodeRecord, flags};
use crate::nat::Nid;
use crate::ondisk::summary::RawSummary;
use crate::overlay::Change;
use crate::summaries::BlockKind;
use crate::write::segments::summary_blocks::Summary;

/// A live block of data.
#[derive(Clone, Copy, Debug)]
pub(in crate::write) struct DataBlock {
    pub(crate) block: FsBlock,
    /// The address that refers to it.
    pub(crate) slot: Slot,
    /// The block of the file.
    pub(crate) at: FileBlock,
    /// Whether the block is read as metadata: that of a directory, a symbolic link or a quota file.
    pub(crate) is_metadata: bool,
    /// The clusters that are read as a whole.
    pub(crate) cluster: Option<ClusterSize>,
}

impl DataBlock {
    /// Returns whether the block is before `next` on the device, with at most `gap_max` others
    /// between them.
    pub(crate) fn is_before(&self, next: &Self, gap_max: u64) -> bool {
        (self.block.0 + 1..=self.block.0 + 1 + gap_max).contains(&next.block.0)
    }
}

/// The live blocks of a segment.
#[derive(Debug, Default)]
pub(crate) struct LiveBlocks {
    pub(crate) data: Vec<DataBlock>,
    /// Nodes that have not changed since the last checkpoint. The next one moves the others in any
    /// case.
    pub(crate) nodes: Vec<Nid>,
    /// A pinned file with blocks there, which must not move.
    pub(crate) pinned: Option<InodeNumber>,
}

/// Finds the owners of blocks.
pub(in crate::write) struct Owners<'v> {
    volume: &'v Arc<Core>,
    inodes: HashMap<InodeNumber, InodeRecord>,
}

impl<'v> Owners<'v> {
    pub(in crate::write) fn new(volume: &'v Arc<Core>) -> Self {
        Self { volume, inodes: HashMap::new() }
    }

    /// Returns the live blocks of a segment, among those that `is_used` has. Errors: those of
    /// damaged nodes.
    pub(crate) fn of_segment(
        &mut self,
        segment: u32,
        summary: &Summary,
        is_used: impl Fn(u64) -> bool,
    ) -> Result<LiveBlocks> {
        let mut live = LiveBlocks::default();
        let start = self.volume.geometry().segment_start(segment).0;
        for index in (0..SEGMENT_BLOCKS).filter(|index| is_used(*index)) {
            let block = FsBlock(start + index);
            let owner = summary.owner(index);
            match summary.kind() {
                BlockKind::Node => live.nodes.extend(self.unchanged_node(owner, block)?),
                BlockKind::Data => {
                    let (nid, index) = (Nid(owner.nid.get()), owner.index.get().into());
                    let Some(data) = self.data(nid, index, block)? else { continue };
                    if self.inodes[&data.slot.inode].has_flag(flags::PINNED) {
                        live.pinned = Some(data.slot.inode);
                    }
                    live.data.push(data);
                }
            }
        }
        Ok(live)
    }

    /// Returns the number of a node in `block` that has not changed.
    fn unchanged_node(&mut self, owner: &RawSummary, block: FsBlock) -> Result<Option<Nid>> {
        let nid = Nid(owner.nid.get());
        if self.volume.overlay_or_new().read().node(nid).is_some() {
            return Ok(None);
        }
        let address = match self.volume.node_address(nid) {
            Err(Error::NotFound) => return Ok(None),
            address => address?,
        };
        if address.block != block {
            return Ok(None);
        }
        // A damaged node stays where it is: a checkpoint could not write it.
        let node = self.volume.any_node(nid)?;
        if self.inode(node.inode)?.is_none() {
            return Err(Error::corrupt("node", node.location(), Problem::Missing("inode")));
        }
        Ok(Some(nid))
    }

    /// Returns the data in `block`, if the address at `index` in a node refers to it.
    pub(in crate::write) fn data(
        &mut self,
        nid: Nid,
        index: u32,
        block: FsBlock,
    ) -> Result<Option<DataBlock>> {
        let volume = self.volume;
        if matches!(volume.overlay_or_new().read().node(nid), Some(Change::Freed)) {
            return Ok(None);
        }
        let node = match volume.any_node(nid) {
            Err(Error::NotFound) => return Ok(None),
            node => node?,
        };
        let number = node.inode;
        let Some(record) = self.inode(number)? else { return Ok(None) };
        let (first, byte, count) = if nid == nid_of(number) {
            let (byte, count) = record.own_addresses();
            (0, byte, count)
        } else {
            let geometry = volume.geometry();
            let shape = MapShape::of(record, geometry);
            let Some(first) = first_block(node.position()?, shape) else { return Ok(None) };
            (first, 0, geometry.addresses_per_node())
        };
        // The address, and not the summary, tells whether the block is in use: it may have been
        // overwritten, and the number of the node may have been given to another one.
        if index >= count || node.word(byte, index)? != block.0 as u32 {
            return Ok(None);
        }
        let byte = byte + index as usize * WORD_BYTES;
        let data = DataBlock {
            block,
            slot: Slot { inode: number, nid, index, byte },
            at: FileBlock(first + u64::from(index)),
            is_metadata: record.attributes.kind != FileType::Regular
                || volume.superblock().quota_files().contains(&Some(number)),
            cluster: record.compression.map(|compression| compression.cluster_size),
        };
        // A checkpoint looks the address of a directory's block up by its place in the directory.
        let is_found = !data.is_metadata
            || Editor::new(volume).slot_of(number, data.at, false)? == Some(data.slot);
        if !is_found {
            return Err(Error::corrupt("node", node.location(), Problem::Missing("parent")));
        }
        Ok(Some(data))
    }

    /// Returns an inode. `None` if it is not in use.
    fn inode(&mut self, number: InodeNumber) -> Result<Option<&InodeRecord>> {
        if !self.inodes.contains_key(&number) {
            let node = match self.volume.inode_node(number) {
                Err(Error::NotFound) => return Ok(None),
                node => node?,
            };
            let record = InodeRecord::parse(&node, self.volume.geometry())?;
            self.inodes.insert(number, record);
        }
        Ok(self.inodes.get(&number))
    }
}
