//! Replay of synced nodes: new inodes, attributes, extended attributes, inline data, addresses.
//! Not here: names (`names`).

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Location, Problem, Result};
use zerocopy::FromBytes;

use super::chain::ChainNode;
use super::plan::PlannedInode;
use super::segments::Segments;
use super::slots::{SlotStep, size_after, slot_step};
use super::{RecoveryReport, STRUCTURE, names};
use crate::edit::{Editor, MapShape, Slot, delete_inode, first_block, free_data, nid_of};
use crate::features::Feature;
use crate::inode::record::{InodeRecord, flags, impossible_advice, inline};
use crate::node::{Node, XATTR_POSITION};
use crate::ondisk::node::{NULL_ADDRESS, RawExtraAttributes, RawInode, RawNodeFooter, advise};
use crate::xattr::entries::{Entries, whole_entries};

/// The replay of a chain.
pub(super) struct Replay<'r, 'v> {
    pub(super) editor: &'r mut Editor<'v>,
    pub(super) chain: &'r [ChainNode],
    pub(super) planned: &'r HashMap<InodeNumber, PlannedInode>,
    pub(super) report: &'r mut RecoveryReport,
    /// The use of blocks in the checkpoint, once it was needed.
    pub(super) segments: Option<Segments>,
    /// The extended attributes in replayed inodes before those that go on in a node.
    pub(super) xattrs_before: HashMap<InodeNumber, Vec<u8>>,
}

impl Replay<'_, '_> {
    /// Creates new inodes, then replays the planned nodes in the order of the chain.
    pub(super) fn run(mut self) -> Result<()> {
        // All numbers of new inodes are taken before numbers for other nodes are chosen.
        for created_by in self.planned.values().filter_map(|inode| inode.created_by) {
            self.create_inode(self.chain[created_by])?;
            self.report.inodes_created += 1;
        }
        let mut unlinked = BTreeSet::new();
        for (index, node) in self.chain.iter().enumerate() {
            let Some(planned) = self.planned.get(&node.inode) else { continue };
            if index > planned.last {
                continue;
            }
            self.replay(node, planned.named_by == Some(index), &mut unlinked)?;
            self.report.nodes_replayed += 1;
        }
        self.report.inodes_recovered = self.planned.len() as u64;
        self.keep_xattrs()?;
        for number in unlinked {
            let inode = self.editor.inode(number)?;
            delete_inode(self.editor, &inode)?;
            self.report.orphans_deleted += 1;
        }
        Ok(())
    }

    /// Reads a node of the chain.
    fn read(&self, node: &ChainNode) -> Result<Node> {
        let volume = self.editor.volume;
        let buffer = volume.metadata().read(node.block, STRUCTURE, node.location())?;
        Node::new(buffer, node.nid, node.inode)
    }

    /// Reads an inode of the chain. Only regular files are in it, since Linux writes a checkpoint
    /// for all others.
    fn read_inode(&self, node: &ChainNode) -> Result<(Node, InodeRecord)> {
        let found = self.read(node)?.at_position(0)?;
        let record = InodeRecord::parse(&found, self.editor.volume.geometry())?;
        if record.attributes.kind != FileType::Regular {
            let found = record.attributes.mode().into();
            let problem = Problem::Invalid { field: "mode", found };
            return Err(Error::corrupt(STRUCTURE, node.location(), problem));
        }
        Ok((found, record))
    }

