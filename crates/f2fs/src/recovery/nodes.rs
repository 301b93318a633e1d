//! Changes of nodes in the overlay: of inodes, of the addresses of files, and new and freed nodes.
//! Not here: which changes a recovery makes (`replay`, `names`, `orphans`).

use std::sync::Arc;

use base::locks::RankedRwLock;
use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result};
use zerocopy::FromBytes;

use super::STRUCTURE;
use super::overlay::{BlockUse, Change, Counts, Overlay, OverlayNode, Owner};
use super::segments::Segments;
use crate::geometry::WORD_BYTES;
use crate::inode::Inode;
use crate::nat::Nid;
use crate::node::{FLAG_BITS, Node};
use crate::ondisk::node::{NEW_ADDRESS, NULL_ADDRESS, RawInode, RawNodeFooter};
use crate::volume::Volume;

/// An address in a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    pub(super) inode: InodeNumber,
    pub(super) nid: Nid,
    /// The index of the address in the node. In inodes, counted from the first address.
    pub(super) index: u32,
    /// The address's byte in the node.
    pub(super) byte: usize,
}

impl Slot {
    /// Returns the slot so many addresses behind this one.
    pub(super) fn after(self, distance: u32) -> Self {
        let byte = self.byte + distance as usize * WORD_BYTES;
        Self { index: self.index + distance, byte, ..self }
    }

    pub(super) fn owner(self) -> Owner {
        // Nodes have some thousand addresses at most.
        Owner { nid: self.nid, index: self.index as u16 }
    }
}

/// The volume and the changes of its nodes.
pub(super) struct Editor<'v> {
    pub(super) volume: &'v Arc<Volume>,
    pub(super) overlay: &'v RankedRwLock<Overlay>,
    /// The use of blocks in the checkpoint, once it was needed.
    segments: Option<Segments>,
    /// No number before this one is free.
    next_nid: u32,
}

impl<'v> Editor<'v> {
    pub(super) fn new(volume: &'v Arc<Volume>) -> Self {
        Self { volume, overlay: volume.overlay_or_new(), segments: None, next_nid: 0 }
    }

    /// Returns the use of blocks in the checkpoint.
    pub(super) fn segments(&mut self) -> Result<&Segments> {
        if self.segments.is_none() {
            self.segments = Some(Segments::read(self.volume)?);
        }
        Ok(self.segments.as_ref().expect("they were just read"))
    }

    pub(super) fn inode(&self, number: InodeNumber) -> Result<Inode> {
        self.volume.inode(number)
    }

    /// Changes the contents of a node of `inode`.
    pub(super) fn edit_node<R>(
        &self,
        nid: Nid,
        inode: InodeNumber,
        edit: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let is_here = matches!(self.overlay.read().node(nid), Some(Change::Contents(_)));
        if !is_here {
            let node = self.volume.node(nid, inode)?;
            let block = node.block();
            let contents = node.bytes().to_vec().into();
            self.overlay.write().put_node(nid, OverlayNode { inode, block, contents })?;
        }
        let edited = self.overlay.write().edit_node(nid, edit);
        Ok(edited.expect("the node is in the overlay"))
    }

