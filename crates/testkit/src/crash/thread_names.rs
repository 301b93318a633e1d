//! The names of one of several threads that change a volume at random: in its own directory, and
//! its own names in a shared directory. Chooses the names for the next operation and keeps the
//! promises to the thread. Not here: the operations, and open files.

use std::collections::BTreeMap;

use base::attributes::FileType;

use super::promises::{Node, Promises, Tree, parent_and_name};
use crate::Random;

/// The path of the directory that all threads share.
const SHARED: &str = "/shared";

/// The names and inodes of one thread.
#[derive(Debug)]
pub struct ThreadNames {
    /// The number of the thread.
    pub thread: usize,
    /// The source of all choices.
    pub random: Random,
    /// The current names.
    pub tree: Tree,
    /// Open files whose names were removed.
    pub unnamed: Vec<u64>,
    /// The promises so far.
    pub promises: Promises,
    /// The number of operations so far.
    counter: u64,
    /// The inode of the thread's own directory.
    home: u64,
    /// The inode of the shared directory.
    shared: u64,
    /// The version of the tree that changed each inode last.
    changed_by: BTreeMap<u64, usize>,
}

/// A rename that was chosen.
#[derive(Clone, Debug)]
pub struct Rename {
    /// The current path.
    pub from: String,
    /// The new path.
    pub onto: String,
    /// Whether the two paths exchange their inodes.
    pub is_exchange: bool,
    /// The inode at `from`.
    pub moved: u64,
    /// The inode at `onto`.
    pub replaced: Option<u64>,
}

impl ThreadNames {
    /// Returns the names of a thread that has done nothing. `home` and `shared` are the inodes of
    /// its directories.
    pub fn new(thread: usize, home: u64, shared: u64, seed: u64) -> Self {
        Self {
            thread,
            random: Random(seed.wrapping_mul(31) + thread as u64),
            tree: Tree::default(),
            unnamed: Vec::new(),
            promises: Promises::new(thread),
            counter: 0,
            home,
            shared,
            changed_by: BTreeMap::new(),
        }
    }

    /// Begins an operation. Returns a random number below 100, which chooses it.
    pub fn begin_operation(&mut self) -> u64 {
        self.counter += 1;
        self.random.below(100)
    }

    /// Returns the path of the thread's own directory.
    pub fn home_path(&self) -> String {
        format!("/home{}", self.thread)
    }

    /// Returns the inode of the directory at `path`.
    pub fn directory(&self, path: &str) -> u64 {
        match path {
            SHARED => self.shared,
            path if path == self.home_path() => self.home,
            path => self.tree.names[path],
        }
    }

    /// Chooses a path whose inode `is_wanted`.
    pub fn pick(&mut self, is_wanted: impl Fn(&Node) -> bool) -> Option<String> {
        let named = self.tree.names.iter();
        let wanted = named.filter(|(_, inode)| is_wanted(&self.tree.nodes[*inode]));
        let all: Vec<&String> = wanted.map(|(path, _)| path).collect();
        self.random.pick(&all).map(|path| (*path).clone())
    }

    /// Chooses the inode of a regular file, with a name or without.
    pub fn pick_file(&mut self) -> Option<u64> {
        if self.random.below(8) == 0 {
            if let Some(&number) = self.random.pick(&self.unnamed) {
                return Some(number);
            }
        }
        let path = self.pick(|node| node.file.is_some())?;
        Some(self.tree.names[&path])
    }

    /// Chooses a path that does not exist, for an inode of type `kind`.
    pub fn new_path(&mut self, kind: FileType) -> String {
        let name = format!("{}-{}", self.counter, "n".repeat(self.random.below(60) as usize));
        // Directories are created in the thread's own directory only, so that the shared one's link
        // count is constant.
        let directory = match self.random.below(4) {
            0 | 1 if kind != FileType::Directory => {
                return format!("{SHARED}/{}-{name}", self.thread);
            }
            2 if kind != FileType::Directory => self.pick(|node| node.kind == FileType::Directory),
            _ => None,
        };
        format!("{}/{name}", directory.unwrap_or(self.home_path()))
    }

    /// Chooses the target of a new inode of type `kind`. Empty unless it is a symbolic link.
    pub fn new_target(&mut self, kind: FileType) -> Vec<u8> {
        match kind {
            FileType::Symlink => vec![b't'; 1 + self.random.below(150) as usize],
            _ => Vec::new(),
        }
    }

