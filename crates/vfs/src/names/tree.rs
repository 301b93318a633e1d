//! Creation of a directory with its parents, and removal of a directory with its contents.
//! Not here: calls on one name (`std/path.rs`).

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, InodeNumber, Location, Problem, Result};
use fs::Credentials;

use crate::names::namespace::check_name;
use crate::names::path::Follow;
use crate::node::Node;
use crate::std::path::bytes_of;
use crate::std::read_dir::{Batch, Entry};
use crate::volume::Volume;

/// The maximum number of times that the removal of a tree lists one directory. Other threads may
/// add names in between.
const PASSES_MAX: u32 = 16;

impl Volume {
    /// Creates the directory at `path`, and its missing parents, with the permissions 0o755. Does
    /// nothing if the directory exists. Errors: `Exists` or `NotDirectory` if a name in `path`
    /// belongs to a file that is no directory.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes_of(path.as_ref());
        let is_slash = |at: usize| path.get(at).is_none_or(|byte| *byte == b'/');
        let ends = (1..=path.len()).filter(|&end| is_slash(end) && !is_slash(end - 1));
        let directories: Vec<&[u8]> = ends.map(|end| &path[..end]).collect();
        // From the last directory back to the first that exists or can be created, and then forward
        // again.
        let mut missing = directories.len();
        while let Some(last) = missing.checked_sub(1) {
            match self.create_dir_if_missing(directories[last]) {
                Err(Error::NotFound) => missing = last,
                created => {
                    created?;
                    break;
                }
            }
        }
        directories[missing..].iter().try_for_each(|path| self.create_dir_if_missing(path))
    }

    fn create_dir_if_missing(&self, path: &[u8]) -> Result<()> {
        let created = self.create_dir(OsStr::from_bytes(path));
        let exists =
            || self.resolve(path, Follow::Yes).is_ok_and(|node| node.kind() == FileType::Directory);
        match created {
            Err(error) if error != Error::NotFound && exists() => Ok(()),
            created => created,
        }
    }

    /// Removes the directory at `path` with everything in it. Symbolic links, also at the end of
    /// `path`, are removed and not followed. After an error, a part of the tree may be removed.
    /// Errors: `InvalidArgument` for the root, and for paths that end in "." or ".."; `NotFound`;
    /// `NotDirectory`; `NotEmpty` if other threads add names all the time; `Corrupt` for a
    /// directory that contains itself, or that names another parent.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes_of(path.as_ref());
        let root = |error| match error {
            Error::IsDirectory => Error::InvalidArgument("the root directory cannot be removed"),
            error => error,
        };
        let (parent, name) = self.parent_of(path).map_err(root)?;
        check_name(name)?;
        let node = self.lookup(&parent, name)?;
        match node.kind() {
            FileType::Symlink => return self.unlink(&parent, name, &Credentials::ROOT),
            _ => node.require_directory()?,
        }
        self.remove_tree(Level::new(parent, name.to_vec(), node))
    }

    /// Removes the contents of a directory, and then the directory.
    fn remove_tree(&self, top: Level) -> Result<()> {
        let by = &Credentials::ROOT;
        let mut entered: HashSet<InodeNumber> = [top.node.number()].into();
        let mut levels = vec![top];
        while let Some(level) = levels.last_mut() {
            let Some(entry) = level.next_entry()? else {
                match self.rmdir(&level.parent, &level.name, by) {
                    // Another thread has added names.
                    Err(Error::NotEmpty) if level.restart() => continue,
                    removed => ignore_removed(removed)?,
                }
                entered.remove(&level.node.number());
                levels.pop();
                continue;
            };
            let node = match self.lookup(&level.node, &entry.name) {
                Err(Error::NotFound) => continue,
                found => found?,
            };
            if node.kind() != FileType::Directory {
                ignore_removed(self.unlink(&level.node, &entry.name, by))?;
                continue;
            }
            if entered.contains(&node.number()) {
                let location = Location::inode(node.number());
                return Err(Error::corrupt("directory", location, Problem::Cycle));
            }
            if node.lookup(b"..")? != level.node.number() {
                // It was moved concurrently, or the image is corrupt. Its contents may belong to
                // another tree.
                match self.lookup(&level.node, &entry.name) {
                    Ok(again) if Arc::ptr_eq(&again, &node) => {
                        let location = Location::inode(node.number());
                        let problem = Problem::Missing("the entry \"..\" with the parent's inode");
                        return Err(Error::corrupt("directory", location, problem));
                    }
                    _ => continue,
                }
            }
            entered.insert(node.number());
            let parent = Arc::clone(&level.node);
            levels.push(Level::new(parent, entry.name, node));
        }
        Ok(())
    }
}

/// A directory that is being removed with its contents.
struct Level {
    parent: Arc<Node>,
    name: Vec<u8>,
    node: Arc<Node>,
    entries: VecDeque<Entry>,
    /// The cursor of the entries after these. `None` at the end of the directory.
    next: Option<DirCursor>,
    /// The number of times that the directory may still be listed from its start.
    passes_left: u32,
}

impl Level {
    fn new(parent: Arc<Node>, name: Vec<u8>, node: Arc<Node>) -> Self {
        let next = Some(DirCursor::default());
        Self { parent, name, node, entries: VecDeque::new(), next, passes_left: PASSES_MAX - 1 }
    }

    /// Returns the next entry of this listing.
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        if let (true, Some(next)) = (self.entries.is_empty(), self.next) {
            let batch = Batch::read(&self.node, next)?;
            self.entries = batch.entries;
            self.next = batch.next;
        }
        Ok(self.entries.pop_front())
    }

    /// Begins another listing. Returns false if there were too many already.
    fn restart(&mut self) -> bool {
        let is_allowed = self.passes_left > 0;
        self.passes_left = self.passes_left.saturating_sub(1);
        self.next = Some(DirCursor::default());
        is_allowed
    }
}

/// Ignores `NotFound`, since another thread may have removed the name.
fn ignore_removed(removed: Result<()>) -> Result<()> {
    match removed {
        Err(Error::NotFound) => Ok(()),
        removed => removed,
    }
}
