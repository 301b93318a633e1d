//! One of several threads that change a volume. It creates, writes, links, renames, replaces,
//! truncates and removes files at random, in its own directory, and under its own names in a
//! directory that all threads share. It records which of its changes must be durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::attributes::{AttributeChange, FileType, XattrMode};
use base::{Error, Result};
use device::RecordDevice;
use ext4::{Inode, Named, RenameMode, Volume};
use fs::NewInode;
use parking_lot::Mutex;
use testkit::Random;

use crate::common::cached_file::{Cache, CachedFile};
use crate::common::{TIME, new_inode};
use crate::direct;
use crate::planted::Bug;
use testkit::crash::{FileHistory, Promises, Rename, ThreadNames, VolumeSyncs, parent_and_name};

const SIZE_MAX: u64 = 24_000;
const NAMES_OF_A_BURST: u64 = 24;

/// The state that the threads share.
pub struct Common {
    pub volume: Arc<Volume>,
    pub device: Arc<RecordDevice>,
    pub cache: Cache,
    pub bug: Bug,
    /// A directory, and the equivalent of its inode's lock.
    pub shared: (Arc<Inode>, Mutex<()>),
    /// A file that all threads append to, and the equivalent of its inode's lock.
    pub log: (CachedFile, Mutex<FileHistory>),
    pub syncs: VolumeSyncs,
}

/// A loaded inode.
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
    names: ThreadNames,
    home: Arc<Inode>,
    /// Loaded inodes by number, including the thread's own directory and the shared one.
    open: BTreeMap<u64, Open>,
}

impl<'c> Actor<'c> {
    pub fn new(common: &'c Common, number: usize, home: Arc<Inode>, seed: u64) -> Self {
        let shared = &common.shared.0;
        let names = ThreadNames::new(number, home.number().0, shared.number().0, seed);
        let directories = [&home, shared];
        let open = directories.map(|it| (it.number().0, Open::Other(Arc::clone(it)))).into();
        Self { common, names, home, open }
    }

    /// Does `steps` operations. Returns the states that may be found after a cut.
    pub fn run(mut self, steps: usize) -> Promises {
        for _ in 0..steps {
            match self.step() {
                // An operation without space does nothing.
                Ok(()) | Err(Error::NoSpace) => {}
                Err(error) => panic!("thread {}: {error}", self.names.thread),
            }
        }
        self.names.promises
    }

    fn step(&mut self) -> Result<()> {
        match self.names.begin_operation() {
            0..=11 => self.create(FileType::Regular),
            12..=14 => self.create(FileType::Directory),
            15..=17 => self.create(FileType::Symlink),
            18..=39 => self.write(),
            40..=43 => self.set_size(),
            44..=55 => self.sync(),
            56..=61 => self.rename(),
            62..=66 => self.replace(),
            67..=69 => self.link(),
            70..=76 => self.remove(),
            77..=78 => self.remove_directory(),
            79..=82 => self.change_attribute(),
            83..=84 => self.create_unnamed(),
            85..=86 => self.remove_open(),
            87..=88 => self.burst(),
            89..=94 => self.append_to_log(),
            95..=96 => self.sync_log(),
            97 => self.sync_volume(),
            98 => self.sync_directory(),
            _ => self.write_back(),
        }
    }

