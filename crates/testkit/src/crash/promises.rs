//! A model of one thread's tree: its versions, and the promises of their durability.

use std::collections::BTreeMap;

use base::attributes::FileType;

use super::file_history::FileHistory;
use super::snapshot::Snapshot;

/// An inode of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The type.
    pub kind: FileType,
    /// The number of links.
    pub links: u32,
    /// The low 12 bits of the mode.
    pub permissions: u16,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// The extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The index of a regular file in [`Promises::files`].
    pub file: Option<usize>,
}

impl Node {
    /// Returns an inode that has no name yet.
    pub fn new(kind: FileType, permissions: u16, target: Vec<u8>, file: Option<usize>) -> Self {
        let links = if kind == FileType::Directory { 1 } else { 0 };
        Self { kind, links, permissions, target, xattrs: BTreeMap::new(), file }
    }
}

/// The names that belong to a thread, and their inodes.
#[derive(Clone, Default, Debug)]
pub struct Tree {
    /// The inode numbers by path.
    pub names: BTreeMap<String, u64>,
    /// The inodes by number.
    pub nodes: BTreeMap<u64, Node>,
}

/// Returns the parent's path and the name.
pub fn parent_and_name(path: &str) -> (&str, &str) {
    path.rsplit_once('/').expect("paths begin with a slash")
}

impl Tree {
    /// Returns the inode at `path`.
    pub fn node(&self, path: &str) -> &Node {
        &self.nodes[&self.names[path]]
    }

    /// Adds a name of an existing inode.
    pub fn add_name(&mut self, path: &str, inode: u64) {
        self.names.insert(path.into(), inode);
        self.count_links(path, inode, 1);
    }

    /// Removes a name.
    pub fn remove_name(&mut self, path: &str) {
        let inode = self.names.remove(path).expect("it was there");
        self.count_links(path, inode, -1);
    }

    /// Moves a name, and all names below it.
    pub fn rename(&mut self, from: &str, onto: &str) {
        let prefix = format!("{from}/");
        let all = self.names.keys().filter(|path| *path == from || path.starts_with(&prefix));
        for path in all.cloned().collect::<Vec<_>>() {
            let inode = self.names.remove(&path).expect("it was just there");
            self.names.insert(format!("{onto}{}", &path[from.len()..]), inode);
        }
    }

    fn count_links(&mut self, path: &str, inode: u64, by: i32) {
        let node = self.nodes.get_mut(&inode).expect("each name has an inode");
        node.links = node.links.saturating_add_signed(by);
        let parent = self.names.get(parent_and_name(path).0).copied();
        let counts = node.kind == FileType::Directory;
        if let Some(parent) = parent.filter(|_| counts).and_then(|one| self.nodes.get_mut(&one)) {
            parent.links = parent.links.saturating_add_signed(by);
        }
    }

    /// Returns whether this tree is equal to the snapshot's entries with the thread's names.
    fn is(&self, found: &BTreeMap<&str, u64>, snapshot: &Snapshot) -> bool {
        let names = self.names.iter().map(|(path, inode)| (path.as_str(), *inode));
        self.names.len() == found.len()
            && names.eq(found.iter().map(|(path, inode)| (*path, *inode)))
            && self.names.iter().all(|(path, inode)| {
                let (entry, node) = (&snapshot.tree[path], &self.nodes[inode]);
                let xattrs = snapshot.xattrs.get(inode);
                (entry.kind, entry.links, entry.permissions, &entry.target)
                    == (node.kind, node.links, node.permissions, &node.target)
                    && xattrs.map_or(node.xattrs.is_empty(), |found| *found == node.xattrs)
            })
    }
}

/// A version of a file that is durable if a version of the tree is.
#[derive(Debug)]
struct Implied {
    tree: usize,
    file: usize,
    version: usize,
}

