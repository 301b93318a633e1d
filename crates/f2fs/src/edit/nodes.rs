//! Changes of nodes in the overlay: of inodes, of the addresses of files, and new and freed nodes.
//! Not here: which changes an operation or a recovery makes.

use std::sync::Arc;

use base::locks::RankedRwLock;
use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result, Unsupported};
use zerocopy::{FromBytes, IntoBytes};

use super::position::NodeKind;
use crate::core::Core;
use crate::geometry::WORD_BYTES;
use crate::inode::Inode;
use crate::inode::record::{InodeRecord, inline};
use crate::nat::Nid;
use crate::node::{FLAG_BITS, Node, footer_mut};
use crate::ondisk::node::{NEW_ADDRESS, NULL_ADDRESS, RawExtraAttributes, RawInode};
use crate::overlay::{BlockUse, Change, Counts, Overlay, OverlayNode, Owner};

/// An address in a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) inode: InodeNumber,
    pub(crate) nid: Nid,
    /// The index of the address in the node. In inodes, counted from the first address.
    pub(crate) index: u32,
    /// The address's byte in the node.
    pub(crate) byte: usize,
}

impl Slot {
    /// Returns the slot so many addresses behind this one.
    pub(crate) fn after(self, distance: u32) -> Self {
        let byte = self.byte + distance as usize * WORD_BYTES;
        Self { index: self.index + distance, byte, ..self }
    }

    pub(crate) fn owner(self) -> Owner {
        // Nodes have some thousand addresses at most.
        Owner { nid: self.nid, index: self.index as u16 }
    }
}

/// The name of a map in errors.
const STRUCTURE: &str = "block map";

/// The volume and the changes of its nodes.
pub(crate) struct Editor<'v> {
    pub(crate) volume: &'v Arc<Core>,
    pub(crate) overlay: &'v RankedRwLock<Overlay>,
    /// The number from which on a free one is searched.
    pub(crate) next_nid: u32,
}

impl<'v> Editor<'v> {
    pub(crate) fn new(volume: &'v Arc<Core>) -> Self {
        Self { volume, overlay: volume.overlay_or_new(), next_nid: 0 }
    }

    pub(crate) fn inode(&self, number: InodeNumber) -> Result<Inode> {
        self.volume.inode(number)
    }

