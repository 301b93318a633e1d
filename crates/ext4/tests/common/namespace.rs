//! Random operations on names, in a volume and in a model of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::attributes::{FileType, Timestamp};
use base::{Error, InodeNumber, Result};
use ext4::{Inode, Named, RenameMode, Volume};
use fs::NewInode;
use testkit::Random;
pub use testkit::crash::{Entry, Paths as Tree, read_tree};

use crate::common::new_inode;

/// A volume under test, its loaded inodes, and the model.
pub struct World {
    pub volume: Arc<Volume>,
    pub tree: Tree,
    /// Loaded inodes by number.
    nodes: BTreeMap<u64, Arc<Inode>>,
    random: Random,
    counter: u64,
    /// Maximum number of names that the operations create in a directory.
    names_max: usize,
}

const ROOT: u64 = 2;

fn time(counter: u64) -> Timestamp {
    Timestamp { seconds: 1_700_000_000 + counter as i64, nanoseconds: 5 }
}

impl World {
    /// Creates a world for a volume as mke2fs makes it.
    pub fn new(volume: Arc<Volume>, seed: u64, names_max: usize) -> Self {
        let root = Arc::new(volume.inode(InodeNumber(ROOT)).unwrap());
        let nodes = BTreeMap::from([(ROOT, root)]);
        let mut world =
            Self { volume, tree: Tree::new(), nodes, random: Random(seed), counter: 0, names_max };
        world.tree = read_tree(&*world.volume.file_system());
        let paths: Vec<(String, u64)> =
            world.tree.iter().map(|(path, entry)| (path.clone(), entry.inode)).collect();
        for (_, number) in paths {
            let inode = world.volume.inode(InodeNumber(number)).unwrap();
            world.nodes.insert(number, Arc::new(inode));
        }
        world
    }

    fn directories(&self) -> Vec<String> {
        let all = self.tree.iter().filter(|(_, entry)| entry.kind == FileType::Directory);
        let mut all: Vec<String> =
            all.map(|(path, _)| path.clone()).filter(|path| path != "/lost+found").collect();
        all.push(String::new());
        all
    }

    fn others(&self, kind: impl Fn(FileType) -> bool) -> Vec<String> {
        let all = self.tree.iter().filter(|(_, entry)| kind(entry.kind));
        all.map(|(path, _)| path.clone()).filter(|path| path != "/lost+found").collect()
    }

    fn number(&self, path: &str) -> u64 {
        if path.is_empty() { ROOT } else { self.tree[path].inode }
    }

    fn node(&self, path: &str) -> Arc<Inode> {
        Arc::clone(&self.nodes[&self.number(path)])
    }

    fn links_of_parent(&mut self, path: &str, more: bool) {
        let (parent, _) = split(path);
        if let Some(entry) = self.tree.get_mut(parent) {
            entry.links = if more { entry.links + 1 } else { entry.links - 1 };
        }
    }

    /// Does one operation. Returns false if there was no space for it.
    pub fn step(&mut self) -> bool {
        self.counter += 1;
        let done = match self.random.below(100) {
            0..=34 => self.create(),
            35..=44 => self.link(),
            45..=64 => self.unlink(),
            65..=72 => self.rmdir(),
            73..=94 => self.rename(),
            _ => self.change_mode(),
        };
        match done {
            Ok(()) => true,
            Err(Error::NoSpace) => false,
            Err(error) => panic!("operation {}: {error}", self.counter),
        }
    }

    fn new_path(&mut self) -> String {
        let directories = self.directories();
        let directory = self.random.pick(&directories).unwrap().clone();
        let name_bytes = 1 + self.random.below(60) as usize;
        let name = format!("{}-{}", self.counter, "n".repeat(name_bytes));
        let crowded = self.tree.keys().filter(|path| split(path).0 == directory).count();
        if crowded > self.names_max { format!("/{name}") } else { format!("{directory}/{name}") }
    }

