//! One of several threads that change a volume: it makes, writes, links, moves, replaces, cuts off
//! and removes files at random, in a directory of its own and, under names of its own, in one that
//! all of them share; and it keeps track of what it was promised.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, Result};
use device::RecordDevice;
use ext4::{Inode, Named, NewInode, RenameMode, Volume};
use parking_lot::Mutex;
use testkit::Random;

use crate::common::cached_file::{Cache, CachedFile};
use crate::common::{TIME, new_inode};
use crate::direct;
use crate::planted::Bug;
use testkit::crash::{FileHistory, Node, Promises, Tree, parent_and_name};

const SIZE_MAX: u64 = 24_000;
const NAMES_OF_A_BURST: u64 = 24;

/// What the threads share.
pub struct Common {
    pub volume: Arc<Volume>,
    pub device: Arc<RecordDevice>,
    pub cache: Cache,
    pub bug: Bug,
    /// A directory, and the lock that its inode would have.
    pub shared: (Arc<Inode>, Mutex<()>),
    /// A file that all append to, and the lock that its inode would have.
    pub log: (CachedFile, Mutex<FileHistory>),
    /// How many operations each thread has done.
    pub done: Vec<AtomicUsize>,
    /// What was promised by syncs of the volume: from which point on how many operations of each
    /// thread are durable.
    pub syncs: Mutex<Vec<(usize, Vec<usize>)>>,
}

/// What is in memory of an inode.
enum Open {
    File(CachedFile),
    Other(Arc<Inode>),
}

impl Open {
    fn inode(&self) -> &Arc<Inode> {
        match self {
            Self::File(file) => &file.inode,
            Self::Other(inode) => inode,
        }
    }
}

pub struct Actor<'c> {
    common: &'c Common,
    number: usize,
    home: Arc<Inode>,
    random: Random,
    counter: u64,
    tree: Tree,
    open: BTreeMap<u64, Open>,
    /// Files that are written to and have no name any more.
    unnamed: Vec<u64>,
    /// By inode: the version of the tree that it was changed by last.
    changed_by: BTreeMap<u64, usize>,
    promises: Promises,
}

impl<'c> Actor<'c> {
    pub fn new(common: &'c Common, number: usize, home: Arc<Inode>, seed: u64) -> Self {
        Self {
            common,
            number,
            home,
            random: Random(seed.wrapping_mul(31) + number as u64),
            counter: 0,
            tree: Tree::default(),
            open: BTreeMap::new(),
            unnamed: Vec::new(),
            changed_by: BTreeMap::new(),
            promises: Promises::new(number),
        }
    }

    /// Does so many operations; gives what may be there after a cut.
    pub fn run(mut self, steps: usize) -> Promises {
        for _ in 0..steps {
            match self.step() {
                // What finds no space does nothing.
                Ok(()) | Err(Error::NoSpace) => {}
                Err(error) => panic!("thread {}: {error}", self.number),
            }
        }
        self.promises
    }

    fn step(&mut self) -> Result<()> {
        self.counter += 1;
        match self.random.below(100) {
            0..=11 => self.make(FileType::Regular),
            12..=14 => self.make(FileType::Directory),
            15..=17 => self.make(FileType::Symlink),
            18..=39 => self.write(),
            40..=43 => self.set_size(),
            44..=55 => self.sync(),
            56..=61 => self.rename(),
            62..=66 => self.replace(),
            67..=69 => self.link(),
            70..=76 => self.remove(),
            77..=78 => self.remove_directory(),
            79..=82 => self.change_attribute(),
            83..=84 => self.make_unnamed(),
            85..=86 => self.remove_open(),
            87..=88 => self.burst(),
            89..=94 => self.append_to_log(),
            95..=96 => self.sync_log(),
            97 => self.sync_volume(),
            98 => self.sync_directory(),
            _ => self.write_back(),
        }
    }

    /// Does an operation on names, which `paths` are, and notes what the tree is like then.
    fn change(
        &mut self,
        paths: &[&str],
        change: impl FnOnce(&mut Self) -> Result<Vec<u64>>,
    ) -> Result<()> {
        let begun = self.common.device.point();
        let is_shared = paths.iter().any(|path| path.starts_with("/shared/"));
        let lock = is_shared.then(|| self.common.shared.1.lock());
        let changed = change(self)?;
        drop(lock);
        let version = self.promises.add(begun, self.tree.clone());
        for path in paths {
            let number = self.directory(parent_and_name(path).0).number().0;
            self.changed_by.insert(number, version);
        }
        self.changed_by.extend(changed.into_iter().map(|number| (number, version)));
        self.common.done[self.number].store(version, Ordering::Release);
        Ok(())
    }

