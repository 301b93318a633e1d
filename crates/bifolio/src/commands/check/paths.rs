//! The search for the paths of inodes with findings, and for the files that have blocks with
//! findings: one walk through the tree for many of them.
//!
//! An inode without a name below the root has no path. Of an inode with several names, the first
//! one that the walk meets counts. Damaged directories are read up to the damage.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;

use base::attributes::FileType;
use base::{Error, FileOffset, FsBlock, InodeNumber};
use vfs::{CheckProgress, Node, Volume};

use crate::console::failure::Result;
use crate::tree::directory::Entry;
use crate::tree::walk::{self, Flow, Order, Visit, Visitor};

/// Maximum length of a path. Directories with longer paths are not entered.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum length of all paths that a walk finds together. Further inodes have no path.
const ALL_BYTES_MAX: usize = 64 << 20;
/// The number of extents of a map after which the caller is asked whether to go on.
const EXTENTS_BETWEEN_CALLS: usize = 1024;

/// What findings are about.
#[derive(Clone, Default)]
pub struct Sought {
    /// Inodes.
    pub inodes: BTreeSet<InodeNumber>,
    /// Blocks of files whose inodes are unknown.
    pub blocks: BTreeSet<FsBlock>,
}

impl Sought {
    /// Returns whether nothing is left to find.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.blocks.is_empty()
    }
}

/// What a search has found.
#[derive(Default)]
pub struct Paths {
    /// Paths of inodes.
    pub inodes: BTreeMap<InodeNumber, Vec<u8>>,
    /// The inodes that have blocks, and their paths.
    pub owners: BTreeMap<FsBlock, (InodeNumber, Vec<u8>)>,
}

/// Searches for paths. `go_on` is called with the progress for each entry. The search ends early if
/// it returns false.
pub fn find(
    volume: &Volume,
    sought: Sought,
    go_on: &mut dyn FnMut(CheckProgress) -> bool,
) -> Result<Paths> {
    let block_size = volume.statfs().block_size.into();
    let (found, looked_at) = (Paths::default(), HashSet::new());
    let mut search = Search { sought, found, block_size, looked_at, bytes: 0, go_on };
    // Without a root directory, nothing has a path.
    let Ok(root) = volume.root() else { return Ok(search.found) };
    search.note(root.number(), b"/");
    if !search.sought.is_empty() {
        walk::walk(volume, root, b"/", Order::Inode, &mut search)?;
    }
    Ok(search.found)
}

struct Search<'a> {
    /// What the walk has not met.
    sought: Sought,
    found: Paths,
    /// The size of a block in bytes.
    block_size: u64,
    /// The files whose maps were searched, which may have several names.
    looked_at: HashSet<InodeNumber>,
    /// The length of all paths.
    bytes: usize,
    go_on: &'a mut dyn FnMut(CheckProgress) -> bool,
}

impl Search<'_> {
    fn note(&mut self, inode: InodeNumber, path: &[u8]) {
        if self.sought.inodes.remove(&inode) {
            self.bytes += path.len();
            self.found.inodes.insert(inode, path.to_vec());
        }
    }

    /// Notes which of the sought blocks the file has. A map is read up to its damage.
    fn note_blocks(&mut self, node: &Node, path: &[u8]) {
        if !self.looked_at.insert(node.number()) {
            return;
        }
        let whole = FileOffset(0)..FileOffset(u64::MAX);
        let mut extents = 0;
        // What cannot be read was reported by the check.
        let _ = node.extents(whole, &mut |extent| {
            extents += 1;
            let progress = self.progress();
            if extents % EXTENTS_BETWEEN_CALLS == 0 && !(self.go_on)(progress) {
                return ControlFlow::Break(());
            }
            let start = extent.physical.0 / self.block_size;
            let end = start.saturating_add(extent.length.div_ceil(self.block_size));
            let blocks = self.sought.blocks.range(FsBlock(start)..FsBlock(end));
            // Each block is taken once: a damaged map may name it any number of times.
            for block in blocks.copied().collect::<Vec<_>>() {
                self.sought.blocks.remove(&block);
                self.bytes += path.len();
                self.found.owners.insert(block, (node.number(), path.to_vec()));
            }
            match self.sought.blocks.is_empty() || self.bytes >= ALL_BYTES_MAX {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    }

    fn progress(&self) -> CheckProgress {
        let done = (self.found.inodes.len() + self.found.owners.len()) as u64;
        let left = (self.sought.inodes.len() + self.sought.blocks.len()) as u64;
        CheckProgress { part: "paths", done, total: done + left }
    }
}

impl Visitor for Search<'_> {
    fn meet(&mut self, path: &[u8], entry: &Entry) -> Result<Flow> {
        self.note(entry.inode, path);
        let progress = self.progress();
        if self.sought.is_empty() || self.bytes >= ALL_BYTES_MAX || !(self.go_on)(progress) {
            return Ok(Flow::Quit);
        }
        let may_be_directory = entry.kind.is_none_or(|kind| kind == FileType::Directory);
        let is_looked_at = may_be_directory || !self.sought.blocks.is_empty();
        let is_entered = is_looked_at && path.len() <= PATH_BYTES_MAX;
        Ok(if is_entered { Flow::Enter } else { Flow::Skip })
    }

    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
        if !self.sought.blocks.is_empty() {
            self.note_blocks(visit.node, visit.path);
        }
        let is_directory = visit.node.kind() == FileType::Directory;
        Ok(if is_directory { Flow::Enter } else { Flow::Skip })
    }

    fn leave(&mut self, _visit: &Visit<'_>) -> Result<()> {
        Ok(())
    }

    fn failed(&mut self, _path: &[u8], _error: &Error) -> Result<()> {
        // The check reports the damage.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use testkit::Mke2fs;
    use vfs::{Follow, VolumeOptions};

    use super::*;

    #[test]
    fn a_search_finds_paths_until_it_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (image, source) = (folder.path().join("image"), folder.path().join("source"));
        std::fs::create_dir_all(source.join("a/b")).unwrap();
        std::fs::write(source.join("a/b/c"), "x").unwrap();
        Mke2fs::new("ext4", 4096).make(&image, Some(&source));
        let volume = VolumeOptions::default().open(&image).unwrap();
        let number = |path: &str| volume.resolve(path.as_bytes(), Follow::Yes).unwrap().number();
        let inodes = BTreeSet::from(["/", "/a", "/a/b/c"].map(number));
        let sought = Sought { inodes, ..Sought::default() };
        let found = find(&volume, sought.clone(), &mut |_| true).unwrap().inodes;
        assert_eq!(found, ["/", "/a", "/a/b/c"].map(|path| (number(path), path.into())).into());
        let mut calls = 0;
        let found = find(&volume, sought, &mut |_| {
            calls += 1;
            false
        });
        assert_eq!((calls, found.unwrap().inodes.contains_key(&number("/a/b/c"))), (1, false));
    }
}
