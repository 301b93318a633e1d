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

/// The maximum number of blocks of all directories in which names change: they are read three times.
const DIRECTORY_BLOCKS_MAX: u64 = 1 << 22;

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
}

impl Name {
    /// Returns whether the entry is removed, added or replaced.
    pub(super) fn is_changed(&self) -> bool {
        self.before != self.now || self.is_new && self.now.is_some()
    }
}

/// The names of one directory that fast commits speak of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Names {
    pub entries: BTreeMap<Vec<u8>, Name>,
}

impl Names {
    /// Empties the directory, since another directory uses its inode. The entries that it has from now on are new, even
    /// if the old directory had the same ones.
    pub(super) fn restart(&mut self) {
        for name in self.entries.values_mut() {
            name.now = None;
            name.is_new = true;
        }
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
        if *blocks > DIRECTORY_BLOCKS_MAX {
            let operation = "fast commits that change so large directories";
            return Err(Unsupported::Operation(operation).into());
        }
    }
    let directory = Inode::new(Arc::clone(volume), record);
    directory.read_dir(DirCursor::default(), &mut |entry| {
        if let Some(name) = names.entries.get_mut(entry.name) {
            *name = Name { before: Some(entry.inode), now: Some(entry.inode), is_new: false };
        }
        ControlFlow::Continue(())
    })
}
