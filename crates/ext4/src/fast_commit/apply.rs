//! Applies the effects of fast commits: the difference to the volume, whatever way led to it. All changes are made by
//! the ordinary operations on inodes, maps and directories.
//!
//! Counts of links come from the names, so that they are right even where a fast commit lacks a
//! directory's inode, as those of Linux do.
//!
//! Not here: quota.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Result};
use fs::Run;

use super::claim::mapped;
use super::follow::{FileState, Outcome};
use super::has_map;
use super::image::{raw, seal_image};
use super::names::Names;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::layout::geometry::{FILE_BLOCKS_MAX, Geometry};
use crate::map_write::empty_root;
use crate::volume::Volume;

/// Links that the format counts, at most.
const LINKS_MAX: u16 = 65_000;

/// How many names stand for an inode, among those that fast commits speak of.
#[derive(Clone, Copy, Default)]
struct NameCounts {
    now: u64,
    before: u64,
    /// Subdirectories, of a directory.
    children_now: u64,
    children_before: u64,
    /// A directory that has it now.
    parent: Option<InodeNumber>,
}

/// What becomes of an inode.
#[derive(Clone, Copy)]
enum Fate {
    /// It is not in use before or after.
    Nothing,
    /// It is deleted.
    Delete,
    /// It has this many links: 0 while it only waits to be deleted as an orphan.
    Keep(u16),
}

impl Outcome {
    /// The names that stand for `number` and those that stood for it before, in the directories
    /// that fast commits speak of.
    fn count_names(&self) -> BTreeMap<InodeNumber, NameCounts> {
        let mut counts: BTreeMap<InodeNumber, NameCounts> = BTreeMap::new();
        for (&parent, names) in &self.directories {
            for name in names.entries.values() {
                if let Some(number) = name.now {
                    let count = counts.entry(number).or_default();
                    count.now += 1;
                    count.parent = Some(parent);
                    if self.kind_now(number) == Some(FileType::Directory) {
                        counts.entry(parent).or_default().children_now += 1;
                    }
                }
                if let Some(number) = name.before {
                    counts.entry(number).or_default().before += 1;
                    if self.kind_before(number) == Some(FileType::Directory) {
                        counts.entry(parent).or_default().children_before += 1;
                    }
                }
            }
        }
        counts
    }

    /// Makes the changes.
    pub(super) fn apply(self) -> Result<()> {
        let volume = &self.volume;
        let orphans = &volume.writer()?.orphans;
        let counts = self.count_names();
        let of = |number: &InodeNumber| counts.get(number).copied().unwrap_or_default();
        let fate_of = |(&number, file): (&InodeNumber, &FileState)| {
            (number, fate(file, of(&number), orphans.contains(number)))
        };
        let fates: BTreeMap<InodeNumber, Fate> = self.files.iter().map(fate_of).collect();
        let kept: Vec<(InodeNumber, &FileState, u16)> = self
            .files
            .iter()
            .filter_map(|(&number, file)| match fates[&number] {
                Fate::Keep(links) => Some((number, file, links)),
                _ => None,
            })
            .collect();
        // All blocks are marked before any are allocated for maps and directories. What is freed then may be another
        // file's by now, and is marked again; freed blocks are not allocated meanwhile.
        let is_kept = |number| matches!(fates.get(&number), Some(Fate::Keep(_)));
        self.claim(is_kept)?;
        self.free(&fates)?;
        self.claim(is_kept)?;
        let mut inodes = BTreeMap::new();
        for &(number, file, links) in &kept {
            inodes.insert(number, write_inode(volume, number, file, links)?);
        }
        for (number, file, _) in &kept {
            for run in mapped(file) {
                map(volume, &inodes[number], run)?;
            }
        }
        let kinds = self.kinds_of_new_names();
        let nothing = Names::default();
        for (number, file, _) in &kept {
            let names = self.directories.get(number).unwrap_or(&nothing);
            if file.kind() == Some(FileType::Directory) {
                let parent = of(number).parent.unwrap_or(crate::ROOT_INODE);
                let directory = &inodes[number];
                if file.is_new {
                    begin_directory(volume, directory, parent)?;
                }
                change_directory(volume, (directory, parent), file.is_new, names, &kinds)?;
            }
        }
        Ok(())
    }

    /// The types of the inodes that names stand for now and did not before.
    fn kinds_of_new_names(&self) -> BTreeMap<InodeNumber, FileType> {
        let names = self.directories.values().flat_map(|names| names.changed());
        let numbers = names.filter_map(|(_, name)| name.now);
        numbers.filter_map(|number| Some((number, self.kind_now(number)?))).collect()
    }