    /// Does an operation on the names `paths`, and records the tree afterwards.
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
        let version = self.names.end_operation(begun, paths, &changed);
        self.common.syncs.operation_ended(self.names.thread, version);
        Ok(())
    }

    fn directory(&self, path: &str) -> Arc<Inode> {
        Arc::clone(self.open[&self.names.directory(path)].inode())
    }

    fn create(&mut self, kind: FileType) -> Result<()> {
        let path = self.names.new_path(kind);
        let target = self.names.new_target(kind);
        self.create_at(&path, kind, target).map(drop)
    }

    fn create_at(&mut self, path: &str, kind: FileType, target: Vec<u8>) -> Result<u64> {
        let mut made = 0;
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let new = NewInode { target: &target, ..new_inode(kind) };
            let inode = this.directory(parent).create(name.as_bytes(), &new)?;
            made = this.add_inode(inode, target.clone());
            this.names.tree.add_name(path, made);
            Ok(vec![made])
        })?;
        Ok(made)
    }

    /// Adds a new inode to the loaded ones. Returns its number.
    fn add_inode(&mut self, inode: Arc<Inode>, target: Vec<u8>) -> u64 {
        let (number, kind) = (inode.number().0, inode.kind());
        let Common { cache, bug, .. } = self.common;
        let open = match kind {
            FileType::Regular => Open::File(cache.file(&inode, bug.mapper(&inode))),
            _ => Open::Other(inode),
        };
        assert!(self.open.insert(number, open).is_none(), "an inode in use was allocated again");
        self.names.add_inode(number, kind, 0o644, target);
        number
    }

    fn file(&mut self, number: u64) -> (CachedFile, &mut FileHistory) {
        let index = self.names.tree.nodes[&number].file.expect("a regular file");
        let Open::File(file) = &self.open[&number] else { panic!("a regular file") };
        (file.clone(), &mut self.names.promises.files[index])
    }

    fn write(&mut self) -> Result<()> {
        let Some(number) = self.names.pick_file() else { return Ok(()) };
        let mut random = self.names.random.clone();
        self.names.random.draw();
        let (file, history) = self.file(number);
        match random.below(3) {
            0 => direct::write_somewhere(&file, history, &mut random, SIZE_MAX).map(drop),
            _ => file.write_somewhere(history, &mut random, SIZE_MAX, 13),
        }
    }

    fn set_size(&mut self) -> Result<()> {
        let Some(number) = self.names.pick_file() else { return Ok(()) };
        let by = self.names.random.draw();
        let (file, history) = self.file(number);
        let size = (by % (history.now().len() as u64 * 5 / 4 + 1)).min(SIZE_MAX) as usize;
        file.set_size(size);
        history.set_size(size);
        self.names.inode_changed(number);
        Ok(())
    }

    fn write_back(&mut self) -> Result<()> {
        let Some(number) = self.names.pick_file() else { return Ok(()) };
        self.file(number).0.write_back();
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let Some(number) = self.names.pick_file() else { return Ok(()) };
        let data_only = self.names.random.below(4) == 0;
        self.sync_file(number, data_only);
        Ok(())
    }

    fn sync_file(&mut self, number: u64, data_only: bool) {
        let Common { device, volume, .. } = self.common;
        let by_new_instance =
            self.names.random.below(3) == 0 && self.names.tree.nodes[&number].links > 0;
        let (file, history) = self.file(number);
        let version = history.version();
        if by_new_instance {
            // As if the file was opened again.
            file.write_back();
            volume.inode(file.inode.number()).unwrap().sync(data_only).unwrap();
        } else {
            file.sync(data_only);
        }
        let point = device.point();
        history.is_durable(point, version);
        // Its names are durable, too. With `data_only`, recent names need not be.
        if !data_only {
            self.names.inode_is_durable(number, point);
        }
    }

    fn sync_directory(&mut self) -> Result<()> {
        let number = self.names.pick_directory_to_sync();
        self.open[&number].inode().sync(false)?;
        self.names.inode_is_durable(number, self.common.device.point());
        Ok(())
    }

    fn sync_volume(&mut self) -> Result<()> {
        let Common { volume, device, syncs, bug, .. } = self.common;
        let versions = syncs.begin();
        if *bug == Bug::None && versions.iter().sum::<usize>() % 2 == 0 {
            // While other threads change the volume.
            volume.mark_clean()?;
        } else {
            volume.sync()?;
        }
        syncs.end(versions, device.point());
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        match self.names.pick_rename() {
            Some(rename) => self.rename_to(&rename),
            None => Ok(()),
        }
    }

    fn rename_to(&mut self, rename: &Rename) -> Result<()> {
        let Rename { from, onto, is_exchange, moved, replaced } = rename;
        self.change(&[from, onto], |this| {
            let [(from_parent, from_name), (onto_parent, onto_name)] =
                [from, onto].map(|path| parent_and_name(path));
            let [from_parent, onto_parent] =
                [from_parent, onto_parent].map(|it| this.directory(it));
            let mode = if *is_exchange { RenameMode::Exchange } else { RenameMode::Move };
            Arc::clone(this.open[moved].inode()).rename(
                Named { directory: &from_parent, name: from_name.as_bytes() },
                Named { directory: &onto_parent, name: onto_name.as_bytes() },
                replaced.map(|number| this.open[&number].inode()),
                &mode,
                TIME,
            )?;
            Ok(this.names.renamed(rename))
        })?;
        replaced.map_or(Ok(()), |replaced| self.release_if_nameless(replaced))
    }

    /// Replaces a file as programs do: writes a new one, usually syncs it, and renames it.
    fn replace(&mut self) -> Result<()> {
        let Some(onto) = self.names.pick(|node| node.file.is_some()) else { return Ok(()) };
        let path = self.names.new_path(FileType::Regular);
        let number = self.create_at(&path, FileType::Regular, Vec::new())?;
        let mut random = Random(self.names.random.draw());
        let (file, history) = self.file(number);
        file.write_somewhere(history, &mut random, SIZE_MAX, 13)?;
        drop(file);
        if random.below(4) > 0 {
            self.sync_file(number, false);
        }
        if let Some(rename) = self.names.rename(path, onto, false) {
            self.rename_to(&rename)?;
        }
        if random.below(2) == 0 {
            self.sync_file(number, false);
        }
        Ok(())
    }

    fn link(&mut self) -> Result<()> {
        let Some(from) = self.names.pick(|node| node.kind != FileType::Directory) else {
            return Ok(());
        };
        let path = self.names.new_path(FileType::Regular);
        self.link_at(self.names.tree.names[&from], &path)
    }

    fn link_at(&mut self, number: u64, path: &str) -> Result<()> {
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let inode = this.open[&number].inode();
            this.directory(parent).link(name.as_bytes(), inode, TIME)?;
            this.names.tree.add_name(path, number);
            Ok(vec![number])
        })
    }

    /// Creates a file that gets a name only after data was written to it.
    fn create_unnamed(&mut self) -> Result<()> {
        let inode = self.home.create_unnamed(&new_inode(FileType::Regular))?;
        let number = self.add_inode(inode, Vec::new());
        let mut random = Random(self.names.random.draw());
        let (file, history) = self.file(number);
        // It is linked even if there was no space for the data.
        let _ = file.write_somewhere(history, &mut random, SIZE_MAX, 13);
        drop(file);
        if random.below(2) == 0 {
            self.sync_file(number, false);
        }
        let path = self.names.new_path(FileType::Regular);
        match self.link_at(number, &path) {
            Ok(()) => Ok(()),
            Err(error) => self.release_if_nameless(number).and(Err(error)),
        }
    }

    fn remove(&mut self) -> Result<()> {
        match self.names.pick(|node| node.kind != FileType::Directory) {
            Some(path) => {
                let number = self.unlink(&path)?;
                self.release_if_nameless(number)
            }
            None => Ok(()),
        }
    }

    fn unlink(&mut self, path: &str) -> Result<u64> {
        let number = self.names.tree.names[path];
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let inode = Arc::clone(this.open[&number].inode());
            this.directory(parent).unlink(name.as_bytes(), &inode, TIME)?;
            this.names.tree.remove_name(path);
            Ok(vec![number])
        })?;
        Ok(number)
    }

    /// Removes a file's name and continues to write to it, or releases such a file.
    fn remove_open(&mut self) -> Result<()> {
        if self.names.unnamed.len() > 2 {
            let number = self.names.unnamed.remove(0);
            return self.release_if_nameless(number);
        }
        let Some(path) = self.names.pick(|node| node.file.is_some() && node.links == 1) else {
            return Ok(());
        };
        let number = self.unlink(&path)?;
        self.names.unnamed.push(number);
        Ok(())
    }

    fn remove_directory(&mut self) -> Result<()> {
        let Some(path) = self.names.pick_empty_directory() else { return Ok(()) };
        let number = self.names.tree.names[&path];
        self.change(&[&path], |this| {
            let (parent, name) = parent_and_name(&path);
            let inode = Arc::clone(this.open[&number].inode());
            this.directory(parent).rmdir(name.as_bytes(), &inode, TIME)?;
            this.names.tree.remove_name(&path);
            Ok(vec![number])
        })?;
        self.release_if_nameless(number)
    }

    /// Releases an inode, if it has no name any more.
    fn release_if_nameless(&mut self, number: u64) -> Result<()> {
        if !self.names.remove_nameless(number) {
            return Ok(());
        }
        match self.open.remove(&number).expect("the inode was in use") {
            Open::File(file) => file.release(),
            Open::Other(inode) => inode.release(),
        }
    }

    fn change_attribute(&mut self) -> Result<()> {
        let Some(path) = self.names.pick(|node| node.kind != FileType::Symlink) else {
            return Ok(());
        };
        let number = self.names.tree.names[&path];
        let (which, bits) = (self.names.random.below(4), self.names.random.draw());
        let name = format!("user.{}", bits % 3);
        self.change(&[], |this| {
            let inode = Arc::clone(this.open[&number].inode());
            let node = this.names.tree.nodes.get_mut(&number).expect("it has a name");
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

    /// Creates or removes many names in the shared directory, so that it is split and emptied.
    fn burst(&mut self) -> Result<()> {
        let prefix = format!("/shared/{}-burst", self.names.thread);
        let there: Vec<String> = self
            .names
            .tree
            .names
            .keys()
            .filter(|path| path.starts_with(&prefix))
            .cloned()
            .collect();
        if there.is_empty() {
            for index in 0..NAMES_OF_A_BURST {
                let path = format!("{prefix}-{index}-{}", "n".repeat(180));
                self.create_at(&path, FileType::Fifo, Vec::new())?;
            }
        }
        for path in there {
            let number = self.unlink(&path)?;
            self.release_if_nameless(number)?;
        }
        Ok(())
    }

    fn append_to_log(&mut self) -> Result<()> {
        let (file, history) = &self.common.log;
        let mut history = history.lock();
        direct::append(file, &mut history, &mut self.names.random)
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