    fn directory(&self, path: &str) -> Arc<Inode> {
        match path {
            "/shared" => Arc::clone(&self.common.shared.0),
            path if path == self.home_path() => Arc::clone(&self.home),
            path => Arc::clone(self.open[&self.tree.names[path]].inode()),
        }
    }

    fn home_path(&self) -> String {
        format!("/home{}", self.number)
    }

    fn pick(&mut self, is_wanted: impl Fn(&Node) -> bool) -> Option<String> {
        let all: Vec<&String> = self
            .tree
            .names
            .iter()
            .filter(|(_, inode)| is_wanted(&self.tree.nodes[*inode]))
            .map(|(path, _)| path)
            .collect();
        self.random.pick(&all).map(|path| (*path).clone())
    }

    /// A regular file to be written to, with a name or without.
    fn pick_file(&mut self) -> Option<u64> {
        if self.random.below(8) == 0 {
            if let Some(&number) = self.random.pick(&self.unnamed) {
                return Some(number);
            }
        }
        let path = self.pick(|node| node.file.is_some())?;
        Some(self.tree.names[&path])
    }

    fn new_path(&mut self, kind: FileType) -> String {
        let name = format!("{}-{}", self.counter, "n".repeat(self.random.below(60) as usize));
        // Directories are made at home only, so that those that are shared count none.
        let directory = match self.random.below(4) {
            0 | 1 if kind != FileType::Directory => {
                return format!("/shared/{}-{name}", self.number);
            }
            2 if kind != FileType::Directory => self.pick(|node| node.kind == FileType::Directory),
            _ => None,
        };
        format!("{}/{name}", directory.unwrap_or(self.home_path()))
    }

    fn make(&mut self, kind: FileType) -> Result<()> {
        let path = self.new_path(kind);
        let target = match kind {
            FileType::Symlink => vec![b't'; 1 + self.random.below(150) as usize],
            _ => Vec::new(),
        };
        self.make_at(&path, kind, target).map(drop)
    }

