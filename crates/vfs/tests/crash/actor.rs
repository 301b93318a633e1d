//! One of several threads that change a volume. It creates, writes, links, moves, replaces and
//! removes files at random, in a directory of its own and, under names of its own, in a shared one.
//! It also writes to files that other threads write to, and records the promises that it got. Not
//! here: changes of a file's data (`subject.rs`, `raced.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::attributes::FileType;
use device::RecordDevice;
use testkit::Random;
use testkit::crash::{
    FileHistory, Kind, Promises, Rename, ThreadNames, VolumeSyncs, parent_and_name,
};
use vfs::{Creation, Credentials, Defragmented, Node, RenameFlags, Volume};

use crate::common::{WRITE, sync};
use crate::raced::{Log, RacedFile};
use crate::subject::{Notes, Subject, move_extents};

const ROOT: &Credentials = &Credentials::ROOT;
/// The maximum number of named files per thread, so that the volume is never full.
const FILES_MAX: usize = 14;

/// The state that all threads share.
pub struct Common<'c> {
    pub volume: &'c Volume,
    pub recorder: &'c RecordDevice,
    /// The shared directory.
    pub shared: Arc<Node>,
    pub raced: RacedFile<'c>,
    pub log: Log<'c>,
    pub syncs: VolumeSyncs,
    pub kind: &'c Kind,
}

impl Common<'_> {
    fn notes<'n>(&'n self, history: &'n mut FileHistory) -> Notes<'n> {
        Notes { history, recorder: self.recorder, kind: self.kind }
    }

    /// Makes all changes durable, and records that.
    pub fn sync_volume(&self) {
        let versions = self.syncs.begin();
        let sync = || self.volume.sync().unwrap();
        self.raced.sync_volume(|| self.log.sync_volume(sync));
        self.syncs.end(versions, self.recorder.point());
    }
}

/// An inode in use.
enum Open {
    File(Box<Subject>),
    Other(Arc<Node>),
}

impl Open {
    fn node(&self) -> &Arc<Node> {
        match self {
            Self::File(subject) => subject.file.node(),
            Self::Other(node) => node,
        }
    }
}

pub struct Actor<'c> {
    common: &'c Common<'c>,
    names: ThreadNames,
    home: Arc<Node>,
    /// The inodes in use by number, including the thread's own directory and the shared one.
    open: BTreeMap<u64, Open>,
}

impl<'c> Actor<'c> {
    pub fn new(common: &'c Common<'c>, number: usize, home: Arc<Node>, seed: u64) -> Self {
        let shared = &common.shared;
        let names = ThreadNames::new(number, home.number().0, shared.number().0, seed);
        let directories = [&home, shared];
        let open = directories.map(|node| (node.number().0, Open::Other(Arc::clone(node)))).into();
        Self { common, names, home, open }
    }

    /// Runs `steps` operations. Returns the promises that hold after a cut.
    pub fn run(mut self, steps: usize) -> Promises {
        (0..steps).for_each(|_| self.step());
        self.names.promises
    }

    fn step(&mut self) {
        match self.names.begin_operation() {
            0..=7 => self.make(FileType::Regular),
            8 => self.make(FileType::Directory),
            9 => self.make(FileType::Symlink),
            10..=42 => self.change_data(),
            43..=48 if !self.common.kind.is_ext4() => self.change_data(),
            43..=46 => self.move_extents(),
            47..=48 => self.defragment(),
            49..=58 => self.sync(),
            59..=62 => self.rename(),
            63..=67 => self.replace(),
            68..=69 => self.link(),
            70..=73 => self.remove(),
            74 => self.remove_directory(),
            75..=76 => self.make_unnamed(),
            77..=78 => self.remove_open(),
            79..=89 => self.common.raced.change(&mut self.names.random),
            90..=95 => self.common.log.append(self.names.thread, &mut self.names.random),
            96 => self.common.log.sync(&mut self.names.random),
            97 => self.sync_volume(),
            _ => self.sync_directory(),
        }
    }

    /// Runs an operation on names in the directories of `paths`, and records the tree after it.
    fn change(&mut self, paths: &[&str], change: impl FnOnce(&mut Self) -> Vec<u64>) {
        let begun = self.common.recorder.point();
        let changed = change(self);
        let version = self.names.end_operation(begun, paths, &changed);
        self.common.syncs.operation_ended(self.names.thread, version);
    }

    fn directory(&self, path: &str) -> Arc<Node> {
        Arc::clone(self.open[&self.names.directory(path)].node())
    }

    fn make(&mut self, kind: FileType) {
        if self.names.tree.names.len() < FILES_MAX {
            let path = self.names.new_path(kind);
            self.make_at(&path, kind);
        }
    }