    /// Creates an inode without data and extended attributes.
    fn create_inode(&mut self, created_by: ChainNode) -> Result<()> {
        let (node, _) = self.read_inode(&created_by)?;
        let number = created_by.inode;
        let geometry = self.editor.volume.geometry();
        let (max, min) = (geometry.nid_count().saturating_sub(1), geometry.root.0 + 1);
        if !(min..=max).contains(&number.0) || !self.editor.is_free(created_by.nid) {
            let problem = Problem::Range { field: "new inode number", found: number.0, min, max };
            return Err(Error::corrupt(STRUCTURE, created_by.location(), problem));
        }
        let mut fixed = raw_inode(&node)?.clone();
        fixed.size.set(0);
        fixed.blocks.set(1);
        fixed.links.set(1);
        fixed.xattr_nid.set(0);
        fixed.inline &= inline::XATTR | inline::EXTRA;
        fixed.advise &= !impossible_advice(geometry.features);
        let flags = fixed.flags.get() & !flags::impossible(FileType::Regular, geometry.features);
        fixed.flags.set(flags);
        fixed.extent = Default::default();
        let extra = (fixed.inline & inline::EXTRA != 0).then(|| self.new_extra(&node));
        self.editor.put_new_node(created_by.nid, number, 0, created_by.block)?;
        self.editor.edit_inode(number, |raw| *raw = fixed)?;
        if let Some(extra) = extra {
            self.editor.edit_extra(number, |raw| *raw = extra)?;
        }
        self.editor.count_inodes(1);
        self.editor.count_blocks_of_deleted(1);
        Ok(())
    }

    /// Returns the extra attributes of a new inode: those that its block in the chain has, but none
    /// of compression.
    fn new_extra(&self, node: &Node) -> RawExtraAttributes {
        let features = &self.editor.volume.geometry().features;
        let bytes = node.bytes().get(size_of::<RawInode>()..).unwrap_or_default();
        let found = RawExtraAttributes::read_from_prefix(bytes).map(|(raw, _)| raw);
        let found = found.unwrap_or_default();
        let mut extra = RawExtraAttributes { size: found.size, ..RawExtraAttributes::default() };
        let fits = |end| usize::from(found.size.get()) >= end;
        if features.has(Feature::FlexibleInlineXattr) {
            extra.inline_xattr_words = found.inline_xattr_words;
        }
        if features.has(Feature::ProjectQuota) && fits(extra_end::PROJECT) {
            extra.project = found.project;
        }
        if features.has(Feature::InodeCreationTime) && fits(extra_end::CREATED) {
            extra.created = found.created;
            extra.created_nsec = found.created_nsec;
        }
        extra
    }

    /// Replays a node. If `with_name`, also recovers the name of its inode.
    fn replay(
        &mut self,
        node: &ChainNode,
        with_name: bool,
        unlinked: &mut BTreeSet<InodeNumber>,
    ) -> Result<()> {
        let mut replayed_record = None;
        let replayed = if node.is_inode() {
            let (replayed, record) = self.read_inode(node)?;
            self.recover_attributes(node.inode, &replayed)?;
            if with_name {
                let recovered = names::recover_name(self.editor, node, raw_inode(&replayed)?)?;
                self.note_name(recovered, unlinked)?;
            }
            self.recover_inline_xattrs(node, &replayed, &record)?;
            replayed_record = Some(record);
            replayed
        } else {
            let replayed = self.read(node)?;
            if node.position == XATTR_POSITION {
                return self.recover_xattr_node(node.inode, &replayed);
            }
            replayed
        };
        let is_inline =
            self.recover_inline_data(node.inode, &replayed, replayed_record.as_ref())?;
        if is_inline {
            return Ok(());
        }
        self.recover_addresses(node, &replayed, replayed_record.as_ref())
    }

    /// Deletes the inode that had a recovered name before, if that was its last name.
    fn note_name(
        &mut self,
        recovered: names::RecoveredName,
        unlinked: &mut BTreeSet<InodeNumber>,
    ) -> Result<()> {
        self.report.names_added += u64::from(recovered.is_new);
        let Some(replaced) = recovered.replaced else { return Ok(()) };
        self.report.names_replaced += 1;
        let inode = self.editor.inode(replaced)?;
        if inode.attributes().links > 0 {
            return Ok(());
        }
        if self.planned.contains_key(&replaced) {
            // Its nodes are still to be replayed.
            unlinked.insert(replaced);
            return Ok(());
        }
        delete_inode(self.editor, &inode)?;
        self.report.orphans_deleted += 1;
        Ok(())
    }