/// The versions of a thread's tree and files, and their promises.
#[derive(Debug)]
pub struct Promises {
    thread: usize,
    /// The tree after each operation on names, and a point before the operation. The
    /// first version is the empty tree.
    versions: Vec<(usize, Tree)>,
    /// A point, and the version that is durable from there on.
    durable: Vec<(usize, usize)>,
    implied: Vec<Implied>,
    /// The contents of the thread's regular files.
    pub files: Vec<FileHistory>,
}

impl Promises {
    /// Returns the promises of a thread that has done nothing.
    pub fn new(thread: usize) -> Self {
        let versions = vec![(0, Tree::default())];
        Self { thread, versions, durable: Vec::new(), implied: Vec::new(), files: Vec::new() }
    }

    /// Returns the number of the last version.
    pub fn version(&self) -> usize {
        self.versions.len() - 1
    }

    /// Adds a version, whose operation began at or after `begun`. Returns its number.
    pub fn add(&mut self, begun: usize, tree: Tree) -> usize {
        self.versions.push((begun, tree));
        self.version()
    }

    /// Adds a regular file. Returns its number.
    pub fn new_file(&mut self) -> usize {
        let number = self.files.len();
        self.files.push(FileHistory::new((self.thread << 20 | number) as u64 + 1, false));
        number
    }

    /// Records that `version` of the tree is durable from `point` on.
    pub fn are_durable(&mut self, point: usize, version: usize) {
        self.durable.push((point, version));
    }

    /// Records that the current contents of a file are durable if the last version of the tree is.
    pub fn imply(&mut self, file: usize) {
        let (tree, version) = (self.version(), self.files[file].version());
        self.implied.push(Implied { tree, file, version });
    }

    /// Fails with a description if `snapshot` breaks a promise after a cut at `point`. Operations
    /// of one thread become durable in their order, so the tree must be equal to one of its
    /// versions.
    pub fn check(&self, point: usize, snapshot: &Snapshot) -> Result<(), String> {
        let durable = self.durable.iter().filter(|(from, _)| *from <= point);
        let durable = durable.map(|(_, version)| *version).max().unwrap_or(0);
        let prefixes = [format!("/home{}/", self.thread), format!("/shared/{}-", self.thread)];
        let found: BTreeMap<&str, u64> = snapshot
            .tree
            .iter()
            .filter(|(path, _)| prefixes.iter().any(|prefix| path.starts_with(prefix)))
            .map(|(path, entry)| (path.as_str(), entry.inode))
            .collect();
        let begun = self.versions.partition_point(|(begun, _)| *begun < point).max(1);
        // Several versions may match, since inode numbers are reused for other files.
        let mut wrong = None;
        for version in (durable..begun.max(durable + 1)).rev() {
            if !self.versions[version].1.is(&found, snapshot) {
                continue;
            }
            match self.check_contents(point, version, snapshot) {
                Ok(()) => return Ok(()),
                Err(what) => wrong = wrong.or(Some(what)),
            }
        }
        let thread = self.thread;
        let which = self.versions.iter().position(|(_, tree)| tree.is(&found, snapshot));
        Err(wrong.unwrap_or_else(|| {
            format!("thread {thread} has none of its trees {durable} to {begun}, but {which:?}")
        }))
    }

    fn check_contents(
        &self,
        point: usize,
        version: usize,
        snapshot: &Snapshot,
    ) -> Result<(), String> {
        let (_, tree) = &self.versions[version];
        for (path, inode) in &tree.names {
            if let Some(file) = tree.nodes[inode].file {
                let contents = &snapshot.contents[inode];
                let implied = self.implied.iter();
                let implied = implied.filter(|one| one.file == file && one.tree <= version);
                let since = implied.map(|one| one.version).max().unwrap_or(0);
                let checked = self.files[file].check_since(point, since, contents);
                checked.map_err(|what| format!("{path}, inode {inode}, has {what}"))?;
            }
        }
        Ok(())
    }
}
