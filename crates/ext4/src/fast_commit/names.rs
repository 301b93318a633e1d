//! What fast commits say of the names in directories: what they stood for before, and what they
//! stand for in the end. Not here: changing the directories.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem, Result, Unsupported};

use super::{Change, has_map};
use crate::inode::Inode;
use crate::volume::Volume;

/// The maximum size of all directories in which names change, in bytes: they are read three times.
const DIRECTORY_BYTES_MAX: u64 = 16 << 30;

/// What one name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Name {
    /// In the directory as it lies.
    pub before: Option<InodeNumber>,
    /// After the changes so far.
    pub now: Option<InodeNumber>,
    /// Whether the entry is written even if its inode number stays the same: it is in another directory with the same
    /// inode number, or the inode has become a file of another type.
    pub is_new: bool,
    /// The number of restarts of the directory that this entry has seen.
    restarts: u32,
}

impl Name {
    /// Returns whether the entry is removed, added or replaced.
    pub(super) fn is_changed(&self) -> bool {
        self.before != self.now || self.is_new && self.now.is_some()
    }

    /// Removes the name if the directory has restarted since the last call.
    fn update(&mut self, restarts: u32) {
        if self.restarts != restarts {
            self.restarts = restarts;
            self.now = None;
            self.is_new = true;
        }
    }
}

/// The names of one directory that fast commits speak of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Names {
    pub entries: BTreeMap<Vec<u8>, Name>,
    /// How often another directory has begun to use the inode.
    restarts: u32,
}

impl Names {
    /// Empties the directory, since another directory uses its inode. The entries that it has from now on are new, even
    /// if the old directory had the same ones. A log can restart a directory with many names many times, so each entry
    /// changes only when it is used.
    pub(super) fn restart(&mut self) {
        // There are fewer tags in a log.
        self.restarts += 1;
    }

    /// Returns an entry as it is after all restarts so far.
    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut Name> {
        let name = self.entries.get_mut(name)?;
        name.update(self.restarts);
        Some(name)
    }

    /// Applies the restarts to all entries, after the last one.
    pub(super) fn finish(&mut self) {
        self.entries.values_mut().for_each(|name| name.update(self.restarts));
    }

    /// Returns the names whose entries change.
    pub(super) fn changed(&self) -> impl Iterator<Item = (&[u8], Name)> {
        let changed = self.entries.iter().filter(|(_, name)| name.is_changed());
        changed.map(|(bytes, name)| (&bytes[..], *name))
    }
}

/// Every name that `commits` speak of, with what it stands for as the volume lies. Each directory
/// is read once, however many of its names change.
pub(super) fn collect(
    volume: &Arc<Volume>,
    commits: &[Vec<Change>],
) -> Result<BTreeMap<InodeNumber, Names>> {
    let mut directories: BTreeMap<InodeNumber, Names> = BTreeMap::new();
    for change in commits.iter().flatten() {
        if let Change::Link { parent, name, .. } | Change::Unlink { parent, name, .. } = change {
            let names = directories.entry(*parent).or_default();
            // Every directory has these.
            if ![&b"."[..], b".."].contains(&&name[..]) {
                names.entries.insert(name.clone(), Name::default());
            }
        }
    }
    let mut blocks = 0;
    for (&number, names) in &mut directories {
        read(volume, number, names, &mut blocks)?;
    }
    Ok(directories)
}

fn read(
    volume: &Arc<Volume>,
    number: InodeNumber,
    names: &mut Names,
    blocks: &mut u64,
) -> Result<()> {
    let record = match volume.inode_record(number) {
        // A directory that the fast commits make.
        Err(Error::NotFound) => return Ok(()),
        record => record?,
    };
    if record.kind != FileType::Directory || record.links == 0 {
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
            let operation = "fast commits that change so large directories";
            return Err(Unsupported::Operation(operation).into());
        }
    }
    let directory = Inode::new(Arc::clone(volume), record);
    directory.read_dir(DirCursor::default(), &mut |entry| {
        if let Some(name) = names.entries.get_mut(entry.name) {
            name.before = Some(entry.inode);
            name.now = Some(entry.inode);
        }
        ControlFlow::Continue(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_take_no_time_for_each_name() {
        // The product is more than anyone would wait for.
        const NAMES: u64 = 1 << 15;
        const RESTARTS: u64 = 1 << 21;
        let mut names = Names::default();
        for number in 1..=NAMES {
            let inode = Some(InodeNumber(number));
            let name = Name { before: inode, now: inode, ..Name::default() };
            names.entries.insert(number.to_be_bytes().to_vec(), name);
        }
        let first = 1_u64.to_be_bytes();
        let first_before = names.entries[&first[..]];
        for restart in 1..=RESTARTS {
            names.restart();
            let name = names.get_mut(&first).unwrap();
            assert_eq!((name.before, name.now, name.is_new), (first_before.before, None, true));
            name.now = Some(InodeNumber(restart));
        }
        names.finish();
        assert_eq!(names.entries[&first[..]].now, Some(InodeNumber(RESTARTS)));
        let is_gone = |name: &Name| name.before.is_some() && name.now.is_none() && name.is_new;
        assert_eq!(names.entries.values().filter(|name| is_gone(name)).count() as u64, NAMES - 1);
    }
}