    /// Deletes inodes, also those that are replaced by others, and unmaps what is mapped otherwise in the end.
    fn free(&self, fates: &BTreeMap<InodeNumber, Fate>) -> Result<()> {
        let volume = &self.volume;
        for (&number, file) in &self.files {
            let Some(record) = &file.before else { continue };
            if file.is_new || matches!(fates[&number], Fate::Delete) {
                // Without links or a place among the orphans, it is deleted already.
                if record.links > 0 || volume.writer()?.orphans.contains(number) {
                    delete(volume, number)?;
                }
                continue;
            }
            // The map of an inode that is not in use may have blocks that belong to another file by now.
            if matches!(fates[&number], Fate::Nothing) || !has_map(volume, record) {
                continue;
            }
            let inode = inode(volume, volume.inode_record(number)?)?;
            if map_kind(record.flags) != map_kind(file.flags()) {
                inode.unmap_all(FileBlock(0)..FileBlock(FILE_BLOCKS_MAX))?;
            } else if file.has_tree() {
                file.map.touched().try_for_each(|range| inode.unmap_all(range))?;
            }
        }
        Ok(())
    }
}

fn fate(file: &FileState, counts: NameCounts, is_orphan: bool) -> Fate {
    let Some(kind) = file.kind() else { return Fate::Nothing };
    let kept = file.kept();
    if kind == FileType::Directory {
        let is_root = kept.is_some_and(|record| record.number == crate::ROOT_INODE);
        let lost_its_name = counts.now == 0 && (file.is_new || counts.before > 0);
        if lost_its_name && !is_root {
            return match kept {
                Some(_) if is_orphan => Fate::Keep(0),
                Some(record) if record.links > 0 => Fate::Delete,
                _ => Fate::Nothing,
            };
        }
        let links = match kept.map(|record| record.links) {
            // More subdirectories than can be counted.
            Some(1) => 1,
            // Every directory has two, even if a replay that was interrupted has already counted some of the changes.
            Some(links) => {
                let links = u64::from(links) + counts.children_now;
                links.saturating_sub(counts.children_before).max(2)
            }
            None => 2 + counts.children_now,
        };
        // What is too much for the format is written as "many".
        return Fate::Keep(
            u16::try_from(links).ok().filter(|&links| links <= LINKS_MAX).unwrap_or(1),
        );
    }
    let before = if kept.is_some() { counts.before } else { 0 };
    let links = kept.map_or(0, |record| u64::from(record.links)) + counts.now;
    // A replay that was interrupted may have counted the removal of a name, and left its entry. A file has at least the
    // names that are known.
    match links.saturating_sub(before).max(counts.now) {
        0 if is_orphan && kept.is_some() => Fate::Keep(0),
        0 if kept.is_some_and(|record| record.links > 0) => Fate::Delete,
        // Open without a name when the commit was made, and unknown to the volume.
        0 => Fate::Nothing,
        links => Fate::Keep(u16::try_from(links).unwrap_or(LINKS_MAX)),
    }
}

/// Returns an inode with this record, in the orphan list if it is there.
fn inode(volume: &Arc<Volume>, record: InodeRecord) -> Result<Arc<Inode>> {
    let inode = Inode::new(Arc::clone(volume), record.clone());
    let inode = volume.writer()?.orphans.restore_orphan(inode);
    // The list has the record of the time when it was read.
    inode.publish(&mut inode.record.write(), record);
    Ok(Arc::new(inode))
}

/// Deletes an inode that has lost its names.
fn delete(volume: &Arc<Volume>, number: InodeNumber) -> Result<()> {
    let inode = inode(volume, volume.inode_record(number)?)?;
    volume.change(1, |handle| inode.update(handle, |record| record.links = 0))?;
    inode.release()
}

