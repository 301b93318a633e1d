//! The search for the paths of inodes with findings: one walk through the tree for many inodes.
//!
//! An inode without a name below the root has no path. Of an inode with several names, the first one that the walk meets
//! counts. Damaged directories are read up to the damage.

use std::collections::{BTreeMap, BTreeSet};

use base::attributes::FileType;
use base::{Error, InodeNumber};
use vfs::{CheckProgress, Volume};

use crate::directory::Entry;
use crate::failure::Result;
use crate::walk::{self, Flow, Order, Visit, Visitor};

/// Maximum length of a path. Directories with longer paths are not entered.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum length of all paths that a walk finds together. Further inodes have no path.
const ALL_BYTES_MAX: usize = 64 << 20;

/// Paths of inodes.
pub type Paths = BTreeMap<InodeNumber, Vec<u8>>;

/// Searches for paths of the inodes `sought`. `go_on` is called with the progress for
/// each entry. The search ends early if it returns false.
pub fn find(
    volume: &Volume,
    sought: BTreeSet<InodeNumber>,
    go_on: &mut dyn FnMut(CheckProgress) -> bool,
) -> Result<Paths> {
    let mut search = Search { sought, found: Paths::new(), bytes: 0, go_on };
    // Without a root directory, nothing has a path.
    let Ok(root) = volume.root() else { return Ok(search.found) };
    search.note(root.number(), b"/");
    if !search.sought.is_empty() {
        walk::walk(volume, root, b"/", Order::Inode, &mut search)?;
    }
    Ok(search.found)
}

struct Search<'a> {
    /// The inodes that the walk has not met.
    sought: BTreeSet<InodeNumber>,
    found: Paths,
    /// The length of all paths.
    bytes: usize,
    go_on: &'a mut dyn FnMut(CheckProgress) -> bool,
}

impl Search<'_> {
    fn note(&mut self, inode: InodeNumber, path: &[u8]) {
        if self.sought.remove(&inode) {
            self.bytes += path.len();
            self.found.insert(inode, path.to_vec());
        }
    }
}

impl Visitor for Search<'_> {
    fn meet(&mut self, path: &[u8], entry: &Entry) -> Result<Flow> {
        self.note(entry.inode, path);
        let (done, left) = (self.found.len() as u64, self.sought.len() as u64);
        let progress = CheckProgress { part: "paths", done, total: done + left };
        if self.sought.is_empty() || self.bytes >= ALL_BYTES_MAX || !(self.go_on)(progress) {
            return Ok(Flow::Quit);
        }
        let may_be_directory = entry.kind.is_none_or(|kind| kind == FileType::Directory);
        let is_entered = may_be_directory && path.len() <= PATH_BYTES_MAX;
        Ok(if is_entered { Flow::Enter } else { Flow::Skip })
    }

    fn arrive(&mut self, visit: &Visit<'_>) -> Result<Flow> {
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
        let sought = BTreeSet::from(["/", "/a", "/a/b/c"].map(number));
        let found = find(&volume, sought.clone(), &mut |_| true).unwrap();
        assert_eq!(found, ["/", "/a", "/a/b/c"].map(|path| (number(path), path.into())).into());
        let mut calls = 0;
        let found = find(&volume, sought, &mut |_| {
            calls += 1;
            false
        });
        assert_eq!((calls, found.unwrap().contains_key(&number("/a/b/c"))), (1, false));
    }
}
