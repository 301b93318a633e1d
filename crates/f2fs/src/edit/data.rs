//! Changes of a file's map: addresses of written data, reserved blocks, holes, truncation.

use std::ops::Range;

use base::{FileBlock, FsBlock, InodeNumber, Result};

use super::nodes::{Editor, Slot, nid_of};
use super::position::{MapShape, NodeKind};
use crate::geometry::{Geometry, WORD_BYTES};
use crate::inode::map::BlockState;
use crate::nat::Nid;
use crate::ondisk::node::{NEW_ADDRESS, NULL_ADDRESS};

/// A range of addresses that are adjacent in a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    first: Slot,
    count: u32,
}

/// What blocks of a file had before they got other addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Replaced {
    /// The number of holes.
    pub(crate) holes: u64,
    /// The blocks of the device, in the order of the file.
    pub(crate) blocks: Vec<Range<FsBlock>>,
}

impl Replaced {
    /// Adds an address. One that is damaged is left out.
    fn add(&mut self, address: u32, geometry: &Geometry) {
        self.holes += u64::from(address == NULL_ADDRESS);
        let block = FsBlock(address.into());
        if !geometry.main.contains(&block) {
            return;
        }
        match self.blocks.last_mut() {
            Some(last) if last.end == block => last.end.0 += 1,
            _ => self.blocks.push(block..FsBlock(block.0 + 1)),
        }
    }
}

