//! One of several threads that change a volume. It creates, writes, links, moves, replaces and removes files
//! at random, in a directory of its own and, under names of its own, in a shared one. It also writes to files
//! that other threads write to, and records what it was promised. Not here: what is done to a file's data
//! (`subject.rs`, `raced.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::attributes::FileType;
use device::RecordDevice;
use parking_lot::Mutex;
use testkit::Random;
use testkit::crash::{Node as Noted, Promises, Tree, parent_and_name};
use vfs::{Creation, Credentials, Defragmented, Node, RenameFlags, Volume};

use crate::common::WRITE;
use crate::raced::{Log, RacedFile};
use crate::subject::{Notes, Subject, move_extents};

const ROOT: &Credentials = &Credentials::ROOT;
/// The maximum number of named files per thread, so that the volume is never full.
const FILES_MAX: usize = 14;

/// What the threads share.
pub struct Common<'c> {
    pub volume: &'c Volume,
    pub recorder: &'c RecordDevice,
    /// A directory.
    pub shared: Arc<Node>,
    pub raced: RacedFile<'c>,
    pub log: Log<'c>,
    /// How many operations each thread has done.
    pub done: Vec<AtomicUsize>,
    /// What was promised by syncs of the volume: from which point on how many operations of each
    /// thread are durable.
    pub syncs: Mutex<Vec<(usize, Vec<usize>)>>,
}

impl Common<'_> {
    /// Makes everything durable.
    pub fn sync_volume(&self) {
        let done: Vec<usize> = self.done.iter().map(|one| one.load(Ordering::Acquire)).collect();
        let sync = || self.volume.sync().unwrap();
        self.raced.sync_volume(|| self.log.sync_volume(sync));
        self.syncs.lock().push((self.recorder.point(), done));
    }
}

