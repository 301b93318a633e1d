//! Ends what was going on when the volume was cut off: deletes inodes that had no name left but
//! were open, and finishes truncations. Linux does the same when it mounts, even read-only.
//! Not here: how they are told apart from other inodes on disk, which is by these lists alone.

use std::collections::HashSet;
use std::sync::Arc;

use base::attributes::FileType;
use base::checksum::crc32c;
use base::{Error, FileBlock, FsBlock, InodeNumber, Place, Problem, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::edit::Editor;
use super::edit::inode::InodeBytes;
use super::edit::map::{self, FileMap};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode_record::{InodeFlags, InodeRecord};
use crate::ondisk::superblock::STATE_ERRORS;
use crate::ondisk::xattr::{RawXattrBlockHeader, XATTR_CHECKSUM_AT};
use crate::orphan_file::{self, ORPHAN_FILE, OrphanBlock};
use crate::volume::Volume;
use crate::xattr::entries::{Entries, Value};

/// What was done about orphans.
#[derive(Clone, Debug, Default)]
pub struct OrphanReport {
    /// Inodes without a name that were deleted.
    pub deleted: u32,
    /// Files whose truncation was finished.
    pub truncated: u32,
    /// Why nothing was done about them. The volume can be read all the same: such inodes have no
    /// names, and what a truncation left lies behind the end of its file.
    pub failure: Option<Error>,
}

impl OrphanReport {
    /// The report of an attempt that was given up.
    pub(super) fn failed(error: Error) -> Self {
        Self { failure: Some(error), ..Self::default() }
    }
}

/// The orphans of a volume.
#[derive(Default)]
pub(crate) struct Orphans {
    inodes: Vec<InodeNumber>,
    known: HashSet<InodeNumber>,
    /// The blocks of the orphan file.
    file_blocks: Vec<FsBlock>,
    file_seed: Option<u32>,
}

impl Orphans {
    /// Reads the list in the inodes and the orphan file.
    pub(super) fn read(volume: &Arc<Volume>) -> Result<Self> {
        let mut orphans = Self::default();
        if volume.superblock().raw().state.get() & STATE_ERRORS != 0 {
            // Linux does not trust the lists then.
            return Ok(orphans);
        }
        let mut next = volume.superblock().inodes.last_orphan;
        while let Some(number) = next {
            orphans.add(volume, number)?;
            // The orphan list is linked through the time of deletion.
            let record = volume.inode_record(number)?;
            next = (record.deleted != 0).then_some(InodeNumber(record.deleted.into()));
        }
        if volume.superblock().has(Feature::OrphanPresent) {
            orphans.read_file(volume)?;
        }
        Ok(orphans)
    }

    pub(crate) fn contains(&self, number: InodeNumber) -> bool {
        self.known.contains(&number)
    }

    fn add(&mut self, volume: &Volume, number: InodeNumber) -> Result<()> {
        const STRUCTURE: &str = "orphan list";
        let place = Place::inode(number);
        let (min, max) =
            (volume.geometry().first_inode.into(), volume.geometry().inode_count.into());
        if !(min..=max).contains(&number.0) {
            let problem = Problem::Range { field: "inode", found: number.0, min, max };
            return Err(Error::corrupt(STRUCTURE, place, problem));
        }
        if !self.known.insert(number) {
            return Err(Error::corrupt(STRUCTURE, place, Problem::Cycle));
        }
        self.inodes.push(number);
        Ok(())
    }

    fn read_file(&mut self, volume: &Arc<Volume>) -> Result<()> {
        let Some(number) = volume.superblock().inodes.orphan_file else { return Ok(()) };
        let file = volume.special_inode(number)?;
        self.file_seed = file.record().checksum_seed;
        for block in OrphanBlock::all(&file)? {
            let block = block?;
            for number in block.numbers().iter().filter(|number| number.get() != 0) {
                self.add(volume, InodeNumber(number.get().into()))?;
            }
            self.file_blocks.push(block.block());
        }
        Ok(())
    }

    /// Deletes and truncates. The caller empties the list's head in the superblock.
    pub(super) fn resolve(&self, editor: &mut Editor) -> Result<OrphanReport> {
        let mut report = OrphanReport::default();
        let volume = Arc::clone(&editor.volume);
        for &number in &self.inodes {
            let record = volume.inode_record(number)?;
            if record.links == 0 {
                delete(editor, &record)?;
                report.deleted += 1;
            } else {
                truncate(editor, &record)?;
                report.truncated += 1;
            }
        }
        for &block in &self.file_blocks {
            let bytes = editor.blocks.edit(block, ORPHAN_FILE, Place::block(block))?;
            orphan_file::edit(bytes, block, self.file_seed, |numbers| numbers.fill(0));
        }
        Ok(report)
    }
}

/// Whether the inode's block area is a map of blocks.
pub(crate) fn has_map(volume: &Arc<Volume>, record: &InodeRecord) -> bool {
    match record.kind {
        _ if record.flags.contains(InodeFlags::INLINE_DATA) => false,
        FileType::Regular | FileType::Directory => true,
        FileType::Symlink => !Inode::new(Arc::clone(volume), record.clone()).is_fast_symlink(),
        _ => false,
    }
}

/// Deletes an inode without names: its space, its attributes, itself.
pub(crate) fn delete(editor: &mut Editor, record: &InodeRecord) -> Result<()> {
    let volume = Arc::clone(&editor.volume);
    if has_map(&volume, record) {
        let map = editor.read_map(record)?;
        let clusters = editor.clusters(&map, &[]);
        editor.mark(&clusters, false)?;
    }
    release_attributes(editor, record)?;
    retire(editor, record.number, record.kind == FileType::Directory)
}

/// Makes an inode whose space is free one that is not in use.
pub(crate) fn retire(editor: &mut Editor, number: InodeNumber, is_directory: bool) -> Result<()> {
    let volume = Arc::clone(&editor.volume);
    editor.free_inode(number, is_directory)?;
    let mut bytes = InodeBytes::read(&volume, &editor.blocks, number)?;
    bytes.set_size(0);
    bytes.set_clusters(volume.geometry(), 0);
    let raw = bytes.raw();
    raw.links_count = 0.into();
    raw.block.fill(0);
    raw.file_acl_lo = 0.into();
    raw.file_acl_high = 0.into();
    // Any time but none says that it was deleted. The real one is not known.
    raw.dtime = volume.superblock().raw().wtime.get().max(1).into();
    if InodeFlags(raw.flags.get()).contains(InodeFlags::EXTENTS) {
        map::write_empty_tree(&mut raw.block);
    }
    bytes.write(&volume, &mut editor.blocks)
}

/// Ends a truncation: the size was set, but blocks behind it may be left.
fn truncate(editor: &mut Editor, record: &InodeRecord) -> Result<()> {
    let volume = Arc::clone(&editor.volume);
    let mut bytes = InodeBytes::read(&volume, &editor.blocks, record.number)?;
    bytes.raw().dtime = 0.into();
    if has_map(&volume, record) && record.kind == FileType::Regular {
        let end = FileBlock(volume.geometry().block_size.blocks_for(record.size));
        let mut map = editor.read_map(record)?;
        let before = editor.clusters(&map, &[]);
        map::truncate(editor, record, &mut map, &mut bytes.raw().block, end)?;
        let after = editor.clusters(&map, &[]);
        editor.mark(&before, false)?;
        editor.mark(&after, true)?;
        let all = editor.clusters(&map, record.attribute_block.as_slice());
        bytes.set_clusters(volume.geometry(), Editor::count(&all));
    }
    bytes.write(&volume, &mut editor.blocks)
}

/// Gives back what holds the attributes of an inode that is deleted: its block and inodes of
/// values, unless others use them as well.
fn release_attributes(editor: &mut Editor, record: &InodeRecord) -> Result<()> {
    const STRUCTURE: &str = "extended attribute block";
    let volume = Arc::clone(&editor.volume);
    let has_value_inodes = volume.superblock().has(Feature::EaInode);
    let place = Place::inode(record.number);
    let here = Entries::in_inode(&record.attribute_area, has_value_inodes, place)?;
    release_values(editor, &here)?;
    let Some(block) = record.attribute_block else { return Ok(()) };
    let place = place.at_block(block);
    // Verifies the checksum of what lies there; recovery may have changed the count since.
    Inode::new(Arc::clone(&volume), record.clone()).attribute_block()?;
    let mut bytes = editor.blocks.read(block, STRUCTURE, place)?;
    let entries = Entries::in_block(&bytes, has_value_inodes, place)?;
    let Ok((header, _)) = RawXattrBlockHeader::ref_from_prefix(&bytes) else {
        unreachable!("the header was just checked");
    };
    let references = header.reference_count.get();
    if references <= 1 {
        release_values(editor, &entries)?;
        let clusters = editor.clusters(&FileMap::default(), &[block]);
        return editor.mark(&clusters, false);
    }
    if let Ok((header, _)) = RawXattrBlockHeader::mut_from_prefix(&mut bytes) {
        header.reference_count = (references - 1).into();
        header.checksum = 0.into();
    }
    if let Some(seed) = volume.geometry().metadata_seed() {
        let checksum = crc32c(crc32c(seed, &block.0.to_le_bytes()), &bytes);
        bytes[XATTR_CHECKSUM_AT..XATTR_CHECKSUM_AT + 4].copy_from_slice(checksum.as_bytes());
    }
    editor.blocks.replace(block, bytes)
}

fn release_values(editor: &mut Editor, entries: &Entries<'_>) -> Result<()> {
    for entry in entries.iter() {
        if let Value::InInode { inode, .. } = entry.value {
            release_value(editor, inode)?;
        }
    }
    Ok(())
}

/// Takes one reference from an inode that holds a value, and deletes it with the last.
fn release_value(editor: &mut Editor, number: InodeNumber) -> Result<()> {
    let volume = Arc::clone(&editor.volume);
    let record = volume.inode_record(number)?;
    if !record.flags.contains(InodeFlags::EA_INODE) {
        let problem = Problem::Invalid { field: "flags", found: record.flags.0.into() };
        return Err(Error::corrupt("extended attribute value", Place::inode(number), problem));
    }
    let mut bytes = InodeBytes::read(&volume, &editor.blocks, number)?;
    let raw = bytes.raw();
    // The count lies in fields that mean other things in other inodes.
    let references = u64::from(raw.ctime.get()) << 32 | u64::from(raw.version_lo.get());
    let left = references.saturating_sub(1);
    raw.ctime = ((left >> 32) as u32).into();
    raw.version_lo = (left as u32).into();
    let was_used = raw.links_count.get() > 0;
    bytes.write(&volume, &mut editor.blocks)?;
    if left > 0 || !was_used {
        return Ok(());
    }
    delete(editor, &InodeRecord { attribute_area: Box::default(), attribute_block: None, ..record })
}