    /// Recovers the attributes of an inode, but not its number of links.
    fn recover_attributes(&mut self, number: InodeNumber, replayed: &Node) -> Result<()> {
        let found = raw_inode(replayed)?;
        let kind = self.editor.inode(number)?.attributes().kind;
        if kind != FileType::Regular {
            let problem = Problem::Invalid { field: "mode", found: kind.mode_bits().into() };
            return Err(Error::corrupt(STRUCTURE, replayed.location(), problem));
        }
        // What the volume has no feature for was not written by a sync, and would be damage.
        let features = self.editor.volume.geometry().features;
        let kept_advise = !impossible_advice(features);
        let kept_flags = !flags::impossible(kind, features);
        let inline_flags = inline::PINNED | inline::DATA_EXISTS;
        self.editor.edit_inode(number, |raw| {
            raw.mode = found.mode;
            raw.uid = found.uid;
            raw.gid = found.gid;
            raw.size = found.size;
            (raw.atime, raw.atime_nsec) = (found.atime, found.atime_nsec);
            (raw.ctime, raw.ctime_nsec) = (found.ctime, found.ctime_nsec);
            (raw.mtime, raw.mtime_nsec) = (found.mtime, found.mtime_nsec);
            raw.advise = found.advise & kept_advise;
            raw.flags.set(found.flags.get() & kept_flags);
            // The lower half counts failures of cleaning a pinned file.
            raw.current_depth
                .set(raw.current_depth.get() & 0xFFFF_0000 | found.current_depth.get() & 0xFFFF);
            raw.inline = raw.inline & !inline_flags | found.inline & inline_flags;
        })?;
        self.recover_project(number, replayed)
    }

    fn recover_project(&mut self, number: InodeNumber, replayed: &Node) -> Result<()> {
        let features = &self.editor.volume.geometry().features;
        if raw_inode(replayed)?.inline & inline::EXTRA == 0 || !features.has(Feature::ProjectQuota)
        {
            return Ok(());
        }
        let bytes = replayed.bytes().get(size_of::<RawInode>()..).unwrap_or_default();
        let Ok((found, _)) = RawExtraAttributes::read_from_prefix(bytes) else { return Ok(()) };
        let fits = |extra: &RawExtraAttributes| usize::from(extra.size.get()) >= extra_end::PROJECT;
        let has_extra = self.editor.edit_inode(number, |raw| raw.inline & inline::EXTRA != 0)?;
        if !has_extra || !fits(&found) {
            return Ok(());
        }
        self.editor.edit_extra(number, |raw| {
            if fits(raw) {
                raw.project = found.project;
            }
        })
    }

    fn recover_inline_xattrs(
        &mut self,
        node: &ChainNode,
        replayed: &Node,
        record: &InodeRecord,
    ) -> Result<()> {
        let has = raw_inode(replayed)?.inline & inline::XATTR;
        self.note_xattrs_before(node.inode, replayed, &record.inline_xattrs)?;
        self.editor.edit_inode(node.inode, |raw| raw.inline = raw.inline & !inline::XATTR | has)?;
        let now = self.editor.inode(node.inode)?;
        let place = now.record().inline_xattrs.clone();
        if place != record.inline_xattrs {
            let (found, expected) = (record.inline_xattrs.len() as u64, place.len() as u64);
            let field = "inline extended attributes' size";
            let problem = Problem::Mismatch { field, found, expected };
            return Err(Error::corrupt(STRUCTURE, node.location(), problem));
        }
        self.copy(node.inode, replayed, place)
    }

    /// Notes the attributes in an inode, before they are replaced by the first part of a list that
    /// goes on in a node.
    fn note_xattrs_before(
        &mut self,
        number: InodeNumber,
        replayed: &Node,
        place: &Range<usize>,
    ) -> Result<()> {
        let location = Location::inode(number);
        let replayed = replayed.bytes().get(place.clone()).unwrap_or_default();
        if Entries::parse(replayed, location).is_ok() {
            return Ok(());
        }
        let inode = self.editor.inode(number)?;
        let is_whole = |list: &Vec<u8>| Entries::parse(list, location).is_ok();
        // Otherwise the node of the list is damaged, which is found by those who read it.
        if inode.xattr_bytes().is_ok_and(|list| is_whole(&list)) {
            let node = self.editor.volume.inode_node(number)?;
            let before = node.bytes().get(inode.record().inline_xattrs.clone());
            self.xattrs_before.insert(number, before.unwrap_or_default().to_vec());
        }
        Ok(())
    }

