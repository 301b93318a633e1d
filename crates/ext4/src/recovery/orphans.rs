//! Completion of deletions and truncations that a crash interrupted. Linux does the same when it mounts, even
//! read-only.
//! Not here: finding and validating the orphans (`orphans/found.rs`).

use std::collections::HashSet;
use std::sync::Arc;

use base::attributes::FileType;
use base::checksum::crc32c;
use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::edit::Editor;
use super::edit::inode::InodeBytes;
use super::edit::map::{self, FileMap};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::ondisk::xattr::{RawXattrBlockHeader, XATTR_CHECKSUM_AT};
use crate::orphans::file::{self, ORPHAN_FILE, OrphanBlock};
use crate::orphans::found::{self, FoundList};
use crate::volume::Volume;
use crate::xattr::entries::{Entries, Value};

/// How often the orphans are tried to be ended, without one more that is corrupt each time.
const ATTEMPTS_MAX: u32 = 16;

/// A report of the processed orphans.
#[derive(Clone, Debug, Default)]
pub struct OrphanReport {
    /// Inodes without a name that were deleted.
    pub deleted: u32,
    /// Files whose truncation was finished.
    pub truncated: u32,
    /// The first error of an orphan that could not be ended. The volume can be read all the same: such inodes
    /// have no names, and blocks that a truncation left lie behind the end of their file.
    pub failure: Option<Error>,
}

/// The orphans of a volume.
#[derive(Default)]
pub(crate) struct Orphans {
    /// Those of the list, the first one first.
    list: Vec<InodeNumber>,
    /// Those of the orphan file.
    in_file: Vec<InodeNumber>,
    known: HashSet<InodeNumber>,
    /// The blocks of the orphan file.
    file_blocks: Vec<FsBlock>,
    file_seed: Option<u32>,
    /// The corruption that ended the list.
    failure: Option<Error>,
}

impl Orphans {
    /// Reads the list in the inodes, and the orphan file. Corruption ends either. A volume `with_errors` has no
    /// orphans.
    pub(super) fn read(volume: &Arc<Volume>, with_errors: bool) -> Result<Self> {
        let mut orphans = Self::default();
        if with_errors {
            return Ok(orphans);
        }
        let list = FoundList::read(volume)?;
        orphans.failure = list.corruption;
        orphans.list = list.orphans.iter().map(|inode| inode.number()).collect();
        orphans.known = orphans.list.iter().copied().collect();
        if volume.superblock().has(Feature::OrphanPresent) {
            if let Err(error) = orphans.read_file(volume) {
                orphans.failure.get_or_insert(error);
            }
        }
        Ok(orphans)
    }

    pub(crate) fn contains(&self, number: InodeNumber) -> bool {
        self.known.contains(&number)
    }

    fn read_file(&mut self, volume: &Arc<Volume>) -> Result<()> {
        let Some(number) = volume.superblock().inodes.orphan_file else { return Ok(()) };
        let file = volume.special_inode(number)?;
        self.file_seed = file.record().checksum_seed;
        for block in OrphanBlock::all(&file)? {
            let block = block?;
            self.file_blocks.push(block.block());
            for number in block.numbers().iter().map(|number| InodeNumber(number.get().into())) {
                if number == InodeNumber(0) {
                    continue;
                }
                let judged = found::judge(volume, number, ORPHAN_FILE).map(drop);
                let repeated =
                    || Error::corrupt(ORPHAN_FILE, Location::inode(number), Problem::Cycle);
                match judged
                    .and_then(|()| self.known.insert(number).then_some(()).ok_or_else(repeated))
                {
                    Ok(()) => self.in_file.push(number),
                    Err(error) => drop(self.failure.get_or_insert(error)),
                }
            }
        }
        Ok(())
    }

    /// Deletes and truncates, with an editor of `volume`'s. As in Linux, the list ends with the first one
    /// whose metadata is corrupt; others of the file are left out. The caller empties the list's head in
    /// the superblock.
    pub(super) fn resolve(mut self, volume: &Arc<Volume>) -> Result<(Editor, OrphanReport)> {
        for _ in 0..ATTEMPTS_MAX {
            let mut editor = Editor::new(Arc::clone(volume));
            let Err((at, error)) = self.try_resolve(&mut editor)? else {
                self.clear_file(&mut editor)?;
                let mut report = self.report(volume)?;
                report.failure = self.failure;
                return Ok((editor, report));
            };
            // The editor has half of it: once more, without.
            self.failure.get_or_insert(error);
            match at.checked_sub(self.list.len()) {
                None => self.list.truncate(at),
                Some(at) => drop(self.in_file.remove(at)),
            }
        }
        Ok((
            Editor::new(Arc::clone(volume)),
            OrphanReport { failure: self.failure, ..Default::default() },
        ))
    }

    fn all(&self) -> impl Iterator<Item = InodeNumber> {
        self.list.iter().chain(&self.in_file).copied()
    }

    /// Ends all orphans. The inner error has the index of the one that is corrupt.
    fn try_resolve(&self, editor: &mut Editor) -> Result<Result<(), (usize, Error)>> {
        let volume = Arc::clone(&editor.volume);
        for (at, number) in self.all().enumerate() {
            let record = volume.inode_record(number)?;
            let ended = match record.links {
                0 => delete(editor, &record),
                _ => truncate(editor, &record),
            };
            match ended {
                Ok(()) => {}
                Err(error @ Error::Io(_)) => return Err(error),
                Err(error) => return Ok(Err((at, error))),
            }
        }
        Ok(Ok(()))
    }

    fn report(&self, volume: &Volume) -> Result<OrphanReport> {
        let mut report = OrphanReport::default();
        for number in self.all() {
            match volume.inode_record(number)?.links {
                0 => report.deleted += 1,
                _ => report.truncated += 1,
            }
        }
        Ok(report)
    }

    /// Takes those that were ended out of the orphan file.
    fn clear_file(&self, editor: &mut Editor) -> Result<()> {
        let ended: HashSet<u64> = self.in_file.iter().map(|number| number.0).collect();
        for &block in &self.file_blocks {
            let bytes = editor.blocks.edit(block, ORPHAN_FILE, Location::block(block))?;
            file::edit(bytes, block, self.file_seed, |numbers| {
                for word in numbers.chunks_exact_mut(size_of::<u32>()) {
                    let number =
                        word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
                    if ended.contains(&number) {
                        word.fill(0);
                    }
                }
            });
        }
        Ok(())
    }
}

/// Returns whether the inode's block area is a map of blocks.
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
    if has_map(&volume, record) {
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

/// Frees the attributes of an inode that is deleted: its block and inodes of values, unless other inodes use them as
/// well.
fn release_attributes(editor: &mut Editor, record: &InodeRecord) -> Result<()> {
    const STRUCTURE: &str = "extended attribute block";
    let volume = Arc::clone(&editor.volume);
    let has_value_inodes = volume.superblock().has(Feature::EaInode);
    let location = Location::inode(record.number);
    let here = Entries::in_inode(&record.attribute_area, has_value_inodes, location)?;
    release_values(editor, &here)?;
    let Some(block) = record.attribute_block else { return Ok(()) };
    let location = location.at_block(block);
    // Verifies the checksum of what lies there; recovery may have changed the count since.
    Inode::new(Arc::clone(&volume), record.clone()).attribute_block()?;
    let mut bytes = editor.blocks.read(block, STRUCTURE, location)?;
    let entries = Entries::in_block(&bytes, has_value_inodes, location)?;
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
        return Err(Error::corrupt("extended attribute value", Location::inode(number), problem));
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