    fn make_at(&mut self, path: &str, kind: FileType) -> u64 {
        let target = self.names.new_target(kind);
        let mut made = 0;
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let what = match kind {
                FileType::Symlink => Creation::symlink(&target),
                kind => Creation::of(kind, 0o644),
            };
            let parent = this.directory(parent);
            let node = this.common.volume.create_in(&parent, name.as_bytes(), &what, ROOT).unwrap();
            made = this.add_inode(node, target.clone());
            this.names.tree.add_name(path, made);
            vec![made]
        });
        made
    }

    /// Records a new inode. Returns its number.
    fn add_inode(&mut self, node: Arc<Node>, target: Vec<u8>) -> u64 {
        let (number, kind) = (node.number().0, node.kind());
        let (open, permissions) = match kind {
            FileType::Regular => {
                (Open::File(Box::new(Subject::new(node.open_for(WRITE).unwrap()))), 0o644)
            }
            FileType::Symlink => (Open::Other(node), 0o777),
            _ => (Open::Other(node), 0o644),
        };
        assert!(self.open.insert(number, open).is_none(), "an inode in use was allocated again");
        self.names.add_inode(number, kind, permissions, target);
        number
    }

    /// Calls `with` with a file and its promises.
    fn with_file<R>(
        &mut self,
        number: u64,
        with: impl FnOnce(&mut Subject, &mut Notes<'_>, &mut Random) -> R,
    ) -> R {
        let index = self.names.tree.nodes[&number].file.expect("a regular file");
        let Some(Open::File(subject)) = self.open.get_mut(&number) else {
            panic!("a regular file")
        };
        let history = &mut self.names.promises.files[index];
        let mut notes = self.common.notes(history);
        with(subject, &mut notes, &mut self.names.random)
    }

    fn change_data(&mut self) {
        let Some(number) = self.names.pick_file() else { return };
        let is_synced =
            self.with_file(number, |subject, notes, random| subject.change(notes, random));
        if is_synced {
            self.names_are_durable(number);
        }
    }

    /// Exchanges blocks of two files.
    fn move_extents(&mut self) {
        let (Some(number), Some(donor)) = (self.names.pick_file(), self.names.pick_file()) else {
            return;
        };
        if number == donor {
            return;
        }
        let Some(Open::File(subject)) = self.open.remove(&number) else { panic!("a regular file") };
        let index = self.names.tree.nodes[&number].file.expect("a regular file");
        // A copy, since two histories are changed at once.
        let mut history = self.names.promises.files[index].clone();
        let mut notes = self.common.notes(&mut history);
        self.with_file(donor, |donor, donor_notes, random| {
            let blocks = subject.sync_to_blocks(&mut notes);
            let donor_blocks = donor.sync_to_blocks(donor_notes);
            move_extents((&subject, &notes, &blocks), (donor, donor_notes, &donor_blocks), random);
        });
        self.names.promises.files[index] = history;
        self.open.insert(number, Open::File(subject));
    }

    fn defragment(&mut self) {
        let Some(number) = self.names.pick_file() else { return };
        match self.common.volume.defragment(self.open[&number].node()).unwrap() {
            Defragmented::Moved { .. } | Defragmented::Kept(_) | Defragmented::Skipped(_) => {}
        }
    }

    fn sync(&mut self) {
        let Some(number) = self.names.pick_file() else { return };
        let data_only = self.names.random.below(4) == 0;
        self.sync_file(number, data_only);
    }

    fn sync_file(&mut self, number: u64, data_only: bool) {
        self.with_file(number, |subject, notes, _| {
            let version = notes.history.version();
            sync(&subject.file, data_only);
            notes.durable(version);
        });
        if !data_only {
            self.names_are_durable(number);
        }
    }

    /// Records that an inode was just synced, which makes its names durable, too.
    fn names_are_durable(&mut self, number: u64) {
        self.names.inode_is_durable(number, self.common.recorder.point());
    }

    fn sync_directory(&mut self) {
        let number = self.names.pick_directory_to_sync();
        self.open[&number].node().sync(false).unwrap();
        self.names_are_durable(number);
    }

    fn sync_volume(&mut self) {
        self.common.sync_volume();
        let point = self.common.recorder.point();
        // A file without a name need not be written back.
        for number in self.names.tree.names.values() {
            if let Some(file) = self.names.tree.nodes[number].file {
                let history = &mut self.names.promises.files[file];
                history.is_durable(point, history.version());
            }
        }
    }

    fn rename(&mut self) {
        if let Some(rename) = self.names.pick_rename() {
            self.rename_to(&rename);
        }
    }

    fn rename_to(&mut self, rename: &Rename) {
        let Rename { from, onto, is_exchange, moved, replaced } = rename;
        self.change(&[from, onto], |this| {
            let [(from_parent, from_name), (onto_parent, onto_name)] =
                [from, onto].map(|path| parent_and_name(path));
            let [from_parent, onto_parent] =
                [from_parent, onto_parent].map(|path| this.directory(path));
            let flags = RenameFlags { exchange: *is_exchange, ..RenameFlags::default() };
            let (from_at, onto_at) =
                ((&from_parent, from_name.as_bytes()), (&onto_parent, onto_name.as_bytes()));
            this.common.volume.rename_in(from_at, onto_at, flags, ROOT).unwrap();
            this.names.renamed(rename)
        });
        let Some(replaced) = replaced else { return };
        // After a crash, no file has replaced another without its data.
        for number in [moved, replaced] {
            let file = self.names.tree.nodes[number].file;
            if let Some(file) = file.filter(|_| number == moved || *is_exchange) {
                self.names.promises.imply(file);
            }
        }
        self.drop_if_nameless(*replaced);
    }

    /// Replaces a file as programs do: writes a new file, usually syncs it, and renames it over the
    /// old one.
    fn replace(&mut self) {
        let Some(onto) = self.names.pick(|node| node.file.is_some()) else { return };
        let path = self.names.new_path(FileType::Regular);
        let number = self.make_at(&path, FileType::Regular);
        self.with_file(number, |subject, notes, random| subject.write(notes, random));
        if self.names.random.below(4) > 0 {
            self.sync_file(number, false);
        }
        if let Some(rename) = self.names.rename(path, onto, false) {
            self.rename_to(&rename);
        }
        if self.names.random.below(2) == 0 {
            self.sync_file(number, false);
        }
    }

    fn link(&mut self) {
        if self.names.tree.names.len() >= FILES_MAX {
            return;
        }
        let Some(from) = self.names.pick(|node| node.kind != FileType::Directory) else { return };
        let path = self.names.new_path(FileType::Regular);
        self.link_at(self.names.tree.names[&from], &path);
    }

    fn link_at(&mut self, number: u64, path: &str) {
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let (parent, node) = (this.directory(parent), this.open[&number].node());
            this.common.volume.link(&parent, name.as_bytes(), node).unwrap();
            this.names.tree.add_name(path, number);
            vec![number]
        });
    }

    /// Creates a file without a name, writes to it, and then adds a name.
    fn make_unnamed(&mut self) {
        let what = Creation::of(FileType::Regular, 0o644);
        let node = self.common.volume.create_unnamed(&self.home, &what, ROOT).unwrap();
        let number = self.add_inode(node, Vec::new());
        self.with_file(number, |subject, notes, random| subject.write(notes, random));
        if self.names.random.below(2) == 0 {
            self.sync_file(number, false);
        }
        let path = self.names.new_path(FileType::Regular);
        self.link_at(number, &path);
    }

    fn remove(&mut self) {
        if let Some(path) = self.names.pick(|node| node.kind != FileType::Directory) {
            let number = self.unlink(&path);
            self.drop_if_nameless(number);
        }
    }

    fn unlink(&mut self, path: &str) -> u64 {
        let number = self.names.tree.names[path];
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let parent = this.directory(parent);
            this.common.volume.unlink(&parent, name.as_bytes(), ROOT).unwrap();
            this.names.tree.remove_name(path);
            vec![number]
        });
        number
    }

    /// Removes the name of a file that stays in use, or ends the use of such a file.
    fn remove_open(&mut self) {
        if self.names.unnamed.len() > 2 {
            let number = self.names.unnamed.remove(0);
            return self.drop_if_nameless(number);
        }
        let Some(path) = self.names.pick(|node| node.file.is_some() && node.links == 1) else {
            return;
        };
        let number = self.unlink(&path);
        self.names.unnamed.push(number);
    }

    fn remove_directory(&mut self) {
        let Some(path) = self.names.pick_empty_directory() else { return };
        let number = self.names.tree.names[&path];
        self.change(&[&path], |this| {
            let (parent, name) = parent_and_name(&path);
            let parent = this.directory(parent);
            this.common.volume.rmdir(&parent, name.as_bytes(), ROOT).unwrap();
            this.names.tree.remove_name(&path);
            vec![number]
        });
        self.drop_if_nameless(number);
    }

    /// Ends the use of an inode if it has no name left.
    fn drop_if_nameless(&mut self, number: u64) {
        if self.names.remove_nameless(number) {
            self.open.remove(&number).expect("the inode is in use");
        }
    }
}