    /// Gives back the attributes in inodes to those whose lists go on in a node that is not in the
    /// chain. Linux marks each node that fsync(2) writes, so that a power cut between two of them
    /// leaves a list without its end. A new inode keeps the attributes that are whole.
    fn keep_xattrs(&mut self) -> Result<()> {
        for (number, before) in std::mem::take(&mut self.xattrs_before) {
            let location = Location::inode(number);
            let inode = self.editor.inode(number)?;
            let place = inode.record().inline_xattrs.clone();
            // The list was readable before, or a node of the chain goes on with it.
            let list = inode.xattr_bytes()?;
            if Entries::parse(&list, location).is_ok() {
                continue;
            }
            tracing::warn!(inode = number.0, "the extended attributes were not synced completely");
            self.report.xattrs_kept += 1;
            let has_before = before.len() == place.len() && before.iter().any(|byte| *byte != 0);
            self.editor.edit_node(nid_of(number), number, |bytes| {
                let Some(bytes) = bytes.get_mut(place) else { return };
                if has_before {
                    bytes.copy_from_slice(&before);
                } else {
                    let whole = whole_entries(bytes);
                    bytes[whole..].fill(0);
                }
            })?;
        }
        Ok(())
    }

    /// Copies bytes of a replayed inode to the inode.
    fn copy(&self, inode: InodeNumber, replayed: &Node, place: Range<usize>) -> Result<()> {
        self.editor.edit_node(nid_of(inode), inode, |bytes| {
            let found = replayed.bytes().get(place.clone());
            if let (Some(to), Some(found)) = (bytes.get_mut(place), found) {
                to.copy_from_slice(found);
            }
        })
    }

    /// Replaces the node with extended attributes. One that is damaged stays, and belongs to
    /// nothing.
    fn recover_xattr_node(&mut self, number: InodeNumber, replayed: &Node) -> Result<()> {
        let inode = self.editor.inode(number)?;
        match self.editor.free_xattrs(&inode) {
            Err(error @ Error::Corrupt(_)) => {
                tracing::warn!(%error, "a damaged node of extended attributes is replaced");
            }
            freed => freed?,
        }
        let nid = self.editor.new_xattr_node(number)?;
        let length = replayed.bytes().len() - size_of::<RawNodeFooter>();
        self.editor.edit_node(nid, number, |bytes| {
            bytes[..length].copy_from_slice(&replayed.bytes()[..length]);
        })
    }

    /// Recovers inline data. Returns whether the replayed node is an inode that has it.
    ///
    /// | before | replayed | |
    /// |---|---|---|
    /// | inline | inline | the data is copied |
    /// | inline | blocks | the data is removed |
    /// | blocks | inline | the blocks are freed, and the data is copied |
    /// | blocks | blocks | nothing changes |
    fn recover_inline_data(
        &mut self,
        number: InodeNumber,
        replayed: &Node,
        record: Option<&InodeRecord>,
    ) -> Result<bool> {
        let now = self.editor.inode(number)?;
        let area = record.and_then(|record| record.inline_area.clone());
        if let Some(area) = area {
            if now.record().inline_area.is_none() {
                free_data(self.editor, &now)?;
            }
            self.editor.edit_inode(number, |raw| {
                raw.inline |= inline::DATA | inline::DATA_EXISTS;
            })?;
            let place = self.editor.inode(number)?.record().inline_area.clone();
            if place.as_ref() != Some(&area) {
                let (found, expected) =
                    (area.len() as u64, place.map_or(0, |place| place.len()) as u64);
                let problem = Problem::Mismatch { field: "inline data's size", found, expected };
                return Err(Error::corrupt(STRUCTURE, replayed.location(), problem));
            }
            self.copy(number, replayed, area)?;
            return Ok(true);
        }
        self.editor.take_inline(number)?;
        Ok(false)
    }