impl Editor<'_> {
    /// Returns the addresses of the first blocks of `blocks`, up to the end of their node. Adds
    /// missing nodes.
    pub(super) fn slots_of(
        &mut self,
        number: InodeNumber,
        blocks: &Range<FileBlock>,
    ) -> Result<Slots> {
        let first = self.slot_of(number, blocks.start, true)?.expect("missing nodes were added");
        let inode = self.inode(number)?;
        let record = inode.record();
        let is_inode = first.nid == nid_of(number);
        let in_node = if is_inode { record.address_count } else { record.addresses_per_node };
        let wanted = blocks.end.0 - blocks.start.0;
        // A node has some thousand addresses at most.
        let count = u64::from(in_node - first.index).min(wanted) as u32;
        Ok(Slots { first, count })
    }

    /// Replaces the addresses in `slots` by those that `change` returns for their indices and old
    /// values, and counts the blocks.
    pub(super) fn replace_addresses(
        &mut self,
        slots: Slots,
        mut change: impl FnMut(u32, u32) -> u32,
    ) -> Result<()> {
        let Slots { first, count } = slots;
        let inode = self.inode(first.inode)?;
        let main = &self.volume.geometry().main;
        let counts = |address| i64::from(inode.record().counts(address, main));
        let mut more = 0;
        self.edit_node(first.nid, first.inode, |bytes| {
            let words = bytes.get_mut(first.byte..).unwrap_or_default();
            for (index, word) in (0..count).zip(words.chunks_exact_mut(WORD_BYTES)) {
                let old = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                let new = change(index, old);
                more += counts(new) - counts(old);
                word.copy_from_slice(&new.to_le_bytes());
            }
        })?;
        if more != 0 { self.count_blocks(first.inode, more) } else { Ok(()) }
    }

    /// Counts blocks of a compressed file that compression saves, or does not save any more.
    pub(crate) fn count_saved_blocks(&self, number: InodeNumber, more: i64) -> Result<()> {
        self.edit_extra(number, |extra| {
            let saved = extra.compressed_blocks.get();
            extra.compressed_blocks.set(saved.saturating_add_signed(more));
        })
    }

    /// Replaces the addresses of the first blocks of a cluster by `slots`. Returns the holes and
    /// old blocks among them.
    pub(crate) fn set_cluster(
        &mut self,
        number: InodeNumber,
        first: FileBlock,
        slots: &[u32],
    ) -> Result<Replaced> {
        let blocks = first..FileBlock(first.0 + slots.len() as u64);
        let of_node = self.slots_of(number, &blocks)?;
        debug_assert_eq!(of_node.count as usize, slots.len(), "a cluster is in one node");
        let mut replaced = Replaced::default();
        let volume = self.volume;
        self.replace_addresses(of_node, |index, old| {
            let new = slots[index as usize];
            if (old, new) != (NULL_ADDRESS, NULL_ADDRESS) {
                replaced.add(old, volume.geometry());
            }
            new
        })?;
        Ok(replaced)
    }

    /// Adds the nodes that the addresses of `blocks` need.
    pub(crate) fn add_nodes(
        &mut self,
        number: InodeNumber,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            at.0 += u64::from(self.slots_of(number, &(at..blocks.end))?.count);
        }
        Ok(())
    }

    /// Gives the blocks of a file from `at` on the addresses `new`. Returns the holes and old
    /// blocks that these replace.
    pub(crate) fn set_addresses(
        &mut self,
        number: InodeNumber,
        at: FileBlock,
        new: Range<FsBlock>,
    ) -> Result<Replaced> {
        let (mut at, mut next, mut replaced) = (at, new.start, Replaced::default());
        let volume = self.volume;
        while next < new.end {
            let blocks = at..FileBlock(at.0 + (new.end.0 - next.0));
            let slots = self.slots_of(number, &blocks)?;
            self.replace_addresses(slots, |index, old| {
                replaced.add(old, volume.geometry());
                // Addresses have 32 bits.
                next.0 as u32 + index
            })?;
            at.0 += u64::from(slots.count);
            next.0 += u64::from(slots.count);
        }
        Ok(replaced)
    }

    /// Reserves the holes among `blocks`. With `clears`, also makes blocks with data reserved ones.
    pub(crate) fn reserve_blocks(
        &mut self,
        number: InodeNumber,
        blocks: Range<FileBlock>,
        clears: bool,
    ) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let slots = self.slots_of(number, &(at..blocks.end))?;
            self.replace_addresses(slots, |_, old| {
                if clears || old == NULL_ADDRESS { NEW_ADDRESS } else { old }
            })?;
            at.0 += u64::from(slots.count);
        }
        Ok(())
    }

    /// Returns the number of holes among `ranges` of a file.
    pub(crate) fn count_holes(
        &self,
        number: InodeNumber,
        ranges: &[Range<FileBlock>],
    ) -> Result<u64> {
        let (inode, mut holes) = (self.inode(number)?, 0);
        for blocks in ranges {
            let mut at = blocks.start;
            while at < blocks.end {
                let piece = inode.piece_at(at, blocks.end)?;
                let end = piece.end.min(blocks.end);
                if piece.state == BlockState::Hole {
                    holes += end.0 - at.0;
                }
                at = end;
            }
        }
        Ok(holes)
    }

    /// Makes blocks of a file holes. Nodes stay.
    pub(crate) fn free_blocks(
        &mut self,
        number: InodeNumber,
        blocks: Range<FileBlock>,
    ) -> Result<()> {
        self.free_some_blocks(number, blocks, usize::MAX).map(drop)
    }

    /// Does a part of [`free_blocks`](Self::free_blocks) that changes at most `nodes_max` nodes
    /// with addresses. Returns the block after the part.
    pub(crate) fn free_some_blocks(
        &mut self,
        number: InodeNumber,
        blocks: Range<FileBlock>,
        nodes_max: usize,
    ) -> Result<FileBlock> {
        let (mut at, mut nodes, mut last) = (blocks.start, 0, None);
        while at < blocks.end {
            let piece = self.inode(number)?.piece_at(at, blocks.end)?;
            if piece.state == BlockState::Hole {
                at = piece.end;
                continue;
            }
            let slots = self.slots_of(number, &(at..piece.end.min(blocks.end)))?;
            if last.replace(slots.first.nid) != Some(slots.first.nid) {
                if nodes == nodes_max {
                    break;
                }
                nodes += 1;
            }
            self.replace_addresses(slots, |_, _| NULL_ADDRESS)?;
            at.0 += u64::from(slots.count);
        }
        Ok(at)
    }

    /// Moves the blocks of a file from `from` on to `to`. `end` is the end of the file's blocks.
    /// What the range between the two places had is freed if the blocks move to the front, and is a
    /// hole if they move to the back.
    pub(crate) fn shift(
        &mut self,
        number: InodeNumber,
        from: FileBlock,
        to: FileBlock,
        end: FileBlock,
    ) -> Result<()> {
        // A recovery replays nodes one by one, and blocks move between them.
        self.overlay.write().set_unsyncable(number);
        let moved = self.runs(number, from..end)?;
        self.free_blocks(number, from.min(to)..end)?;
        for (at, addresses) in &moved {
            self.put_addresses(number, FileBlock(at.0 - from.0 + to.0), addresses)?;
        }
        Ok(())
    }

    /// Stores addresses of blocks of a file from `at` on.
    fn put_addresses(
        &mut self,
        number: InodeNumber,
        at: FileBlock,
        addresses: &[u32],
    ) -> Result<()> {
        let (mut at, mut rest) = (at, addresses);
        while !rest.is_empty() {
            let slots = self.slots_of(number, &(at..FileBlock(at.0 + rest.len() as u64)))?;
            let (these, others) = rest.split_at(slots.count as usize);
            self.replace_addresses(slots, |index, _| these[index as usize])?;
            at.0 += u64::from(slots.count);
            rest = others;
        }
        Ok(())
    }

    /// Returns the addresses of blocks of a file in runs that have no holes, with the first block
    /// of each run.
    fn runs(
        &self,
        number: InodeNumber,
        blocks: Range<FileBlock>,
    ) -> Result<Vec<(FileBlock, Vec<u32>)>> {
        let inode = self.inode(number)?;
        let mut runs: Vec<(FileBlock, Vec<u32>)> = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let piece = inode.piece_at(at, blocks.end)?;
            let end = piece.end.min(blocks.end);
            let address = |distance: u64| match piece.state {
                BlockState::Hole => NULL_ADDRESS,
                BlockState::Reserved => NEW_ADDRESS,
                // Addresses have 32 bits.
                BlockState::Mapped(first) | BlockState::Compressed(first) => {
                    (first.0 + distance) as u32
                }
            };
            if piece.state != BlockState::Hole {
                match runs.last_mut() {
                    Some((start, run)) if start.0 + run.len() as u64 == at.0 => {
                        run.extend((0..end.0 - at.0).map(address));
                    }
                    _ => runs.push((at, (0..end.0 - at.0).map(address).collect())),
                }
            }
            at = end;
        }
        Ok(runs)
    }

    /// Frees the blocks of a file from `end` on, and the nodes that only map such blocks.
    pub(crate) fn truncate(&mut self, number: InodeNumber, end: FileBlock) -> Result<()> {
        let inode = self.inode(number)?;
        let record = inode.record();
        let in_inode = u64::from(record.address_count);
        if end.0 < in_inode {
            let first =
                Slot { inode: number, nid: nid_of(number), index: 0, byte: record.addresses_at };
            let count = (in_inode - end.0) as u32;
            let slots = Slots { first: first.after(end.0 as u32), count };
            self.replace_addresses(slots, |_, _| NULL_ADDRESS)?;
        }
        let geometry = self.volume.geometry();
        let shape = MapShape::of(record, geometry);
        let children = NodeKind::below_inode(geometry.addresses_per_node());
        let mut start = in_inode;
        for (index, (nid, (kind, position))) in (0..).zip(record.nodes.into_iter().zip(children)) {
            let span = kind.span(shape);
            let parent = Child { nid: nid_of(number), byte: record.nodes_at + index * WORD_BYTES };
            let subtree = Subtree { nid: Nid(nid), kind, position, start, span };
            self.truncate_subtree(number, parent, &subtree, end.0)?;
            start += span;
        }
        Ok(())
    }

    fn truncate_subtree(
        &mut self,
        number: InodeNumber,
        parent: Child,
        subtree: &Subtree,
        end: u64,
    ) -> Result<()> {
        let Subtree { nid, kind, position, start, span } = *subtree;
        if nid.0 == 0 || end >= start + span {
            return Ok(());
        }
        if end <= start {
            let freed = self.free_subtree(number, nid, kind, position)?;
            self.set_word(parent.nid, number, parent.byte, 0)?;
            return self.count_blocks(number, -freed);
        }
        let node = self.volume.node(nid, number)?.at_position(position)?;
        let nids = self.volume.geometry().addresses_per_node();
        let Some((child_kind, positions)) = kind.child(nids) else {
            let first = Slot { inode: number, nid, index: 0, byte: 0 };
            let slots = Slots {
                first: first.after((end - start) as u32),
                count: (start + span - end) as u32,
            };
            return self.replace_addresses(slots, |_, _| NULL_ADDRESS);
        };
        let child_span = span / u64::from(nids);
        let children: Vec<u32> = node.words(0, 0, nids).collect();
        for (index, child) in (0..).zip(children) {
            let subtree = Subtree {
                nid: Nid(child),
                kind: child_kind,
                position: position + 1 + index * positions,
                start: start + u64::from(index) * child_span,
                span: child_span,
            };
            let parent = Child { nid, byte: index as usize * WORD_BYTES };
            self.truncate_subtree(number, parent, &subtree, end)?;
        }
        Ok(())
    }

    /// Frees a node and all below it. Returns the number of freed blocks.
    fn free_subtree(
        &mut self,
        number: InodeNumber,
        nid: Nid,
        kind: NodeKind,
        position: u32,
    ) -> Result<i64> {
        let inode = self.inode(number)?;
        // A recovery would leave the node.
        self.overlay.write().set_unsyncable(number);
        let mut blocks = 0;
        self.visit_subtree(number, nid.0, kind, position, &mut |node, kind| {
            self.free_map_node(inode.record(), (node, kind), &mut blocks)
        })?;
        Ok(blocks)
    }
}

/// The place of a node's number in its parent.
#[derive(Clone, Copy, Debug)]
struct Child {
    /// The parent.
    nid: Nid,
    /// The byte of the number.
    byte: usize,
}

/// A node, and what it maps.
#[derive(Clone, Copy, Debug)]
struct Subtree {
    nid: Nid,
    kind: NodeKind,
    position: u32,
    /// The first block.
    start: u64,
    /// The number of blocks.
    span: u64,
}