    /// Changes the contents of a node of `inode`.
    pub(crate) fn edit_node<R>(
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
            self.overlay
                .write()
                .put_node(nid, OverlayNode { inode, block, contents, is_synced: false })?;
        }
        let edited = self.overlay.write().edit_node(nid, edit);
        Ok(edited.expect("the node is in the overlay"))
    }

    /// Changes the fields of an inode.
    pub(crate) fn edit_inode<R>(
        &self,
        number: InodeNumber,
        edit: impl FnOnce(&mut RawInode) -> R,
    ) -> Result<R> {
        self.edit_node(nid_of(number), number, |bytes| {
            let (raw, _) = RawInode::mut_from_prefix(bytes).expect("a block is larger");
            edit(raw)
        })
    }

    /// Changes the extra attributes of an inode. Errors: `Unsupported` if it does not have those
    /// that `edit` changes: the words in their place are others.
    pub(crate) fn edit_extra(
        &self,
        number: InodeNumber,
        edit: impl FnOnce(&mut RawExtraAttributes),
    ) -> Result<()> {
        let has_extra = self.edit_inode(number, |raw| raw.inline & inline::EXTRA != 0)?;
        let is_stored = self.edit_node(nid_of(number), number, |bytes| {
            let start = size_of::<RawInode>();
            let stored = &bytes[start..start + size_of::<RawExtraAttributes>()];
            let before = RawExtraAttributes::read_from_bytes(stored).expect("of this size");
            let mut extra = before.clone();
            edit(&mut extra);
            let length = usize::from(extra.size.get()).min(size_of::<RawExtraAttributes>());
            let length = if has_extra { length } else { 0 };
            let (changed, others) = extra.as_bytes().split_at(length);
            bytes[start..start + length].copy_from_slice(changed);
            others == &before.as_bytes()[length..]
        })?;
        if is_stored {
            return Ok(());
        }
        let feature = "attributes for which the inode has no room";
        Err(Unsupported::Inode { inode: number, feature }.into())
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.overlay.write().counts);
    }

    /// Counts blocks of a file. Errors: `Corrupt` if the inode's own count is wrong, so that the
    /// result is not possible.
    pub(crate) fn count_blocks(&self, inode: InodeNumber, more: i64) -> Result<()> {
        let possible = 1..=self.volume.geometry().block_count;
        let counted = self.edit_inode(inode, |raw| {
            let found = raw.blocks.get();
            let new = found.checked_add_signed(more).filter(|new| possible.contains(new));
            raw.blocks.set(new.unwrap_or(found));
            if new.is_some() { Ok(()) } else { Err(found) }
        })?;
        if let Err(found) = counted {
            let problem = Problem::Invalid { field: "blocks", found };
            return Err(Error::corrupt("inode", Location::inode(inode), problem));
        }
        self.count(|counts| counts.blocks += more);
        Ok(())
    }

    /// Adds a node of zeroes to a file. Its number is one that is free in the checkpoint.
    pub(crate) fn new_node(&mut self, inode: InodeNumber, position: u32) -> Result<Nid> {
        let nid = self.free_nid()?;
        self.put_new_node(nid, inode, position, FsBlock(0))?;
        self.count_blocks(inode, 1)?;
        Ok(nid)
    }

    /// Adds a node of zeroes with this number. `block` is for messages. The caller counts the
    /// blocks of the file.
    pub(crate) fn put_new_node(
        &self,
        nid: Nid,
        inode: InodeNumber,
        position: u32,
        block: FsBlock,
    ) -> Result<()> {
        let mut contents = vec![0; self.volume.geometry().block_size.len()];
        let footer = footer_mut(&mut contents);
        footer.nid.set(nid.0);
        footer.inode.set(inode.0 as u32);
        footer.flags.set(position << FLAG_BITS);
        let node = OverlayNode { inode, block, contents: contents.into(), is_synced: false };
        self.overlay.write().put_node(nid, node)?;
        self.count(|counts| counts.nodes += 1);
        Ok(())
    }

    /// Returns whether no node has a number, and had it in the checkpoint. Those of quota files are
    /// never free: an inode with such a number could not be looked up.
    pub(crate) fn is_free(&self, nid: Nid) -> bool {
        let number = InodeNumber(nid.0.into());
        !self.volume.superblock().quota_files().contains(&Some(number))
            && self.overlay.read().node(nid).is_none()
            && matches!(self.volume.node_address(nid), Err(Error::NotFound))
    }

    /// Returns a number that no node has.
    pub(super) fn free_nid(&mut self) -> Result<Nid> {
        let count = self.volume.geometry().nid_count();
        let first = self.volume.geometry().root.0 as u32 + 1;
        let end = u32::try_from(count).unwrap_or(u32::MAX);
        let from = self.next_nid.clamp(first, end.max(first));
        for number in (from..end).chain(first..from) {
            let nid = Nid(number);
            if self.is_free(nid) {
                self.next_nid = number + 1;
                return Ok(nid);
            }
        }
        Err(Error::NoSpace)
    }

    /// Makes a node's number free. The caller counts the blocks of the file.
    pub(crate) fn free_node(&self, nid: Nid) -> Result<()> {
        self.overlay.write().free_node(nid)?;
        self.count(|counts| counts.nodes -= 1);
        Ok(())
    }

    /// Counts inodes.
    pub(crate) fn count_inodes(&self, more: i64) {
        self.count(|counts| counts.inodes += more);
    }

    /// Counts blocks of a file whose inode is no more.
    pub(crate) fn count_blocks_of_deleted(&self, more: i64) {
        self.count(|counts| counts.blocks += more);
    }

    /// Returns the slot with the address of a block. Adds missing nodes if `allocate`; otherwise
    /// returns `None` if one is missing.
    pub(crate) fn slot_of(
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
            if allocate {
                return Err(Error::FileTooLarge);
            }
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

    pub(super) fn set_word(
        &self,
        nid: Nid,
        inode: InodeNumber,
        byte: usize,
        value: u32,
    ) -> Result<()> {
        self.edit_node(nid, inode, |bytes| {
            if let Some(word) = bytes.get_mut(byte..byte + WORD_BYTES) {
                word.copy_from_slice(&value.to_le_bytes());
            }
        })
    }

    /// Returns the address in a slot.
    pub(crate) fn address(&self, slot: Slot) -> Result<u32> {
        self.volume.node(slot.nid, slot.inode)?.word(slot.byte, 0)
    }

    /// Stores an address in a slot. If it is that of a block, the slot becomes the block's owner.
    /// The caller has freed the old block.
    pub(crate) fn set_address(&self, slot: Slot, address: u32) -> Result<()> {
        self.set_word(slot.nid, slot.inode, slot.byte, address)?;
        let block = FsBlock(address.into());
        if self.volume.geometry().main.contains(&block) {
            let used = BlockUse::Owned(slot.owner());
            self.overlay.write().set_block_use(block, used)?;
        }
        Ok(())
    }

    /// Frees the block in a slot, and leaves a hole.
    pub(crate) fn free_slot(&self, slot: Slot) -> Result<()> {
        let address = self.address(slot)?;
        if address == NULL_ADDRESS {
            return Ok(());
        }
        self.set_word(slot.nid, slot.inode, slot.byte, NULL_ADDRESS)?;
        self.free_block(address)?;
        if self.inode(slot.inode)?.record().counts(address, &self.volume.geometry().main) {
            self.count_blocks(slot.inode, -1)?;
        }
        Ok(())
    }

    /// Records that the block at `address` is free, if it is one of the main area.
    pub(crate) fn free_block(&self, address: u32) -> Result<()> {
        let block = FsBlock(address.into());
        if self.volume.geometry().main.contains(&block) {
            self.overlay.write().set_block_use(block, BlockUse::Free)?;
        }
        Ok(())
    }

    /// Makes the hole in a slot a reserved block.
    pub(crate) fn reserve_slot(&self, slot: Slot) -> Result<()> {
        self.set_word(slot.nid, slot.inode, slot.byte, NEW_ADDRESS)?;
        self.count_blocks(slot.inode, 1)
    }

    /// Calls `visit` for each node of a file but the inode, children before their parents. Each
    /// node is at the position that its parent gives it, so no node is visited twice.
    pub(crate) fn for_each_node(
        &self,
        inode: &Inode,
        visit: &mut dyn FnMut(&Node, NodeKind) -> Result<()>,
    ) -> Result<()> {
        let children = NodeKind::below_inode(self.volume.geometry().addresses_per_node());
        for (nid, (kind, position)) in inode.record().nodes.into_iter().zip(children) {
            self.visit_subtree(inode.number(), nid, kind, position, visit)?;
        }
        Ok(())
    }

    pub(super) fn visit_subtree(
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
        if let Some((child, positions)) = kind.child(nids) {
            for (index, nid) in (0..).zip(node.words(0, 0, nids)) {
                self.visit_subtree(inode, nid, child, position + 1 + index * positions, visit)?;
            }
        }
        visit(&node, kind)
    }

    /// Frees a node of a file's map. Adds it, and the data that the addresses of a direct node
    /// refer to, to `blocks`.
    pub(super) fn free_map_node(
        &self,
        record: &InodeRecord,
        (node, kind): (&Node, NodeKind),
        blocks: &mut i64,
    ) -> Result<()> {
        if kind == NodeKind::Direct {
            let addresses = node.words(0, 0, record.addresses_per_node);
            *blocks += record.counted(addresses, &self.volume.geometry().main);
        }
        *blocks += 1;
        self.free_node(node.nid)
    }
}

/// Returns the number of an inode's own node. Inode numbers that were read are in the node table.
pub(crate) fn nid_of(inode: InodeNumber) -> Nid {
    Nid(inode.0 as u32)
}