    fn create(&mut self) -> Result<()> {
        let path = self.new_path();
        let (parent, name) = split(&path);
        let target = vec![b't'; 1 + self.random.below(120) as usize];
        let kind = match self.random.below(10) {
            0..=4 => FileType::Regular,
            5..=7 => FileType::Directory,
            8 => FileType::Symlink,
            _ => FileType::Fifo,
        };
        let permissions = 0o600 + self.random.below(64) as u16;
        let target = if kind == FileType::Symlink { target } else { Vec::new() };
        let time = time(self.counter);
        let new = NewInode { permissions, target: &target, time, ..new_inode(kind) };
        let inode = self.node(parent).create(name.as_bytes(), &new)?;
        let number = inode.number().0;
        assert!(self.nodes.insert(number, inode).is_none(), "an inode in use was allocated again");
        let links = if kind == FileType::Directory { 2 } else { 1 };
        let entry = Entry { inode: number, kind, links, permissions, target };
        if kind == FileType::Directory {
            self.links_of_parent(&path, true);
        }
        self.tree.insert(path, entry);
        Ok(())
    }

    fn link(&mut self) -> Result<()> {
        let all = self.others(|kind| kind != FileType::Directory);
        let Some(from) = self.random.pick(&all).cloned() else { return Ok(()) };
        let path = self.new_path();
        let (parent, name) = split(&path);
        let inode = self.node(&from);
        self.node(parent).link(name.as_bytes(), &inode, time(self.counter))?;
        let entry = self.tree[&from].clone();
        self.tree.insert(path, entry);
        self.count_links(inode.number().0);
        Ok(())
    }

    fn count_links(&mut self, number: u64) {
        let count = self.tree.values().filter(|entry| entry.inode == number).count() as u32;
        for entry in self.tree.values_mut().filter(|entry| entry.inode == number) {
            if entry.kind != FileType::Directory {
                entry.links = count;
            }
        }
    }

    fn release_if_nameless(&mut self, number: u64) -> Result<()> {
        self.count_links(number);
        if self.tree.values().all(|entry| entry.inode != number) {
            self.nodes.remove(&number).expect("the inode was in use").release()?;
        }
        Ok(())
    }

    fn unlink(&mut self) -> Result<()> {
        let all = self.others(|kind| kind != FileType::Directory);
        let Some(path) = self.random.pick(&all).cloned() else { return Ok(()) };
        let (parent, name) = split(&path);
        let inode = self.node(&path);
        self.node(parent).unlink(name.as_bytes(), &inode, time(self.counter))?;
        let entry = self.tree.remove(&path).unwrap();
        drop(inode);
        self.release_if_nameless(entry.inode)
    }

    fn rmdir(&mut self) -> Result<()> {
        let all = self.others(|kind| kind == FileType::Directory);
        let Some(path) = self.random.pick(&all).cloned() else { return Ok(()) };
        let (parent, name) = split(&path);
        let inode = self.node(&path);
        let is_empty = !self.tree.keys().any(|other| split(other).0 == path);
        let done = self.node(parent).rmdir(name.as_bytes(), &inode, time(self.counter));
        if !is_empty {
            assert_eq!(done, Err(Error::NotEmpty), "{path}");
            return Ok(());
        }
        done?;
        self.links_of_parent(&path, false);
        let entry = self.tree.remove(&path).unwrap();
        drop(inode);
        self.release_if_nameless(entry.inode)
    }