    fn make_at(&mut self, path: &str, kind: FileType, target: Vec<u8>) -> Result<u64> {
        let mut made = 0;
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let new = NewInode { target: &target, ..new_inode(kind) };
            let inode = this.directory(parent).create(name.as_bytes(), &new)?;
            made = this.take(inode, target.clone());
            this.tree.add_name(path, made);
            Ok(vec![made])
        })?;
        Ok(made)
    }

    /// Takes in a new inode; gives its number.
    fn take(&mut self, inode: Arc<Inode>, target: Vec<u8>) -> u64 {
        let (number, kind) = (inode.number().0, inode.kind());
        let (open, file) = if kind == FileType::Regular {
            let Common { cache, bug, .. } = self.common;
            let open = cache.file(&inode, bug.mapper(&inode));
            (Open::File(open), Some(self.promises.new_file()))
        } else {
            (Open::Other(inode), None)
        };
        assert!(self.open.insert(number, open).is_none(), "an inode in use was given away");
        self.tree.nodes.insert(number, Node::new(kind, target, file));
        number
    }

    fn file(&mut self, number: u64) -> (CachedFile, &mut FileHistory) {
        let index = self.tree.nodes[&number].file.expect("a regular file");
        let Open::File(file) = &self.open[&number] else { panic!("a regular file") };
        (file.clone(), &mut self.promises.files[index])
    }

    fn write(&mut self) -> Result<()> {
        let Some(number) = self.pick_file() else { return Ok(()) };
        let mut random = self.random.clone();
        self.random.draw();
        let (file, history) = self.file(number);
        match random.below(3) {
            0 => direct::write_somewhere(&file, history, &mut random, SIZE_MAX).map(drop),
            _ => file.write_somewhere(history, &mut random, SIZE_MAX, 13),
        }
    }

    fn set_size(&mut self) -> Result<()> {
        let Some(number) = self.pick_file() else { return Ok(()) };
        let (by, version) = (self.random.draw(), self.promises.version());
        let (file, history) = self.file(number);
        let size = (by % (history.now().len() as u64 * 5 / 4 + 1)).min(SIZE_MAX) as usize;
        file.set_size(size);
        history.set_size(size);
        self.changed_by.insert(number, version);
        Ok(())
    }

    fn write_back(&mut self) -> Result<()> {
        let Some(number) = self.pick_file() else { return Ok(()) };
        self.file(number).0.write_back();
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let Some(number) = self.pick_file() else { return Ok(()) };
        let data_only = self.random.below(4) == 0;
        self.sync_file(number, data_only);
        Ok(())
    }

    fn sync_file(&mut self, number: u64, data_only: bool) {
        let Common { device, volume, .. } = self.common;
        let by_another = self.random.below(3) == 0 && self.tree.nodes[&number].links > 0;
        let (file, history) = self.file(number);
        let version = history.version();
        if by_another {
            // The inode as it comes into memory when the file is opened again.
            file.write_back();
            volume.inode(file.inode.number()).unwrap().sync(data_only).unwrap();
        } else {
            file.sync(data_only);
        }
        let point = device.point();
        history.is_durable(point, version);
        // Its names with it; those it got last need not be where only data was asked for.
        if let Some(&version) = self.changed_by.get(&number).filter(|_| !data_only) {
            self.promises.are_durable(point, version);
        }
    }

    fn sync_directory(&mut self) -> Result<()> {
        let path = match self.random.below(3) {
            0 => "/shared".into(),
            1 => self.home_path(),
            _ => self.pick(|node| node.kind == FileType::Directory).unwrap_or(self.home_path()),
        };
        let directory = self.directory(&path);
        let version = self.changed_by.get(&directory.number().0).copied().unwrap_or(0);
        directory.sync(false)?;
        self.promises.are_durable(self.common.device.point(), version);
        Ok(())
    }

    fn sync_volume(&mut self) -> Result<()> {
        let done = &self.common.done;
        let done = done.iter().map(|version| version.load(Ordering::Acquire)).collect();
        self.common.volume.sync()?;
        let point = self.common.device.point();
        self.common.syncs.lock().push((point, done));
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let Some(from) = self.pick(|_| true) else { return Ok(()) };
        let kind = self.tree.node(&from).kind;
        let is_file = |node: &Node| node.kind != FileType::Directory;
        let existing = match kind {
            FileType::Directory => None,
            _ if self.random.below(2) == 0 => self.pick(is_file),
            _ => None,
        };
        let exchange = existing.is_some() && self.random.below(3) == 0;
        let onto = match existing {
            Some(path) => path,
            None => self.new_path(kind),
        };
        self.rename_to(&from, &onto, exchange)
    }

    fn rename_to(&mut self, from: &str, onto: &str, exchange: bool) -> Result<()> {
        if from == onto {
            return Ok(());
        }
        let moved = self.tree.names[from];
        let replaced = self.tree.names.get(onto).copied();
        if replaced == Some(moved) {
            return Ok(());
        }
        self.change(&[from, onto], |this| {
            let [(from_parent, from_name), (onto_parent, onto_name)] =
                [from, onto].map(parent_and_name);
            let [from_parent, onto_parent] =
                [from_parent, onto_parent].map(|it| this.directory(it));
            let mode = if exchange { RenameMode::Exchange } else { RenameMode::Move };
            Arc::clone(this.open[&moved].inode()).rename(
                Named { directory: &from_parent, name: from_name.as_bytes() },
                Named { directory: &onto_parent, name: onto_name.as_bytes() },
                replaced.map(|number| this.open[&number].inode()),
                &mode,
                TIME,
            )?;
            if let Some(replaced) = replaced {
                this.tree.remove_name(onto);
                if exchange {
                    this.tree.add_name(onto, moved);
                    this.tree.remove_name(from);
                    this.tree.add_name(from, replaced);
                    return Ok(vec![moved, replaced]);
                }
            }
            this.tree.rename(from, onto);
            Ok([moved].into_iter().chain(replaced).collect())
        })?;
        replaced.map_or(Ok(()), |replaced| self.forget(replaced))
    }

    /// As programs replace a file: a new one is written, synced as a rule, and renamed.
    fn replace(&mut self) -> Result<()> {
        let Some(onto) = self.pick(|node| node.file.is_some()) else { return Ok(()) };
        let path = self.new_path(FileType::Regular);
        let number = self.make_at(&path, FileType::Regular, Vec::new())?;
        let mut random = Random(self.random.draw());
        let (file, history) = self.file(number);
        file.write_somewhere(history, &mut random, SIZE_MAX, 13)?;
        drop(file);
        if random.below(4) > 0 {
            self.sync_file(number, false);
        }
        self.rename_to(&path, &onto, false)?;
        if random.below(2) == 0 {
            self.sync_file(number, false);
        }
        Ok(())
    }

    fn link(&mut self) -> Result<()> {
        let Some(from) = self.pick(|node| node.kind != FileType::Directory) else { return Ok(()) };
        let path = self.new_path(FileType::Regular);
        self.link_at(self.tree.names[&from], &path)
    }

    fn link_at(&mut self, number: u64, path: &str) -> Result<()> {
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let inode = this.open[&number].inode();
            this.directory(parent).link(name.as_bytes(), inode, TIME)?;
            this.tree.add_name(path, number);
            Ok(vec![number])
        })
    }

    /// A file that gets its name when there is something in it.
    fn make_unnamed(&mut self) -> Result<()> {
        let inode = self.home.create_unnamed(&new_inode(FileType::Regular))?;
        let number = self.take(inode, Vec::new());
        let mut random = Random(self.random.draw());
        let (file, history) = self.file(number);
        // It is linked whether or not there was room for that.
        let _ = file.write_somewhere(history, &mut random, SIZE_MAX, 13);
        drop(file);
        if random.below(2) == 0 {
            self.sync_file(number, false);
        }
        let path = self.new_path(FileType::Regular);
        match self.link_at(number, &path) {
            Ok(()) => Ok(()),
            Err(error) => self.forget(number).and(Err(error)),
        }
    }

    fn remove(&mut self) -> Result<()> {
        match self.pick(|node| node.kind != FileType::Directory) {
            Some(path) => {
                let number = self.unlink(&path)?;
                self.forget(number)
            }
            None => Ok(()),
        }
    }

    fn unlink(&mut self, path: &str) -> Result<u64> {
        let number = self.tree.names[path];
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let inode = Arc::clone(this.open[&number].inode());
            this.directory(parent).unlink(name.as_bytes(), &inode, TIME)?;
            this.tree.remove_name(path);
            Ok(vec![number])
        })?;
        Ok(number)
    }

    /// Removes a file's name and goes on to write to it, or ends that.
    fn remove_open(&mut self) -> Result<()> {
        if self.unnamed.len() > 2 {
            let number = self.unnamed.remove(0);
            return self.forget(number);
        }
        let Some(path) = self.pick(|node| node.file.is_some() && node.links == 1) else {
            return Ok(());
        };
        let number = self.unlink(&path)?;
        self.unnamed.push(number);
        Ok(())
    }

    fn remove_directory(&mut self) -> Result<()> {
        let Some(path) = self.pick(|node| node.kind == FileType::Directory) else { return Ok(()) };
        if self.tree.names.keys().any(|other| parent_and_name(other).0 == path) {
            return Ok(());
        }
        let number = self.tree.names[&path];
        self.change(&[&path], |this| {
            let (parent, name) = parent_and_name(&path);
            let inode = Arc::clone(this.open[&number].inode());
            this.directory(parent).rmdir(name.as_bytes(), &inode, TIME)?;
            this.tree.remove_name(&path);
            Ok(vec![number])
        })?;
        self.forget(number)
    }

    /// Ends the use of an inode that has no name any more.
    fn forget(&mut self, number: u64) -> Result<()> {
        if self.tree.names.values().any(|named| *named == number) {
            return Ok(());
        }
        self.tree.nodes.remove(&number);
        self.changed_by.remove(&number);
        match self.open.remove(&number).expect("it was in use") {
            Open::File(file) => file.release(),
            Open::Other(inode) => inode.release(),
        }
    }

    fn change_attribute(&mut self) -> Result<()> {
        let Some(path) = self.pick(|node| node.kind != FileType::Symlink) else { return Ok(()) };
        let number = self.tree.names[&path];
        let (which, bits) = (self.random.below(4), self.random.draw());
        let name = format!("user.{}", bits % 3);
        self.change(&[], |this| {
            let inode = Arc::clone(this.open[&number].inode());
            let node = this.tree.nodes.get_mut(&number).expect("it has a name");
            let none = AttributeChange::default();
            if which == 0 {
                let permissions = Some((bits % 0o1000) as u16);
                inode.set_attributes(&AttributeChange { permissions, ..none })?;
                node.permissions = (bits % 0o1000) as u16;
            } else if which == 1 && node.xattrs.contains_key(name.as_bytes()) {
                inode.remove_xattr(name.as_bytes(), &none)?;
                node.xattrs.remove(name.as_bytes());
            } else {
                let value = vec![b'v'; 1 + (bits >> 8) as usize % 300];
                inode.set_xattr(name.as_bytes(), &value, XattrMode::Either, &none)?;
                node.xattrs.insert(name.into_bytes(), value);
            }
            Ok(vec![number])
        })
    }

    /// Makes or removes many names in the shared directory, so that it is split and emptied.
    fn burst(&mut self) -> Result<()> {
        let prefix = format!("/shared/{}-burst", self.number);
        let there: Vec<String> =
            self.tree.names.keys().filter(|path| path.starts_with(&prefix)).cloned().collect();
        if there.is_empty() {
            for index in 0..NAMES_OF_A_BURST {
                let path = format!("{prefix}-{index}-{}", "n".repeat(180));
                self.make_at(&path, FileType::Fifo, Vec::new())?;
            }
        }
        for path in there {
            let number = self.unlink(&path)?;
            self.forget(number)?;
        }
        Ok(())
    }

    fn append_to_log(&mut self) -> Result<()> {
        let (file, history) = &self.common.log;
        let mut history = history.lock();
        direct::append(file, &mut history, &mut self.random)
    }

    fn sync_log(&mut self) -> Result<()> {
        let (file, history) = &self.common.log;
        let version = history.lock().version();
        file.sync(false);
        let point = self.common.device.point();
        history.lock().is_durable(point, version);
        Ok(())
    }
}
