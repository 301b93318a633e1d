//! Applies what fast commits come to: the difference to the volume, whatever way led to it.
//!
//! Counts of links come from the names, so that they are right even where a fast commit lacks a
//! directory's inode, as those of Linux do.
//!
//! Not here: quota. Names in inline directories are refused where they change.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::attributes::FileType;
use base::{FileBlock, InodeNumber, Result, Unsupported};

use super::follow::{FileState, Outcome};
use super::names::Names;
use crate::inode::record::InodeFlags;
use crate::recovery::edit::Editor;
use crate::recovery::edit::directory::{DirectoryEdit, format_of};
use crate::recovery::edit::inode::InodeBytes;
use crate::recovery::orphans::{self, Orphans};

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
enum Fate {
    /// It is not in use before or after.
    Nothing,
    /// It goes, with all it has.
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

    /// Puts the changes into `editor`, none of which is written yet.
    pub(super) fn apply(mut self, editor: &mut Editor, orphans: &Orphans) -> Result<()> {
        // What was read so far counts.
        editor.maps = self.maps;
        let counts = self.count_names();
        let fates: BTreeMap<InodeNumber, Fate> = self
            .files
            .iter()
            .map(|(&number, file)| {
                let counts = counts.get(&number).copied().unwrap_or_default();
                (number, fate(file, counts, orphans.contains(number)))
            })
            .collect();
        self.free(editor, orphans, &fates)?;
        let kept = |number: &InodeNumber| matches!(fates.get(number), Some(Fate::Keep(_)));
        // All data is marked before blocks are taken for maps and directories.
        for (_, file) in self.files.iter().filter(|(number, _)| kept(number)) {
            let Some(map) = file.map.as_ref().filter(|_| file.rewrites_map) else { continue };
            let clusters = editor.data_clusters(map);
            editor.mark(&clusters, true)?;
        }
        let kinds = self.kinds_of_new_names();
        let mut sizes = BTreeMap::new();
        let nothing = Names::default();
        for (&number, file) in self.files.iter_mut().filter(|(number, _)| kept(number)) {
            let names = self.directories.get(&number).unwrap_or(&nothing);
            let is_directory = file.kind() == Some(FileType::Directory);
            if is_directory && (file.is_new || names.changed().next().is_some()) {
                let parent = counts.get(&number).and_then(|counts| counts.parent);
                let changed = change_directory(editor, (number, file), parent, names, &kinds)?;
                sizes.insert(number, changed);
            }
        }
        for (&number, file) in &mut self.files {
            if let Some(Fate::Keep(links)) = fates.get(&number) {
                let is_orphan = orphans.contains(number);
                let size = sizes.get(&number).copied();
                write_inode(editor, (number, file), (*links, is_orphan), size)?;
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

    /// Gives back everything that deleted and replaced inodes have, and what the maps that will be
    /// written anew take now.
    fn free(
        &self,
        editor: &mut Editor,
        orphans: &Orphans,
        fates: &BTreeMap<InodeNumber, Fate>,
    ) -> Result<()> {
        for (&number, file) in &self.files {
            let Some(record) = &file.before else { continue };
            if file.is_new || matches!(fates.get(&number), Some(Fate::Delete)) {
                // Without links or a place among the orphans, it is deleted already.
                if record.links > 0 || orphans.contains(number) {
                    orphans::delete(editor, record)?;
                }
            } else if file.rewrites_map && orphans::has_map(&self.volume, record) {
                let map = editor.read_map(record)?;
                let clusters = editor.clusters(&map, &[]);
                editor.mark(&clusters, false)?;
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
            Some(links) => {
                u64::from(links) + counts.children_now - counts.children_before.min(links.into())
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
    match links.saturating_sub(before) {
        0 if is_orphan && kept.is_some() => Fate::Keep(0),
        0 if kept.is_some_and(|record| record.links > 0) => Fate::Delete,
        // Open without a name when the commit was made, and unknown to the volume.
        0 => Fate::Nothing,
        links => Fate::Keep(u16::try_from(links).unwrap_or(LINKS_MAX)),
    }
}

/// Links that the format counts, at most.
const LINKS_MAX: u16 = 65_000;

/// Adds and removes names. Gives the directory's size in bytes and whether it still has an index.
fn change_directory(
    editor: &mut Editor,
    (number, file): (InodeNumber, &mut FileState),
    parent: Option<InodeNumber>,
    names: &Names,
    kinds: &BTreeMap<InodeNumber, FileType>,
) -> Result<(u64, bool)> {
    let flags = file.flags();
    if flags.contains(InodeFlags::INLINE_DATA) {
        let feature = "fast_commit on an inline directory";
        return Err(Unsupported::Inode { inode: number, feature }.into());
    }
    let volume = Arc::clone(&editor.volume);
    let block_size = volume.geometry().block_size;
    let can_grow = file.has_tree();
    file.load_map(&volume, &mut editor.maps)?;
    let seed = file.generation().and_then(|own| volume.geometry().inode_seed(number, own));
    let size = file.kept().map_or(0, |record| record.size);
    let is_new = file.is_new;
    let Some(map) = file.map.as_mut() else { unreachable!("the map was just loaded") };
    let mut edit = DirectoryEdit {
        editor,
        format: format_of(&volume, number, seed),
        map,
        can_grow,
        blocks: block_size.blocks_for(size),
        is_hashed: flags.contains(InodeFlags::INDEX),
        ignores_case: flags.contains(InodeFlags::CASEFOLD),
        cursor: FileBlock(0),
    };
    if is_new {
        edit.begin(parent.unwrap_or(crate::ROOT_INODE))?;
    }
    let removed = names.changed().filter_map(|(bytes, name)| Some((bytes, name.before?)));
    let removed = removed.filter(|_| !is_new).collect();
    edit.remove(&removed)?;
    for (bytes, name) in names.changed() {
        let Some(now) = name.now else { continue };
        let Some(&kind) = kinds.get(&now) else { continue };
        edit.insert(bytes, now, kind)?;
    }
    Ok((edit.blocks << block_size.shift(), edit.is_hashed))
}

/// Puts an inode into the table. `directory` is the size of a directory that was changed, and
/// whether it has an index.
fn write_inode(
    editor: &mut Editor,
    (number, file): (InodeNumber, &mut FileState),
    (links, is_orphan): (u16, bool),
    directory: Option<(u64, bool)>,
) -> Result<()> {
    let volume = Arc::clone(&editor.volume);
    let geometry = volume.geometry();
    let kept = file.kept().cloned();
    let next_orphan = file.before.as_ref().filter(|_| is_orphan).map_or(0, |record| record.deleted);
    let flags = file.flags();
    let has_tree = file.has_tree();
    editor.use_inode(number, file.kind() == Some(FileType::Directory))?;
    let mut bytes = match kept {
        Some(_) => InodeBytes::read(&volume, &editor.blocks, number)?,
        None => InodeBytes::zeroed(geometry, number),
    };
    let (blocks_lo, blocks_high) = (bytes.raw().blocks_lo, bytes.raw().blocks_high);
    if let Some(image) = &file.image {
        bytes.take_fields(&image.bytes);
        if has_tree
            == kept.as_ref().is_some_and(|record| record.flags.contains(InodeFlags::EXTENTS))
        {
            let raw = bytes.raw();
            (raw.blocks_lo, raw.blocks_high) = (blocks_lo, blocks_high);
        }
        let is_mapped = has_tree || matches!(image.kind, FileType::Regular | FileType::Directory);
        if !is_mapped || flags.contains(InodeFlags::INLINE_DATA) {
            bytes.raw().block = image.block_area();
        }
    }
    let raw = bytes.raw();
    raw.links_count = links.into();
    // The link of the orphan list is as the list lies, not as it was when the commit was made.
    raw.dtime = next_orphan.into();
    if let Some((size, is_hashed)) = directory {
        let index = if is_hashed { 0 } else { InodeFlags::INDEX.0 };
        raw.flags = (flags.0 & !index).into();
        bytes.set_size(size);
    }
    if let Some(map) = file.map.as_mut().filter(|_| file.rewrites_map) {
        let seed = geometry.inode_seed(number, bytes.raw().generation.get());
        map.write_tree(editor, &mut bytes.raw().block, seed)?;
        let attributes = kept.as_ref().and_then(|record| record.attribute_block);
        let clusters = editor.clusters(map, attributes.as_slice());
        bytes.set_clusters(geometry, Editor::count(&clusters));
    }
    bytes.write(&volume, &mut editor.blocks)
}