    fn rename(&mut self) -> Result<()> {
        let all = self.others(|_| true);
        let Some(from) = self.random.pick(&all).cloned() else { return Ok(()) };
        let onto = if self.random.below(2) == 0 {
            self.random.pick(&all).cloned().unwrap()
        } else {
            self.new_path()
        };
        let within = |outer: &str, inner: &str| inner.starts_with(&format!("{outer}/"));
        // The caller of the format excludes these cases.
        if from == onto || within(&from, &onto) || within(&onto, &from) {
            return Ok(());
        }
        let exchange = self.tree.contains_key(&onto) && self.random.below(3) == 0;
        let moved = self.node(&from);
        let replaced = self.tree.contains_key(&onto).then(|| self.node(&onto));
        let mode = if exchange { RenameMode::Exchange } else { RenameMode::Move };
        let (from_parent, from_name) = split(&from);
        let (onto_parent, onto_name) = split(&onto);
        let (from_parent, onto_parent) = (self.node(from_parent), self.node(onto_parent));
        let done = moved.rename(
            Named { directory: &from_parent, name: from_name.as_bytes() },
            Named { directory: &onto_parent, name: onto_name.as_bytes() },
            replaced.as_ref(),
            &mode,
            time(self.counter),
        );
        if exchange {
            done?;
            self.exchange(&from, &onto);
            return Ok(());
        }
        if let Some(expected) = self.refusal(&from, &onto) {
            assert_eq!(done, Err(expected), "{from} to {onto}");
            return Ok(());
        }
        done?;
        if replaced.is_some_and(|one| one.number() == moved.number()) {
            return Ok(());
        }
        let gone = self.tree.remove(&onto);
        if gone.as_ref().is_some_and(|entry| entry.kind == FileType::Directory) {
            self.links_of_parent(&onto, false);
        }
        self.move_tree(&from, &onto);
        match gone {
            Some(entry) => self.release_if_nameless(entry.inode),
            None => Ok(()),
        }
    }

    fn refusal(&self, from: &str, onto: &str) -> Option<Error> {
        let is_directory = |path: &str| self.tree[path].kind == FileType::Directory;
        let existing = self.tree.get(onto)?;
        if existing.inode == self.tree[from].inode {
            return None;
        }
        match (is_directory(from), is_directory(onto)) {
            (true, false) => Some(Error::NotDirectory),
            (false, true) => Some(Error::IsDirectory),
            (true, true) if self.tree.keys().any(|path| split(path).0 == onto) => {
                Some(Error::NotEmpty)
            }
            _ => None,
        }
    }

    fn remove_tree(&mut self, path: &str) -> Vec<(String, Entry)> {
        let prefix = format!("{path}/");
        let below: Vec<String> =
            self.tree.keys().filter(|one| one.starts_with(&prefix)).cloned().collect();
        let mut removed = vec![(String::new(), self.tree.remove(path).unwrap())];
        for one in below {
            let entry = self.tree.remove(&one).unwrap();
            removed.push((one[path.len()..].to_owned(), entry));
        }
        if removed[0].1.kind == FileType::Directory {
            self.links_of_parent(path, false);
        }
        removed
    }

    fn insert_tree(&mut self, path: &str, removed: Vec<(String, Entry)>) {
        if removed[0].1.kind == FileType::Directory {
            self.links_of_parent(path, true);
        }
        self.tree.extend(removed.into_iter().map(|(rest, entry)| (format!("{path}{rest}"), entry)));
    }

    fn move_tree(&mut self, from: &str, onto: &str) {
        let removed = self.remove_tree(from);
        self.insert_tree(onto, removed);
    }

    fn exchange(&mut self, one: &str, other: &str) {
        let (first, second) = (self.remove_tree(one), self.remove_tree(other));
        self.insert_tree(other, first);
        self.insert_tree(one, second);
    }

    fn change_mode(&mut self) -> Result<()> {
        let all = self.others(|_| true);
        let Some(path) = self.random.pick(&all).cloned() else { return Ok(()) };
        let permissions = self.random.below(0o1000) as u16;
        let change = base::attributes::AttributeChange {
            permissions: Some(permissions),
            ..Default::default()
        };
        self.node(&path).set_attributes(&change)?;
        let number = self.number(&path);
        for entry in self.tree.values_mut().filter(|entry| entry.inode == number) {
            entry.permissions = permissions;
        }
        Ok(())
    }
}

/// Returns the parent and the name. The root is `""`.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').expect("paths begin with a slash")
}
