//! Changes to the volume that bring it to the outcome of fast commits. The ordinary operations on
//! inodes, maps and directories make them.
//!
//! Link counts are computed from the names. So they are correct although the fast commits of Linux
//! do not contain images of all changed directories.
//!
//! Not here: quota.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Result};
use fs::Run;

use super::claim::mapped;
use super::has_map;
use super::image::{raw, seal_image};
use super::names::Names;
use super::outcome::{FileState, Outcome};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::layout::geometry::{CreatorOs, FILE_BLOCKS_MAX, Geometry};
use crate::map_write::{empty_root, units_per_cluster};
use crate::volume::Volume;

/// The maximum link count of the format.
const LINKS_MAX: u16 = 65_000;

/// The number of an inode's names, among the names that fast commits contain.
#[derive(Clone, Copy, Default)]
struct NameCounts {
    /// Names after the fast commits.
    now: u64,
    /// Names before the fast commits.
    before: u64,
    /// For a directory: subdirectories after the fast commits.
    children_now: u64,
    /// For a directory: subdirectories before the fast commits.
    children_before: u64,
    /// For a directory on the volume: its subdirectories with names that fast commits do not
    /// contain, if known.
    other_children: Option<u64>,
    /// A directory that contains the inode after the fast commits.
    parent: Option<InodeNumber>,
    /// The number of times that fast commits remove a name of the inode.
    removals: u64,
}

/// The action for an inode.
#[derive(Clone, Copy)]
enum Action {
    /// None: the inode is unused before and after the fast commits.
    Ignore,
    /// Delete the inode.
    Delete,
    /// Write the inode with this link count. The count is 0 for an orphan, which is deleted later.
    Keep(u16),
}