/// What is in memory of an inode.
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
    number: usize,
    home: Arc<Node>,
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
    pub fn new(common: &'c Common<'c>, number: usize, home: Arc<Node>, seed: u64) -> Self {
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
        (0..steps).for_each(|_| self.step());
        self.promises
    }

    fn step(&mut self) {
        self.counter += 1;
        match self.random.below(100) {
            0..=7 => self.make(FileType::Regular),
            8 => self.make(FileType::Directory),
            9 => self.make(FileType::Symlink),
            10..=42 => self.change_data(),
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
            79..=89 => self.common.raced.change(&mut self.random),
            90..=95 => self.common.log.append(self.number, &mut self.random),
            96 => self.common.log.sync(&mut self.random),
            97 => self.sync_volume(),
            _ => self.sync_directory(),
        }
    }

    /// Does an operation on names, in directories that hold `paths`, and notes what the tree is like then.
    fn change(&mut self, paths: &[&str], change: impl FnOnce(&mut Self) -> Vec<u64>) {
        let begun = self.common.recorder.point();
        let changed = change(self);
        let version = self.promises.add(begun, self.tree.clone());
        for path in paths {
            let number = self.directory(parent_and_name(path).0).number().0;
            self.changed_by.insert(number, version);
        }
        self.changed_by.extend(changed.into_iter().map(|number| (number, version)));
        self.common.done[self.number].store(version, Ordering::Release);
    }

    fn directory(&self, path: &str) -> Arc<Node> {
        match path {
            "/shared" => Arc::clone(&self.common.shared),
            path if path == self.home_path() => Arc::clone(&self.home),
            path => Arc::clone(self.open[&self.tree.names[path]].node()),
        }
    }

    fn home_path(&self) -> String {
        format!("/home{}", self.number)
    }

    fn pick(&mut self, is_wanted: impl Fn(&Noted) -> bool) -> Option<String> {
        let named = self.tree.names.iter();
        let wanted = named.filter(|(_, inode)| is_wanted(&self.tree.nodes[*inode]));
        let all: Vec<&String> = wanted.map(|(path, _)| path).collect();
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

    fn make(&mut self, kind: FileType) {
        if self.tree.names.len() < FILES_MAX {
            let path = self.new_path(kind);
            self.make_at(&path, kind);
        }
    }

    fn make_at(&mut self, path: &str, kind: FileType) -> u64 {
        let target = match kind {
            FileType::Symlink => vec![b't'; 1 + self.random.below(150) as usize],
            _ => Vec::new(),
        };
        let mut made = 0;
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let what = match kind {
                FileType::Symlink => Creation::symlink(&target),
                kind => Creation::of(kind, 0o644),
            };
            let parent = this.directory(parent);
            let node = this.common.volume.create(&parent, name.as_bytes(), &what, ROOT).unwrap();
            made = this.take(node, target.clone());
            this.tree.add_name(path, made);
            vec![made]
        });
        made
    }

    /// Takes in a new inode; gives its number.
    fn take(&mut self, node: Arc<Node>, target: Vec<u8>) -> u64 {
        let (number, kind) = (node.number().0, node.kind());
        let mut noted = Noted::new(kind, target, None);
        let open = match kind {
            FileType::Regular => {
                noted.file = Some(self.promises.new_file());
                Open::File(Box::new(Subject::new(node.open_for(WRITE).unwrap())))
            }
            _ => Open::Other(node),
        };
        if kind == FileType::Symlink {
            noted.permissions = 0o777;
        }
        assert!(self.open.insert(number, open).is_none(), "an inode in use was given away");
        self.tree.nodes.insert(number, noted);
        number
    }

    /// Calls `with` with a file and its notes.
    fn with_file<R>(
        &mut self,
        number: u64,
        with: impl FnOnce(&mut Subject, &mut Notes<'_>, &mut Random) -> R,
    ) -> R {
        let index = self.tree.nodes[&number].file.expect("a regular file");
        let Some(Open::File(subject)) = self.open.get_mut(&number) else {
            panic!("a regular file")
        };
        let history = &mut self.promises.files[index];
        let mut notes = Notes { history, recorder: self.common.recorder };
        with(subject, &mut notes, &mut self.random)
    }

    fn change_data(&mut self) {
        let Some(number) = self.pick_file() else { return };
        let is_synced =
            self.with_file(number, |subject, notes, random| subject.change(notes, random));
        if is_synced {
            self.names_are_durable(number);
        }
    }

    /// Has two files exchange blocks.
    fn move_extents(&mut self) {
        let (Some(number), Some(donor)) = (self.pick_file(), self.pick_file()) else { return };
        if number == donor {
            return;
        }
        let Some(Open::File(subject)) = self.open.remove(&number) else { panic!("a regular file") };
        let index = self.tree.nodes[&number].file.expect("a regular file");
        // Both are needed at once.
        let mut history = self.promises.files[index].clone();
        let mut notes = Notes { history: &mut history, recorder: self.common.recorder };
        self.with_file(donor, |donor, donor_notes, random| {
            let blocks = subject.sync_to_blocks(&mut notes);
            let donor_blocks = donor.sync_to_blocks(donor_notes);
            move_extents((&subject, &notes, &blocks), (donor, donor_notes, &donor_blocks), random);
        });
        self.promises.files[index] = history;
        self.open.insert(number, Open::File(subject));
    }

    fn defragment(&mut self) {
        let Some(number) = self.pick_file() else { return };
        match self.common.volume.defragment(self.open[&number].node()).unwrap() {
            Defragmented::Moved { .. } | Defragmented::Kept(_) | Defragmented::Skipped(_) => {}
        }
    }

    fn sync(&mut self) {
        let Some(number) = self.pick_file() else { return };
        let data_only = self.random.below(4) == 0;
        self.sync_file(number, data_only);
    }

    fn sync_file(&mut self, number: u64, data_only: bool) {
        self.with_file(number, |subject, notes, _| {
            let version = notes.history.version();
            subject.file.sync(data_only).unwrap();
            notes.durable(version);
        });
        if !data_only {
            self.names_are_durable(number);
        }
    }

    /// Notes that an inode has been synced just now, and its names with it.
    fn names_are_durable(&mut self, number: u64) {
        if let Some(&version) = self.changed_by.get(&number) {
            self.promises.are_durable(self.common.recorder.point(), version);
        }
    }

    fn sync_directory(&mut self) {
        let path = match self.random.below(3) {
            0 => "/shared".into(),
            1 => self.home_path(),
            _ => self.pick(|node| node.kind == FileType::Directory).unwrap_or(self.home_path()),
        };
        let directory = self.directory(&path);
        directory.sync(false).unwrap();
        self.names_are_durable(directory.number().0);
    }

    fn sync_volume(&mut self) {
        self.common.sync_volume();
        let point = self.common.recorder.point();
        // A file without a name need not be written back.
        for number in self.tree.names.values() {
            if let Some(file) = self.tree.nodes[number].file {
                let history = &mut self.promises.files[file];
                history.is_durable(point, history.version());
            }
        }
    }

    fn rename(&mut self) {
        let Some(from) = self.pick(|_| true) else { return };
        let kind = self.tree.node(&from).kind;
        let is_file = |node: &Noted| node.kind != FileType::Directory;
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
        self.rename_to(&from, &onto, exchange);
    }

    fn rename_to(&mut self, from: &str, onto: &str, exchange: bool) {
        let moved = self.tree.names[from];
        let replaced = self.tree.names.get(onto).copied();
        if from == onto || replaced == Some(moved) {
            return;
        }
        self.change(&[from, onto], |this| {
            let [(from_parent, from_name), (onto_parent, onto_name)] =
                [from, onto].map(parent_and_name);
            let [from_parent, onto_parent] =
                [from_parent, onto_parent].map(|it| this.directory(it));
            let flags = RenameFlags { exchange, ..RenameFlags::default() };
            let (from_at, onto_at) =
                ((&from_parent, from_name.as_bytes()), (&onto_parent, onto_name.as_bytes()));
            this.common.volume.rename(from_at, onto_at, flags, ROOT).unwrap();
            if let Some(replaced) = replaced {
                this.tree.remove_name(onto);
                if exchange {
                    this.tree.add_name(onto, moved);
                    this.tree.remove_name(from);
                    this.tree.add_name(from, replaced);
                    return vec![moved, replaced];
                }
            }
            this.tree.rename(from, onto);
            [moved].into_iter().chain(replaced).collect()
        });
        let Some(replaced) = replaced else { return };
        // No crash shows what has replaced another file without its data.
        for number in [moved, replaced] {
            let file = self.tree.nodes[&number].file;
            if let Some(file) = file.filter(|_| number == moved || exchange) {
                self.promises.imply(file);
            }
        }
        self.forget(replaced);
    }

    /// As programs replace a file: a new one is written, synced as a rule, and renamed.
    fn replace(&mut self) {
        let Some(onto) = self.pick(|node| node.file.is_some()) else { return };
        let path = self.new_path(FileType::Regular);
        let number = self.make_at(&path, FileType::Regular);
        self.with_file(number, |subject, notes, random| subject.write(notes, random));
        if self.random.below(4) > 0 {
            self.sync_file(number, false);
        }
        self.rename_to(&path, &onto, false);
        if self.random.below(2) == 0 {
            self.sync_file(number, false);
        }
    }

    fn link(&mut self) {
        if self.tree.names.len() >= FILES_MAX {
            return;
        }
        let Some(from) = self.pick(|node| node.kind != FileType::Directory) else { return };
        let path = self.new_path(FileType::Regular);
        self.link_at(self.tree.names[&from], &path);
    }

    fn link_at(&mut self, number: u64, path: &str) {
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let (parent, node) = (this.directory(parent), this.open[&number].node());
            this.common.volume.link(&parent, name.as_bytes(), node).unwrap();
            this.tree.add_name(path, number);
            vec![number]
        });
    }

    /// A file that gets its name when there is something in it.
    fn make_unnamed(&mut self) {
        let what = Creation::of(FileType::Regular, 0o644);
        let node = self.common.volume.create_unnamed(&self.home, &what, ROOT).unwrap();
        let number = self.take(node, Vec::new());
        self.with_file(number, |subject, notes, random| subject.write(notes, random));
        if self.random.below(2) == 0 {
            self.sync_file(number, false);
        }
        let path = self.new_path(FileType::Regular);
        self.link_at(number, &path);
    }

    fn remove(&mut self) {
        if let Some(path) = self.pick(|node| node.kind != FileType::Directory) {
            let number = self.unlink(&path);
            self.forget(number);
        }
    }

    fn unlink(&mut self, path: &str) -> u64 {
        let number = self.tree.names[path];
        self.change(&[path], |this| {
            let (parent, name) = parent_and_name(path);
            let parent = this.directory(parent);
            this.common.volume.unlink(&parent, name.as_bytes(), ROOT).unwrap();
            this.tree.remove_name(path);
            vec![number]
        });
        number
    }

    /// Removes a file's name and goes on to write to it, or ends that.
    fn remove_open(&mut self) {
        if self.unnamed.len() > 2 {
            let number = self.unnamed.remove(0);
            return self.forget(number);
        }
        let Some(path) = self.pick(|node| node.file.is_some() && node.links == 1) else { return };
        let number = self.unlink(&path);
        self.unnamed.push(number);
    }

    fn remove_directory(&mut self) {
        let Some(path) = self.pick(|node| node.kind == FileType::Directory) else { return };
        if self.tree.names.keys().any(|other| parent_and_name(other).0 == path) {
            return;
        }
        let number = self.tree.names[&path];
        self.change(&[&path], |this| {
            let (parent, name) = parent_and_name(&path);
            let parent = this.directory(parent);
            this.common.volume.rmdir(&parent, name.as_bytes(), ROOT).unwrap();
            this.tree.remove_name(&path);
            vec![number]
        });
        self.forget(number);
    }

    /// Ends the use of an inode that has no name any more.
    fn forget(&mut self, number: u64) {
        if !self.tree.names.values().any(|named| *named == number) {
            self.tree.nodes.remove(&number);
            self.changed_by.remove(&number);
            self.open.remove(&number).expect("it was in use");
        }
    }
}