    /// Chooses a directory to be synced. Returns its inode.
    pub fn pick_directory_to_sync(&mut self) -> u64 {
        let path = match self.random.below(3) {
            0 => SHARED.into(),
            1 => self.home_path(),
            _ => self.pick(|node| node.kind == FileType::Directory).unwrap_or(self.home_path()),
        };
        self.directory(&path)
    }

    /// Chooses a directory of the thread. Returns its path if it is empty.
    pub fn pick_empty_directory(&mut self) -> Option<String> {
        let path = self.pick(|node| node.kind == FileType::Directory)?;
        let mut names = self.tree.names.keys();
        (!names.any(|other| parent_and_name(other).0 == path)).then_some(path)
    }

    /// Chooses two paths for a rename. Returns nothing if they are names of the same inode.
    pub fn pick_rename(&mut self) -> Option<Rename> {
        let from = self.pick(|_| true)?;
        let kind = self.tree.node(&from).kind;
        let is_file = |node: &Node| node.kind != FileType::Directory;
        let existing = match kind {
            FileType::Directory => None,
            _ if self.random.below(2) == 0 => self.pick(is_file),
            _ => None,
        };
        let is_exchange = existing.is_some() && self.random.below(3) == 0;
        let onto = match existing {
            Some(path) => path,
            None => self.new_path(kind),
        };
        self.rename(from, onto, is_exchange)
    }

    /// Returns the rename of `from` onto `onto`, or nothing if they are names of the same inode.
    pub fn rename(&self, from: String, onto: String, is_exchange: bool) -> Option<Rename> {
        let moved = self.tree.names[&from];
        let replaced = self.tree.names.get(&onto).copied();
        (replaced != Some(moved)).then_some(Rename { from, onto, is_exchange, moved, replaced })
    }

    /// Adds a new inode, which has no name yet.
    pub fn add_inode(&mut self, number: u64, kind: FileType, permissions: u16, target: Vec<u8>) {
        let file = (kind == FileType::Regular).then(|| self.promises.new_file());
        self.tree.nodes.insert(number, Node::new(kind, permissions, target, file));
    }

    /// Records the end of an operation on names. It began at or after the point `begun`, had the
    /// names `paths` as arguments, and changed the inodes `changed`. Returns the new version of the
    /// tree.
    pub fn end_operation(&mut self, begun: usize, paths: &[&str], changed: &[u64]) -> usize {
        let version = self.promises.add(begun, self.tree.clone());
        let parents: Vec<u64> =
            paths.iter().map(|path| self.directory(parent_and_name(path).0)).collect();
        let all = parents.into_iter().chain(changed.iter().copied());
        self.changed_by.extend(all.map(|number| (number, version)));
        version
    }

    /// Applies a rename to the tree. Returns the inodes that it changed.
    pub fn renamed(&mut self, rename: &Rename) -> Vec<u64> {
        let Rename { from, onto, is_exchange, moved, replaced } = rename;
        if let Some(replaced) = *replaced {
            self.tree.remove_name(onto);
            if *is_exchange {
                self.tree.add_name(onto, *moved);
                self.tree.remove_name(from);
                self.tree.add_name(from, replaced);
                return vec![*moved, replaced];
            }
        }
        self.tree.rename(from, onto);
        [*moved].into_iter().chain(*replaced).collect()
    }

    /// Records a change of an inode that is not an operation on names. A later sync of the inode
    /// makes its current names durable.
    pub fn inode_changed(&mut self, number: u64) {
        self.changed_by.insert(number, self.promises.version());
    }

    /// Records a sync of an inode that has ended at `point`, which makes the inode's names durable.
    pub fn inode_is_durable(&mut self, number: u64, point: usize) {
        if let Some(&version) = self.changed_by.get(&number) {
            self.promises.are_durable(point, version);
        }
    }

    /// Removes an inode unless it still has a name. Returns whether it was removed.
    pub fn remove_nameless(&mut self, number: u64) -> bool {
        let has_name = self.tree.names.values().any(|named| *named == number);
        if !has_name {
            self.tree.nodes.remove(&number);
            self.changed_by.remove(&number);
        }
        !has_name
    }
}