/// Writes an inode to the table, with an empty map unless it has one already that is of the same kind.
fn write_inode(
    volume: &Arc<Volume>,
    number: InodeNumber,
    file: &FileState,
    links: u16,
) -> Result<Arc<Inode>> {
    let geometry = volume.geometry();
    let is_directory = file.kind() == Some(FileType::Directory);
    let is_orphan = volume.writer()?.orphans.contains(number);
    volume.claim_inode(number, is_directory)?;
    let (buffer, at, location) = volume.raw_inode(number)?;
    let block = buffer.block();
    let mut bytes = match file.kept() {
        Some(_) => buffer[at..at + geometry.inode_size as usize].to_vec(),
        None => vec![0; geometry.inode_size as usize],
    };
    drop(buffer);
    // The link of the orphan list is as the list lies, not as it was when the commit was made.
    let next_orphan = if is_orphan { raw(&mut bytes).dtime.get() } else { 0 };
    if let Some(image) = &file.image {
        image.store(&mut bytes);
        let flags = flags_of(file, geometry);
        let fields = raw(&mut bytes);
        fields.flags = flags.0.into();
        let is_tree = flags.contains(InodeFlags::EXTENTS);
        let keeps_map = file.kept().is_some_and(|kept| map_kind(kept.flags) == map_kind(flags));
        let is_mapped = is_tree || matches!(image.kind, FileType::Regular | FileType::Directory);
        if !is_mapped || flags.contains(InodeFlags::INLINE_DATA) {
            fields.block = image.block_area();
        } else if !keeps_map {
            fields.block = if is_tree { empty_root() } else { [0; 60] };
        }
        if is_directory {
            fields.size_lo = 0.into();
            fields.size_high = 0.into();
        }
        if !keeps_map {
            let has_attributes = fields.file_acl_lo.get() != 0;
            let cluster = 1_u32 << (geometry.cluster_shift + geometry.block_size.shift() - 9);
            fields.blocks_lo = if has_attributes { cluster } else { 0 }.into();
            fields.blocks_high = 0.into();
        }
    }
    let fields = raw(&mut bytes);
    fields.links_count = links.into();
    fields.dtime = next_orphan.into();
    seal_image(&mut bytes, geometry, number);
    let record = InodeRecord::parse(&bytes, geometry, number, location)?;
    volume.change(1, |handle| {
        handle.edit(block, "inode", location, |table| {
            table[at..at + bytes.len()].copy_from_slice(&bytes);
        })
    })?;
    inode(volume, record)
}

/// Returns the flags that say what the block area is.
fn map_kind(flags: InodeFlags) -> u32 {
    flags.0 & (InodeFlags::EXTENTS.0 | InodeFlags::INLINE_DATA.0)
}

/// Returns the flags of an inode with an image. A new directory has no names yet: it has an empty map.
fn flags_of(file: &FileState, geometry: &Geometry) -> InodeFlags {
    // The unit of the count of blocks, which is not the image's.
    let huge = file.kept().map_or(0, |kept| kept.flags.0 & InodeFlags::HUGE_FILE.0);
    let flags = InodeFlags(file.flags().0 & !InodeFlags::HUGE_FILE.0 | huge);
    if file.kind() != Some(FileType::Directory) || !flags.contains(InodeFlags::INLINE_DATA) {
        return flags;
    }
    let uses_extents = geometry.features.has(Feature::Extent);
    let tree = if uses_extents { InodeFlags::EXTENTS.0 } else { 0 };
    InodeFlags(flags.0 & !InodeFlags::INLINE_DATA.0 | tree)
}

/// Maps a run, whose blocks are marked as in use, in a hole.
fn map(volume: &Volume, inode: &Inode, mut run: Run) -> Result<()> {
    while run.length > 0 {
        let credits = inode.credits_for_map(1);
        let mapped =
            volume.change_with_space(credits, |handle| inode.map_given_blocks(handle, run))?;
        let rest = FileBlock(run.start.0 + mapped)..run.end();
        let Some(left) = run.within(&rest) else { break };
        run = left;
    }
    Ok(())
}

/// Writes "." and ".." to a directory.
fn begin_directory(volume: &Volume, directory: &Inode, parent: InodeNumber) -> Result<()> {
    let credits = directory.credits_for_insert();
    volume.change_with_space(credits, |handle| directory.dir_init(handle, parent))
}

/// Removes and adds names: the first in one pass, the others by the index, or behind each other. The directory is in
/// `parent`, or in another one if fast commits do not speak of its name.
fn change_directory(
    volume: &Volume,
    (directory, parent): (&Inode, InodeNumber),
    is_new: bool,
    names: &Names,
    kinds: &BTreeMap<InodeNumber, FileType>,
) -> Result<()> {
    let removed: BTreeMap<&[u8], InodeNumber> = names
        .changed()
        .filter(|_| !is_new)
        .filter_map(|(bytes, name)| Some((bytes, name.before?)))
        .collect();
    if !removed.is_empty() {
        directory.dir_remove_all(&removed)?;
    }
    let mut cursor = FileBlock(0);
    for (bytes, name) in names.changed() {
        let Some(now) = name.now else { continue };
        let Some(&kind) = kinds.get(&now) else { continue };
        if directory.has(InodeFlags::CASEFOLD) && directory.has(InodeFlags::INDEX) {
            // Hashes of folded names are not computed.
            directory.dir_drop_index(parent)?;
        }
        let mut insert = || {
            volume.change_with_space(directory.credits_for_insert(), |handle| {
                directory.dir_insert_absent(handle, bytes, now, kind, &mut cursor)
            })
        };
        match insert() {
            Err(Error::Corrupt(_) | Error::NoSpace) if directory.has(InodeFlags::INDEX) => {
                // An index that is not sound, or has no room. It is unchanged.
                volume.writer()?.journal.check()?;
                directory.dir_drop_index(parent)?;
                insert()?;
            }
            inserted => inserted?,
        }
    }
    Ok(())
}
