//! What fast commits say of the names in directories: what they stood for before, and what they
//! stand for in the end. Not here: changing the directories.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem, Result};

use super::Change;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::recovery::edit::MapReader;
use crate::recovery::orphans;
use crate::volume::Volume;

/// What one name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Name {
    /// In the directory as it lies.
    pub before: Option<InodeNumber>,
    /// After the changes so far.
    pub now: Option<InodeNumber>,
}

/// The names of one directory that fast commits speak of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Names {
    pub entries: BTreeMap<Vec<u8>, Name>,
}

impl Names {
    /// Another directory takes the inode: nothing is in it yet.
    pub(super) fn restart(&mut self) {
        self.entries.values_mut().for_each(|name| name.now = None);
    }

    /// The names that stand for something else than before.
    pub(super) fn changed(&self) -> impl Iterator<Item = (&[u8], Name)> {
        let changed = self.entries.iter().filter(|(_, name)| name.before != name.now);
        changed.map(|(bytes, name)| (&bytes[..], *name))
    }
}

/// Every name that `commits` speak of, with what it stands for as the volume lies. Each directory
/// is read once, however many of its names change.
pub(super) fn collect(
    volume: &Arc<Volume>,
    commits: &[Vec<Change>],
    maps: &mut MapReader,
) -> Result<BTreeMap<InodeNumber, Names>> {
    let mut directories: BTreeMap<InodeNumber, Names> = BTreeMap::new();
    for change in commits.iter().flatten() {
        if let Change::Link { parent, name, .. } | Change::Unlink { parent, name, .. } = change {
            let names = directories.entry(*parent).or_default();
            names.entries.insert(name.clone(), Name::default());
        }
    }
    let mut blocks = 0;
    for (&number, names) in &mut directories {
        read(volume, number, names, &mut blocks, maps)?;
    }
    Ok(directories)
}

fn read(
    volume: &Arc<Volume>,
    number: InodeNumber,
    names: &mut Names,
    blocks: &mut u64,
    maps: &mut MapReader,
) -> Result<()> {
    let record = match volume.inode_record(number) {
        // A directory that the fast commits make.
        Err(Error::NotFound) => return Ok(()),
        record => record?,
    };
    if record.kind != FileType::Directory
        || record.links == 0
        || record.flags.contains(InodeFlags::ENCRYPTED)
    {
        return Ok(());
    }
    if orphans::has_map(volume, &record) {
        // Directories do not share blocks, so together they have no more than the volume.
        let map = maps.read(volume, &record)?;
        *blocks = blocks.saturating_add(map.block_count());
        let (found, max) = (*blocks, volume.geometry().block_count);
        if found > max {
            let problem = Problem::Range { field: "blocks of directories", found, min: 0, max };
            return Err(Error::corrupt("directory", Location::inode(number), problem));
        }
    }
    let directory = Inode::new(Arc::clone(volume), record);
    directory.read_dir(DirCursor::default(), &mut |entry| {
        if let Some(name) = names.entries.get_mut(entry.name) {
            *name = Name { before: Some(entry.inode), now: Some(entry.inode) };
        }
        ControlFlow::Continue(())
    })
}