    /// Changes the fields of an inode.
    pub(super) fn edit_inode<R>(
        &self,
        number: InodeNumber,
        edit: impl FnOnce(&mut RawInode) -> R,
    ) -> Result<R> {
        self.edit_node(nid_of(number), number, |bytes| {
            let (raw, _) = RawInode::mut_from_prefix(bytes).expect("a block is larger");
            edit(raw)
        })
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.overlay.write().counts);
    }

    /// Counts blocks of a file.
    pub(super) fn count_blocks(&self, inode: InodeNumber, more: i64) -> Result<()> {
        self.edit_inode(inode, |raw| {
            raw.blocks.set(raw.blocks.get().saturating_add_signed(more));
        })?;
        self.count(|counts| counts.blocks += more);
        Ok(())
    }

    /// Adds a node of zeroes to a file. Its number is one that is free in the checkpoint.
    pub(super) fn new_node(&mut self, inode: InodeNumber, position: u32) -> Result<Nid> {
        let nid = self.free_nid()?;
        self.put_new_node(nid, inode, position, FsBlock(0))?;
        self.count_blocks(inode, 1)?;
        Ok(nid)
    }

    /// Adds a node of zeroes with this number. `block` is for messages. The caller counts the blocks of the file.
    pub(super) fn put_new_node(
        &self,
        nid: Nid,
        inode: InodeNumber,
        position: u32,
        block: FsBlock,
    ) -> Result<()> {
        let mut contents = vec![0; self.volume.geometry().block_size.len()];
        let at = contents.len() - size_of::<RawNodeFooter>();
        let footer = RawNodeFooter::mut_from_bytes(&mut contents[at..]).expect("of this size");
        footer.nid.set(nid.0);
        footer.inode.set(inode.0 as u32);
        footer.flags.set(position << FLAG_BITS);
        let node = OverlayNode { inode, block, contents: contents.into() };
        self.overlay.write().put_node(nid, node)?;
        self.count(|counts| counts.nodes += 1);
        Ok(())
    }

    /// Returns whether no node has a number, and had it in the checkpoint.
    pub(super) fn is_free(&self, nid: Nid) -> bool {
        self.overlay.read().node(nid).is_none()
            && matches!(self.volume.node_address(nid), Err(Error::NotFound))
    }

    /// Returns a number that no node has.
    fn free_nid(&mut self) -> Result<Nid> {
        let count = self.volume.geometry().nid_count();
        let first = self.volume.geometry().root.0 as u32 + 1;
        for number in self.next_nid.max(first)..u32::try_from(count).unwrap_or(u32::MAX) {
            let nid = Nid(number);
            if self.is_free(nid) {
                self.next_nid = number + 1;
                return Ok(nid);
            }
        }
        Err(Error::NoSpace)
    }

    /// Makes a node's number free. The caller counts the blocks of the file.
    pub(super) fn free_node(&self, nid: Nid) -> Result<()> {
        self.overlay.write().free_node(nid)?;
        self.count(|counts| counts.nodes -= 1);
        Ok(())
    }

    /// Counts inodes.
    pub(super) fn count_inodes(&self, more: i64) {
        self.count(|counts| counts.inodes += more);
    }

    /// Counts blocks of a file whose inode is no more.
    pub(super) fn count_blocks_of_deleted(&self, more: i64) {
        self.count(|counts| counts.blocks += more);
    }

    /// Returns the slot with the address of a block. Adds missing nodes if `allocate`; otherwise returns `None` if
    /// one is missing.
    pub(super) fn slot_of(
        &mut self,
        number: InodeNumber,
        at: FileBlock,
        allocate: bool,
    ) -> Result<Option<Slot>> {
        let inode = self.inode(number)?;
        let record = inode.record();
        let in_inode = u64::from(record.address_count);
        if at.0 < in_inode {
            let first =
                Slot { inode: number, nid: nid_of(number), index: 0, byte: record.addresses_at };
            return Ok(Some(first.after(at.0 as u32)));
        }
        let Some((steps, start)) = inode.path(at.0 - in_inode) else {
            let location = Location::inode(number).at_file_block(at);
            return Err(Error::corrupt(STRUCTURE, location, Problem::Missing("room in the map")));
        };
        let (mut parent, mut table_at) = (nid_of(number), record.nodes_at);
        let mut first_block = in_inode + start;
        for (depth, step) in steps.iter().enumerate() {
            let byte = table_at + step.index as usize * WORD_BYTES;
            let mut nid = Nid(self.volume.node(parent, number)?.word(byte, 0)?);
            let position = step.position as u32;
            if nid.0 == 0 {
                if !allocate {
                    return Ok(None);
                }
                nid = self.new_node(number, position)?;
                self.set_word(parent, number, byte, nid.0)?;
            }
            // Checks the position of a node that exists.
            self.volume.node(nid, number)?.at_position(position)?;
            if depth > 0 {
                first_block += step.index * step.span;
            }
            (parent, table_at) = (nid, 0);
        }
        let first = Slot { inode: number, nid: parent, index: 0, byte: 0 };
        // A node has some thousand addresses at most.
        Ok(Some(first.after((at.0 - first_block) as u32)))
    }

    fn set_word(&self, nid: Nid, inode: InodeNumber, byte: usize, value: u32) -> Result<()> {
        self.edit_node(nid, inode, |bytes| {
            if let Some(word) = bytes.get_mut(byte..byte + WORD_BYTES) {
                word.copy_from_slice(&value.to_le_bytes());
            }
        })
    }

    /// Returns the address in a slot.
    pub(super) fn address(&self, slot: Slot) -> Result<u32> {
        self.volume.node(slot.nid, slot.inode)?.word(slot.byte, 0)
    }

    /// Stores an address in a slot. If it is that of a block, the slot becomes the block's owner. The caller has freed
    /// the old block.
    pub(super) fn set_address(&self, slot: Slot, address: u32) -> Result<()> {
        self.set_word(slot.nid, slot.inode, slot.byte, address)?;
        let block = FsBlock(address.into());
        if self.volume.geometry().main.contains(&block) {
            let used = BlockUse::Owned(slot.owner());
            self.overlay.write().set_block_use(block, used)?;
        }
        Ok(())
    }

    /// Frees the block in a slot, and leaves a hole.
    pub(super) fn free_slot(&self, slot: Slot) -> Result<()> {
        let address = self.address(slot)?;
        if address == NULL_ADDRESS {
            return Ok(());
        }
        self.set_word(slot.nid, slot.inode, slot.byte, NULL_ADDRESS)?;
        self.free_block(address)?;
        if counts(address) {
            self.count_blocks(slot.inode, -1)?;
        }
        Ok(())
    }

    /// Records that the block at `address` is free, if it is one of the main area.
    pub(super) fn free_block(&self, address: u32) -> Result<()> {
        let block = FsBlock(address.into());
        if self.volume.geometry().main.contains(&block) {
            self.overlay.write().set_block_use(block, BlockUse::Free)?;
        }
        Ok(())
    }

    /// Makes the hole in a slot a reserved block.
    pub(super) fn reserve_slot(&self, slot: Slot) -> Result<()> {
        self.set_word(slot.nid, slot.inode, slot.byte, NEW_ADDRESS)?;
        self.count_blocks(slot.inode, 1)
    }

    /// Calls `visit` for each node of a file but the inode, children before their parents. Each node is at the position
    /// that its parent gives it, so no node is visited twice.
    pub(super) fn for_each_node(
        &self,
        inode: &Inode,
        visit: &mut dyn FnMut(&Node, NodeKind) -> Result<()>,
    ) -> Result<()> {
        let nids = self.volume.geometry().addresses_per_node();
        let children = [
            (NodeKind::Direct, 1),
            (NodeKind::Direct, 2),
            (NodeKind::Indirect, 3),
            (NodeKind::Indirect, 4 + nids),
            (NodeKind::DoubleIndirect, 5 + 2 * nids),
        ];
        for (nid, (kind, position)) in inode.record().nodes.into_iter().zip(children) {
            self.visit_subtree(inode.number(), nid, kind, position, visit)?;
        }
        Ok(())
    }

    fn visit_subtree(
        &self,
        inode: InodeNumber,
        nid: u32,
        kind: NodeKind,
        position: u32,
        visit: &mut dyn FnMut(&Node, NodeKind) -> Result<()>,
    ) -> Result<()> {
        if nid == 0 {
            return Ok(());
        }
        let node = self.volume.node(Nid(nid), inode)?.at_position(position)?;
        let nids = self.volume.geometry().addresses_per_node();
        let (child, span) = match kind {
            NodeKind::Direct => return visit(&node, kind),
            NodeKind::Indirect => (NodeKind::Direct, 1),
            NodeKind::DoubleIndirect => (NodeKind::Indirect, nids + 1),
        };
        for (index, nid) in (0..).zip(node.words(0, 0, nids)) {
            self.visit_subtree(inode, nid, child, position + 1 + index * span, visit)?;
        }
        visit(&node, kind)
    }
}

/// A kind of node of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeKind {
    Direct,
    Indirect,
    DoubleIndirect,
}

/// Returns whether an address counts as a block of its file. The mark of a compressed cluster does not.
pub(super) fn counts(address: u32) -> bool {
    ![NULL_ADDRESS, crate::ondisk::node::COMPRESS_ADDRESS].contains(&address)
}

/// Returns the number of an inode's own node. Inode numbers that were read are in the node table.
pub(super) fn nid_of(inode: InodeNumber) -> Nid {
    Nid(inode.0 as u32)
}