    /// Replays the addresses in an inode or a direct node.
    fn recover_addresses(
        &mut self,
        node: &ChainNode,
        replayed: &Node,
        record: Option<&InodeRecord>,
    ) -> Result<()> {
        let inode = self.editor.inode(node.inode)?;
        let (replayed_at, count) = match record {
            Some(record) => (record.addresses_at, record.address_count),
            None => (0, inode.record().addresses_per_node),
        };
        let expected = if record.is_some() { inode.record().address_count } else { count };
        if count != expected {
            let (found, expected) = (count.into(), expected.into());
            let problem = Problem::Mismatch { field: "number of addresses", found, expected };
            return Err(Error::corrupt(STRUCTURE, node.location(), problem));
        }
        let no_direct_node = || {
            let problem = Problem::Invalid { field: "node offset", found: node.position.into() };
            Error::corrupt(STRUCTURE, node.location(), problem)
        };
        let shape = MapShape::of(inode.record(), self.editor.volume.geometry());
        let start = first_block(node.position, shape).ok_or_else(no_direct_node)?;
        if (node.position == 0) != node.is_inode() {
            return Err(no_direct_node());
        }
        let slot = self.editor.slot_of(node.inode, FileBlock(start), true)?;
        let first = slot.expect("missing nodes were added");
        let before = self.editor.volume.node(first.nid, node.inode)?;
        let addresses =
            before.words(first.byte, 0, count).zip(replayed.words(replayed_at, 0, count));
        // Once an address was taken away, it may be one of those in `before`.
        let mut has_taken = false;
        for (distance, (now, address)) in (0..).zip(addresses) {
            let slot = first.after(distance);
            let now = if has_taken { self.editor.address(slot)? } else { now };
            let at = FileBlock(start + u64::from(distance));
            has_taken |= self.recover_address(slot, at, now, address)?;
        }
        Ok(())
    }

    /// Replays the address of block `at`, which is `now` in the volume. Returns whether the new
    /// block had another owner.
    fn recover_address(
        &mut self,
        slot: Slot,
        at: FileBlock,
        now: u32,
        replayed: u32,
    ) -> Result<bool> {
        let step = slot_step(now, replayed);
        if step == SlotStep::Keep {
            return Ok(false);
        }
        self.grow(slot.inode, step, at)?;
        let editor = &mut *self.editor;
        match step {
            SlotStep::Keep => {}
            SlotStep::Free => editor.free_slot(slot)?,
            SlotStep::Reserve => {
                editor.free_slot(slot)?;
                editor.reserve_slot(slot)?;
            }
            SlotStep::Refer(address) => {
                let location = Location::inode(slot.inode).at_file_block(at);
                let block = editor.volume.geometry().main_block(address, STRUCTURE, location)?;
                if self.segments.is_none() {
                    self.segments = Some(Segments::read(editor.volume, self.chain)?);
                }
                let segments = self.segments.as_ref().expect("it was just read");
                segments.check_data(editor.volume, block, location)?;
                if now == NULL_ADDRESS {
                    editor.count_blocks(slot.inode, 1)?;
                }
                let has_taken = editor.take_away(block, segments)?;
                editor.free_block(now)?;
                editor.set_address(slot, address)?;
                return Ok(has_taken);
            }
        }
        Ok(false)
    }

    fn grow(&self, number: InodeNumber, step: SlotStep, at: FileBlock) -> Result<()> {
        let shift = self.editor.volume.geometry().block_size.shift();
        let (start, end) = (at.0 << shift, (at.0 + 1) << shift);
        self.editor.edit_inode(number, |raw| {
            // Nothing was written yet to blocks past the end of a file to be truncated.
            let keeps_size = raw.advise & (advise::KEEP_SIZE | advise::TRUNCATE) != 0;
            raw.size.set(size_after(raw.size.get(), step, start, end, keeps_size));
        })
    }
}

/// The ends of extra attributes that a new inode takes over, in bytes.
mod extra_end {
    use std::mem::offset_of;

    use super::RawExtraAttributes;

    pub(super) const PROJECT: usize = offset_of!(RawExtraAttributes, checksum);
    pub(super) const CREATED: usize = offset_of!(RawExtraAttributes, compressed_blocks);
}

/// Returns the fields of an inode's block.
fn raw_inode(node: &Node) -> Result<&RawInode> {
    base::view::view_at(node.bytes(), 0, STRUCTURE, node.location())
}
