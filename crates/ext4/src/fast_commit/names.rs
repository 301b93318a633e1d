//! Directory entries that fast commits change: the inode of each name before and after.
//! Not here: changing the directories.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem, Result, Unsupported};

use super::outcome::Created;
use super::{Change, existing_record, has_map};
use crate::inode::Inode;
use crate::volume::Volume;

/// The maximum size of all directories in which names change, in bytes. Each block is read three
/// times.
const DIRECTORY_BYTES_MAX: u64 = 16 << 30;

/// The inode of one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Name {
    /// The inode before the fast commits, from the directory on the volume.
    pub before: Option<InodeNumber>,
    /// The inode after the changes so far.
    pub now: Option<InodeNumber>,
    /// Whether the entry is written even if its inode number stays the same. This is so if another
    /// directory now has the parent's inode number, or if the inode is now a file of another type.
    pub is_new: bool,
    /// The number of resets of the directory that have been applied to this entry.
    resets: u32,
}

impl Name {
    /// Returns whether the entry is removed, added or replaced.
    pub(super) fn is_changed(&self) -> bool {
        self.before != self.now || self.is_new && self.now.is_some()
    }

    /// Removes the name if the directory has been reset since the last call. `resets` counts all
    /// resets so far.
    fn update(&mut self, resets: u32) {
        if self.resets != resets {
            self.resets = resets;
            self.now = None;
            self.is_new = true;
        }
    }
}

/// The names that fast commits contain, in one directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Names {
    pub entries: BTreeMap<Vec<u8>, Name>,
    /// The number of subdirectories with other names. `None` if it is unknown: the directory is not
    /// on the volume, or its entries have no types.
    pub other_children: Option<u64>,
    /// The number of resets. There is one each time another directory begins to use the inode.
    resets: u32,
}

impl Names {
    /// Removes all entries, since another directory now uses the inode. Later entries are new, even
    /// if the old directory had the same ones. A log can reset a directory with many names many
    /// times, so each entry is updated only when it is used.
    pub(super) fn reset(&mut self) {
        // The number of tags in a log is bounded, so the count does not overflow.
        self.resets += 1;
    }

    /// Returns an entry after all resets so far.
    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut Name> {
        let name = self.entries.get_mut(name)?;
        name.update(self.resets);
        Some(name)
    }

    /// Applies the resets to all entries. The caller makes no further changes.
    pub(super) fn finish(&mut self) {
        self.entries.values_mut().for_each(|name| name.update(self.resets));
    }

    /// Returns the names whose entries change.
    pub(super) fn changed(&self) -> impl Iterator<Item = (&[u8], Name)> {
        let changed = self.entries.iter().filter(|(_, name)| name.is_changed());
        changed.map(|(bytes, name)| (&bytes[..], *name))
    }
}

/// Returns every name that `commits` contain, with its inode on the volume. Reads each directory
/// once, however many of its names change.
pub(super) fn collect(
    volume: &Arc<Volume>,
    created: &Created,
    commits: &[Vec<Change>],
) -> Result<BTreeMap<InodeNumber, Names>> {
    let mut directories: BTreeMap<InodeNumber, Names> = BTreeMap::new();
    for change in commits.iter().flatten() {
        if let Change::Link { parent, name, .. } | Change::Unlink { parent, name, .. } = change {
            let names = directories.entry(*parent).or_default();
            // Every directory has these two names, and fast commits do not change them.
            if ![&b"."[..], b".."].contains(&&name[..]) {
                names.entries.insert(name.clone(), Name::default());
            }
        }
    }
    let mut blocks = 0;
    for (&number, names) in &mut directories {
        read(volume, created, (number, names), &mut blocks)?;
    }
    Ok(directories)
}

/// Looks up `names` in the directory on the volume. Adds the directory's blocks to `blocks`, which
/// is bounded.
fn read(
    volume: &Arc<Volume>,
    created: &Created,
    (number, names): (InodeNumber, &mut Names),
    blocks: &mut u64,
) -> Result<()> {
    // Otherwise the fast commits create the directory.
    let Some(record) = existing_record(volume, number)? else { return Ok(()) };
    if record.kind != FileType::Directory || record.links == 0 {
        return Ok(());
    }
    // An interrupted replay has created the directory. Its blocks may never have been written.
    if created.contains(&record) {
        return Ok(());
    }
    if has_map(volume, &record) {
        // Directories do not share blocks, so together they have no more than the volume.
        let geometry = volume.geometry();
        *blocks = blocks.saturating_add(geometry.block_size.blocks_for(record.size));
        let (found, max) = (*blocks, geometry.block_count);
        if found > max {
            let problem = Problem::Range { field: "blocks of directories", found, min: 0, max };
            return Err(Error::corrupt("directory", Location::inode(number), problem));
        }
        if found.saturating_mul(geometry.block_size.bytes().into()) > DIRECTORY_BYTES_MAX {
            let operation = "replaying fast commits that change directories of this size";
            return Err(Unsupported::Operation(operation).into());
        }
    }
    let directory = Inode::new(Arc::clone(volume), record);
    let mut others = Some(0);
    directory.read_dir(DirCursor::default(), &mut |entry| {
        if let Some(name) = names.entries.get_mut(entry.name) {
            name.before = Some(entry.inode);
            name.now = Some(entry.inode);
        // The names of these two entries may be damaged.
        } else if ![&b"."[..], b".."].contains(&entry.name) && entry.inode != number {
            match entry.kind {
                Some(FileType::Directory) => others = others.map(|count| count + 1),
                Some(_) => {}
                None => others = None,
            }
        }
        ControlFlow::Continue(())
    })?;
    names.other_children = others;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_does_not_visit_each_name() {
        // If a reset visited each name, the test would take far too long.
        const NAMES: u64 = 1 << 15;
        const RESETS: u64 = 1 << 21;
        let mut names = Names::default();
        for number in 1..=NAMES {
            let inode = Some(InodeNumber(number));
            let name = Name { before: inode, now: inode, ..Name::default() };
            names.entries.insert(number.to_be_bytes().to_vec(), name);
        }
        let first = 1_u64.to_be_bytes();
        let first_before = names.entries[&first[..]];
        for reset in 1..=RESETS {
            names.reset();
            let name = names.get_mut(&first).unwrap();
            assert_eq!((name.before, name.now, name.is_new), (first_before.before, None, true));
            name.now = Some(InodeNumber(reset));
        }
        names.finish();
        assert_eq!(names.entries[&first[..]].now, Some(InodeNumber(RESETS)));
        let is_gone = |name: &Name| name.before.is_some() && name.now.is_none() && name.is_new;
        assert_eq!(names.entries.values().filter(|name| is_gone(name)).count() as u64, NAMES - 1);
    }
}