impl Outcome {
    /// Counts the names of each inode before and after the fast commits.
    fn count_names(&self) -> BTreeMap<InodeNumber, NameCounts> {
        let mut counts: BTreeMap<InodeNumber, NameCounts> = BTreeMap::new();
        for (&number, &removals) in &self.removals {
            counts.entry(number).or_default().removals = removals;
        }
        for (&parent, names) in &self.directories {
            counts.entry(parent).or_default().other_children = names.other_children;
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

    /// Applies the changes to the volume.
    pub(super) fn apply(self) -> Result<()> {
        let volume = &self.volume;
        let orphans = &volume.writer()?.orphans;
        let counts = self.count_names();
        let counts_of = |number: &InodeNumber| counts.get(number).copied().unwrap_or_default();
        let action_of = |(&number, file): (&InodeNumber, &FileState)| {
            (number, choose_action(file, counts_of(&number), orphans.numbers().contains(number)))
        };
        let actions: BTreeMap<InodeNumber, Action> = self.files.iter().map(action_of).collect();
        let kept: Vec<(InodeNumber, &FileState, u16)> = self
            .files
            .iter()
            .filter_map(|(&number, file)| match actions[&number] {
                Action::Keep(links) => Some((number, file, links)),
                _ => None,
            })
            .collect();
        // All blocks are marked before blocks are allocated for maps and directories. A block that
        // `free` frees may now belong to another file, so all blocks are marked again. Until then,
        // freed blocks are not allocated. For this, blocks of files that `free` deletes must be
        // marked, too: an interrupted replay may have freed them before.
        let is_kept = |number| matches!(actions.get(&number), Some(Action::Keep(_)));
        let is_deleted = |number| {
            let is_new = self.files.get(&number).is_some_and(|file| file.is_new);
            is_new || matches!(actions.get(&number), Some(Action::Delete))
        };
        self.claim(is_kept, is_deleted)?;
        self.free(&actions)?;
        let clusters = self.claim(is_kept, |_| false)?;
        let mut inodes = BTreeMap::new();
        for &(number, file, links) in &kept {
            let clusters = clusters.get(&number).copied();
            inodes.insert(number, write_inode(volume, number, file, (links, clusters))?);
        }
        for (number, file, _) in &kept {
            for run in mapped(file) {
                map(volume, &inodes[number], run)?;
            }
        }
        let kinds = self.kinds_of_new_names();
        let no_names = Names::default();
        for (number, file, _) in &kept {
            let names = self.directories.get(number).unwrap_or(&no_names);
            if file.kind() == Some(FileType::Directory) {
                let parent = counts_of(number).parent.unwrap_or(crate::ROOT_INODE);
                let directory = &inodes[number];
                if file.is_created_directory() {
                    init_directory(volume, directory, parent)?;
                }
                change_directory(
                    volume,
                    (directory, parent),
                    file.is_created_directory(),
                    names,
                    &kinds,
                )?;
            }
        }
        Ok(())
    }

    /// Returns the file types of the inodes whose entries are written.
    fn kinds_of_new_names(&self) -> BTreeMap<InodeNumber, FileType> {
        let names = self.directories.values().flat_map(|names| names.changed());
        let numbers = names.filter_map(|(_, name)| name.now);
        numbers.filter_map(|number| Some((number, self.kind_now(number)?))).collect()
    }

    /// Deletes inodes, including old files whose inode is reused. Unmaps the ranges whose mapping
    /// changes.
    fn free(&self, actions: &BTreeMap<InodeNumber, Action>) -> Result<()> {
        let volume = &self.volume;
        for (&number, file) in &self.files {
            let Some(record) = &file.before else { continue };
            if file.is_new || matches!(actions[&number], Action::Delete) {
                // Without links, and not in the orphan list, the inode has already been deleted.
                if record.links > 0 || volume.writer()?.orphans.numbers().contains(number) {
                    if file.was_created {
                        // An interrupted replay may not yet have marked the inode as in use.
                        volume
                            .allocator()?
                            .claim_inode(number, record.kind == FileType::Directory)?;
                    }
                    delete(volume, number)?;
                }
                continue;
            }
            // The map of an unused inode may contain blocks that now belong to another file.
            if matches!(actions[&number], Action::Ignore) || !has_map(volume, record) {
                continue;
            }
            let inode = inode(volume, volume.inode_record(number)?)?;
            let is_emptied =
                file.is_created_directory() || map_kind(record.flags) != map_kind(file.flags());
            if is_emptied {
                inode.unmap_all(FileBlock(0)..FileBlock(FILE_BLOCKS_MAX))?;
            } else if file.has_tree() {
                file.map.touched().try_for_each(|range| inode.unmap_all(range))?;
            }
        }
        Ok(())
    }
}

/// Chooses the action for an inode by its names.
fn choose_action(file: &FileState, counts: NameCounts, is_orphan: bool) -> Action {
    let Some(kind) = file.kind() else { return Action::Ignore };
    let existing = file.existing();
    if kind == FileType::Directory {
        let is_root = existing.is_some_and(|record| record.number == crate::ROOT_INODE);
        let has_lost_its_name =
            counts.now == 0 && (file.is_created_directory() || counts.before > 0);
        if has_lost_its_name && !is_root {
            return match existing {
                Some(_) if is_orphan => Action::Keep(0),
                Some(record) if record.links > 0 => Action::Delete,
                _ => Action::Ignore,
            };
        }
        let links = match file.kept().map(|record| record.links) {
            // The directory has more subdirectories than the format counts.
            Some(1) => 1,
            // An interrupted replay may have counted a change without changing the entry, or the
            // other way round. So the entries are counted, if they have types.
            Some(links) => match counts.other_children {
                Some(others) => 2 + others + counts.children_now,
                // Every directory has at least two links.
                None => (u64::from(links) + counts.children_now)
                    .saturating_sub(counts.children_before)
                    .max(2),
            },
            None => 2 + counts.children_now,
        };
        // The count 1 means more links than the format counts.
        return Action::Keep(
            u16::try_from(links).ok().filter(|&links| links <= LINKS_MAX).unwrap_or(1),
        );
    }
    match count_links(file, counts) {
        0 if is_orphan && existing.is_some() => Action::Keep(0),
        0 if existing.is_some_and(|record| record.links > 0) => Action::Delete,
        // The file was open without a name at the time of the commit, and is not on the volume.
        0 => Action::Ignore,
        links => Action::Keep(u16::try_from(links).unwrap_or(LINKS_MAX)),
    }
}

/// Returns the link count of a file that is no directory. Its names are those in `counts`, and
/// names that fast commits do not contain.
fn count_links(file: &FileState, counts: NameCounts) -> u64 {
    // Fast commits contain all names of a file that they create.
    let Some(existing) = file.existing().filter(|_| !file.was_created) else { return counts.now };
    let before = u64::from(existing.links);
    if file.image.is_none() {
        return (before + counts.now).saturating_sub(counts.before).max(counts.now);
    }
    // An interrupted replay may have counted a name without changing its entry, or the other way
    // round, so only the image has the right count. But Linux may have been changing other names
    // when it wrote the image. If such a removal were counted, a later removal would delete the
    // file although it has a name. So at most the removals that fast commits contain are counted.
    let (min, max) = (before.saturating_sub(counts.removals), before + counts.now);
    u64::try_from(file.links).unwrap_or(0).clamp(min, max).max(counts.now)
}

/// Returns an inode with this record. If the orphan list contains the inode, returns that one.
fn inode(volume: &Arc<Volume>, record: InodeRecord) -> Result<Arc<Inode>> {
    let inode = Inode::new(Arc::clone(volume), record.clone());
    let inode = volume.writer()?.orphans.restore_orphan(inode);
    // The record in the orphan list is from the time when the list was read.
    inode.publish(&mut inode.record.write(), record);
    Ok(Arc::new(inode))
}

/// Deletes an inode that has lost its names.
fn delete(volume: &Arc<Volume>, number: InodeNumber) -> Result<()> {
    let inode = inode(volume, volume.inode_record(number)?)?;
    volume.change(1, |handle| inode.update(handle, |record| record.links = 0))?;
    inode.release()
}

/// Writes an inode to the table, with this link count. Keeps an existing map of the same kind,
/// whose number of clusters is `clusters`, if that is known; otherwise the map is empty.
fn write_inode(
    volume: &Arc<Volume>,
    number: InodeNumber,
    file: &FileState,
    (links, clusters): (u16, Option<u64>),
) -> Result<Arc<Inode>> {
    let geometry = volume.geometry();
    let is_directory = file.kind() == Some(FileType::Directory);
    let is_orphan = volume.writer()?.orphans.numbers().contains(number);
    volume.allocator()?.claim_inode(number, is_directory)?;
    let (buffer, at, location) = volume.raw_inode(number)?;
    let block = buffer.block();
    let mut bytes = match file.kept() {
        Some(_) => buffer[at..at + geometry.inode_size as usize].to_vec(),
        None => vec![0; geometry.inode_size as usize],
    };
    drop(buffer);
    // The link of the orphan list is the current one, not the image's, which is from the time of
    // the commit.
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
    let mut record = InodeRecord::parse(&bytes, geometry, number, location)?;
    let map = file.kept().filter(|kept| map_kind(kept.flags) == map_kind(record.flags));
    if let Some(units) =
        map.and(clusters).and_then(|clusters| block_count(volume, &record, clusters))
    {
        record.blocks = units;
        record.store(&mut bytes, geometry);
    }
    volume.change(1, |handle| {
        handle.edit(block, "inode", location, |table| {
            table[at..at + bytes.len()].copy_from_slice(&bytes);
        })
    })?;
    inode(volume, record)
}

/// Returns the block count of an inode whose map has this number of clusters. An interrupted replay
/// may have changed the map without counting the blocks, or may have copied the count of an image
/// to an inode with an older map. Returns `None` if the count may include blocks that are not known
/// here: values of attributes in inodes of their own, and the block of a passive translator.
fn block_count(volume: &Volume, record: &InodeRecord, clusters: u64) -> Option<u64> {
    let geometry = volume.geometry();
    let is_known = !geometry.features.has(Feature::EaInode) && geometry.creator != CreatorOs::Hurd;
    let all = clusters + u64::from(record.attribute_block.is_some());
    is_known.then(|| all.saturating_mul(units_per_cluster(geometry)))
}

/// Returns the flags that determine the contents of the block area.
fn map_kind(flags: InodeFlags) -> u32 {
    flags.0 & (InodeFlags::EXTENTS.0 | InodeFlags::INLINE_DATA.0)
}

/// Returns the flags of an inode with an image. A new directory begins with an empty map, not with
/// inline data.
fn flags_of(file: &FileState, geometry: &Geometry) -> InodeFlags {
    // The flag determines the unit of the block count, which does not come from the image.
    let huge = file.kept().map_or(0, |kept| kept.flags.0 & InodeFlags::HUGE_FILE.0);
    let flags = InodeFlags(file.flags().0 & !InodeFlags::HUGE_FILE.0 | huge);
    if file.kind() != Some(FileType::Directory) || !flags.contains(InodeFlags::INLINE_DATA) {
        return flags;
    }
    let uses_extents = geometry.features.has(Feature::Extent);
    let tree = if uses_extents { InodeFlags::EXTENTS.0 } else { 0 };
    InodeFlags(flags.0 & !InodeFlags::INLINE_DATA.0 | tree)
}

/// Maps a run in a hole. Its blocks are already marked as in use.
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

/// Writes "." and ".." to a new directory.
fn init_directory(volume: &Volume, directory: &Inode, parent: InodeNumber) -> Result<()> {
    let credits = directory.credits_for_insert();
    volume.change_with_space(credits, |handle| directory.dir_init(handle, parent))
}

/// Removes names in one pass, and then adds names one by one: by the index, or in the next leaf
/// with space. `parent` is the directory's parent, or another directory if fast commits do not
/// contain its name.
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
            // An index of folded names cannot be extended, since their hashes are not computed.
            directory.dir_drop_index(parent)?;
        }
        let mut insert = || {
            volume.change_with_space(directory.credits_for_insert(), |handle| {
                directory.dir_insert_absent(handle, bytes, now, kind, &mut cursor)
            })
        };
        match insert() {
            Err(Error::Corrupt(_) | Error::NoSpace) if directory.has(InodeFlags::INDEX) => {
                // The index is corrupt or full. The failed insertion has not changed it.
                volume.writer()?.journal.check()?;
                directory.dir_drop_index(parent)?;
                insert()?;
            }
            inserted => inserted?,
        }
    }
    Ok(())
}
