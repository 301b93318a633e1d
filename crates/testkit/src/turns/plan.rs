//! The choice of the steps of each turn: files with different representations in the format, which
//! are changed one turn later, and random steps on all files of earlier random steps.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Bytes, Step, UNSYNCED};
use crate::Random;
use crate::tree::TreeOptions;

/// The number of names in the directory with an index.
const NAMES: u64 = 700;
/// The number of random steps in a turn.
const RANDOM_STEPS: u64 = 120;
/// A large offset in a file, which all kinds with large blocks and the running kernel can map.
const FAR: u64 = 1 << 40;

/// The steps of one side in a turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Turn {
    /// The steps before the sync. They are durable if the turn is interrupted later.
    pub synced: Vec<Step>,
    /// The steps after the sync, in [`UNSYNCED`]. If the turn is interrupted then, some of them may
    /// be lost.
    pub after: Vec<Step>,
}

impl Turn {
    /// Returns the steps of a turn that is not interrupted.
    pub fn whole(&self) -> Vec<Step> {
        [&self.synced[..], &self.after].concat()
    }
}

/// A plan of turns. Each turn depends on the files that earlier turns have created.
#[derive(Debug)]
pub struct Plan {
    options: TreeOptions,
    random: Random,
    turn: u64,
    seeds: u64,
    /// The names of files in random steps, and the numbers of their inodes in the plan.
    files: BTreeMap<String, u64>,
    /// The names of symbolic links in random steps.
    others: BTreeSet<String>,
    /// The names of folders in random steps.
    folders: BTreeSet<String>,
    /// The number of names so far.
    names: u64,
    /// The names of extended attributes, by inode.
    xattrs: BTreeMap<u64, BTreeSet<String>>,
    /// Inodes that may have inline data and a hole after it.
    grown: BTreeSet<u64>,
    steps: Vec<Step>,
}

impl Plan {
    /// Returns a plan for volumes that `options` describe. Each seed gives another plan.
    pub fn new(options: TreeOptions, seed: u64) -> Self {
        Self {
            options,
            random: Random(seed),
            turn: 0,
            seeds: seed << 32,
            files: BTreeMap::new(),
            others: BTreeSet::new(),
            folders: BTreeSet::new(),
            names: 0,
            xattrs: BTreeMap::new(),
            grown: BTreeSet::new(),
            steps: Vec::new(),
        }
    }

    /// Returns the next turn. Only turns `by_kernel` have steps that the library does not support.
    pub fn turn(&mut self, by_kernel: bool) -> Turn {
        let turn = self.turn;
        let preallocate = by_kernel && self.options.preallocate;
        if turn == 0 {
            self.steps.push(Step::Mkdir(UNSYNCED.into()));
        } else {
            self.change_data(turn - 1, preallocate);
            self.change_names(turn - 1);
            self.change_xattrs(turn - 1);
        }
        self.steps.push(Step::Mkdir(format!("t{turn}")));
        self.make_data(preallocate);
        self.make_names();
        self.make_xattrs();
        let folder = format!("t{turn}/random");
        self.steps.push(Step::Mkdir(folder.clone()));
        self.folders.insert(folder);
        for _ in 0..RANDOM_STEPS {
            self.random_step(by_kernel);
        }
        self.make_unsynced();
        let synced = std::mem::take(&mut self.steps);
        self.change_unsynced();
        let after = std::mem::take(&mut self.steps);
        self.turn += 1;
        Turn { synced, after }
    }

    fn path(&self, name: &str) -> String {
        format!("t{}/{name}", self.turn)
    }

    fn bytes(&mut self, length: u64) -> Bytes {
        self.seeds += 1;
        Bytes { seed: self.seeds, length: length as usize }
    }

    fn write(&mut self, path: String, at: u64, length: u64) {
        let bytes = self.bytes(length);
        self.steps.push(Step::Write(path, at, bytes));
    }

    fn append(&mut self, path: String, length: u64) {
        let bytes = self.bytes(length);
        self.steps.push(Step::Append(path, bytes));
    }

    fn set_xattr(&mut self, path: String, name: &str, length: u64) {
        let bytes = self.bytes(length);
        self.steps.push(Step::SetXattr(path, name.into(), bytes));
    }

    fn block(&self) -> u64 {
        u64::from(self.options.block_size)
    }

    fn make_data(&mut self, preallocate: bool) {
        let block = self.block();
        for size in [0, 1, 60, 100, 150, 1000, block - 1, block, block + 1, 13 * block + 5] {
            self.write(self.path(&format!("size {size}")), 0, size);
        }
        // Around the limits between levels of a block map, and at a large offset.
        let pointers = block / 4;
        let far = FAR.min(self.options.file_size_max - block);
        for at in [5 * block + 11, (12 + pointers) * block - 3, (1 << 32) - 2, far] {
            self.write(self.path("sparse"), at, 10);
        }
        let size = far + block - 7;
        self.steps.push(Step::SetSize(self.path("sparse"), size));
        for index in 0..40 {
            self.write(self.path("scattered"), 2 * index * block, 10);
        }
        self.write(self.path("growing"), 0, 20);
        for length in [30, 50, 50, 100, 500, block] {
            self.append(self.path("growing"), length);
        }
        if preallocate {
            self.write(self.path("allocated"), 0, block / 2);
            self.steps.push(Step::Allocate(self.path("allocated"), 0, 20 * block));
            self.write(self.path("allocated"), 7 * block + 3, block);
            self.write(self.path("punched"), 0, 12 * block);
            self.steps.push(Step::Punch(self.path("punched"), 3 * block + 10, 5 * block));
        }
        self.write(self.path("removed"), 0, 3 * block);
        self.steps.push(Step::Remove(self.path("removed")));
    }

    /// Writes to files of `turn`, truncates and extends them.
    fn change_data(&mut self, turn: u64, preallocate: bool) {
        let block = self.block();
        let path = |name: &str| format!("t{turn}/{name}");
        for size in [0, 1, 60, 100, block] {
            self.append(path(&format!("size {size}")), 70);
        }
        self.write(path(&format!("size {}", 13 * block + 5)), 2 * block - 9, 3 * block);
        self.steps.push(Step::SetSize(path("size 1000"), 30));
        self.steps.push(Step::SetSize(path("size 150"), 3 * block));
        self.steps.push(Step::SetSize(path(&format!("size {}", block + 1)), block - 1));
        self.steps.push(Step::SetSize(path("sparse"), (12 + block / 4) * block - 2));
        self.write(path("sparse"), 3 * block, 3 * block);
        for index in 10..20 {
            self.write(path("scattered"), (2 * index + 1) * block - 5, 20);
        }
        self.steps.push(Step::SetSize(path("scattered"), 30 * block + 1));
        self.append(path("scattered"), 2 * block);
        // Into ranges that a kernel has preallocated or punched, if `turn` was a kernel's.
        if self.options.preallocate && !preallocate {
            self.write(path("allocated"), 9 * block + 5, 2 * block);
            self.write(path("allocated"), 19 * block, 2 * block);
            self.write(path("punched"), 4 * block + 1, block);
        }
        self.steps.push(Step::Remove(path(&format!("size {}", block - 1))));
    }

    fn make_names(&mut self) {
        self.steps.push(Step::Mkdir(self.path("large")));
        self.write(self.path("large/file"), 0, 10);
        for number in 0..NAMES {
            let name = format!("large/{number}-{}", "x".repeat(number as usize * 7 % 240));
            let (from, path) = (self.path("large/file"), self.path(&name));
            self.steps.push(Step::Link(from, path));
        }
        for length in [1, 59, 60, 61, 155, 1000, (self.block() as usize - 1).min(4095)] {
            self.steps.push(Step::Symlink(self.path(&format!("symlink {length}")), length));
        }
        self.steps.push(Step::Fifo(self.path("fifo")));
        for name in ["a", "a/b", "a/b/c", "d"] {
            self.steps.push(Step::Mkdir(self.path(name)));
        }
        self.write(self.path("a/b/c/file"), 0, 100);
        self.steps.push(Step::Rename(self.path("a/b"), self.path("d/b")));
        self.steps.push(Step::SetMode(self.path("d"), 0o2750));
    }

    /// Removes names of the large directory and adds others, and moves a tree.
    fn change_names(&mut self, turn: u64) {
        for number in (0..NAMES).filter(|number| number % 3 == turn % 3) {
            let old = format!("t{turn}/large/{number}-{}", "x".repeat(number as usize * 7 % 240));
            self.steps.push(Step::Remove(old));
        }
        for number in 0..NAMES / 4 {
            let new = format!("t{turn}/large/new-{number}-{}", "y".repeat(number as usize % 200));
            self.steps.push(Step::Link(format!("t{turn}/large/file"), new));
        }
        let moved = format!("from-t{turn}");
        self.steps.push(Step::Rename(format!("t{turn}/d"), moved.clone()));
        self.steps.push(Step::Exchange(format!("{moved}/b"), format!("t{turn}/size 60")));
        self.steps.push(Step::Remove(format!("t{turn}/symlink 60")));
        self.steps.push(Step::Rename(format!("t{turn}/symlink 155"), format!("t{turn}/fifo")));
    }

    fn make_xattrs(&mut self) {
        let file = |plan: &mut Self, name: &str| {
            let path = plan.path(name);
            plan.write(path.clone(), 0, 200);
            path
        };
        let path = file(self, "xattr in the inode");
        self.set_xattr(path, "user.small", 20);
        // Fills a block except for its headers.
        let path = file(self, "xattr in a block");
        self.set_xattr(path, "user.large", self.block() - 200);
        let path = file(self, "xattrs in both");
        for number in 0..12 {
            self.set_xattr(path.clone(), &format!("user.{number}"), number * 9);
        }
        // A kernel stores these in one shared block.
        let bytes = self.bytes(500);
        for number in 0..3 {
            let path = file(self, &format!("shared xattr {number}"));
            self.steps.push(Step::SetXattr(path, "trusted.shared".into(), bytes));
        }
        if self.options.xattr_bytes_max > self.options.block_size as usize {
            let path = file(self, "xattr in an inode of its own");
            self.set_xattr(path, "user.largest", 60_000);
        }
        let path = file(self, "acl");
        self.steps.push(Step::SetAcl(path, 5));
        let path = self.path("symlink 61");
        self.set_xattr(path, "trusted.link", 30);
        let path = self.path("large");
        self.set_xattr(path, "user.folder", 300);
    }

    fn change_xattrs(&mut self, turn: u64) {
        let path = |name: &str| format!("t{turn}/{name}");
        self.set_xattr(path("xattr in the inode"), "user.small", 700);
        self.set_xattr(path("xattr in a block"), "user.large", 10);
        self.steps.push(Step::RemoveXattr(path("xattrs in both"), "user.7".into()));
        self.steps.push(Step::RemoveXattr(path("xattrs in both"), "user.11".into()));
        self.set_xattr(path("shared xattr 0"), "user.more", 100);
        self.steps.push(Step::RemoveXattr(path("shared xattr 1"), "trusted.shared".into()));
        if self.options.xattr_bytes_max > self.options.block_size as usize {
            self.set_xattr(path("xattr in an inode of its own"), "user.largest", 50_000);
        }
        self.steps.push(Step::SetAcl(path("acl"), 20));
        self.steps.push(Step::SetMode(path("acl"), 0o640));
    }

    fn unsynced(&self, name: &str) -> String {
        format!("{UNSYNCED}/{}-{name}", self.turn)
    }

    fn make_unsynced(&mut self) {
        for number in 0..10 {
            self.write(self.unsynced(&format!("{number}")), 0, 3 * self.block() + number);
        }
    }

    fn change_unsynced(&mut self) {
        let block = self.block();
        self.append(self.unsynced("0"), 2 * block);
        self.steps.push(Step::SetSize(self.unsynced("1"), block + 5));
        self.steps.push(Step::Rename(self.unsynced("2"), self.unsynced("3")));
        let bytes = self.bytes(5 * block);
        self.steps.push(Step::RemoveOpen(self.unsynced("4"), bytes));
        self.steps.push(Step::Sync(self.unsynced("0")));
        let bytes = self.bytes(5 * block);
        self.steps.push(Step::RemoveOpen(self.unsynced("5"), bytes));
        self.write(self.unsynced("6"), block, block);
        self.steps.push(Step::SetSize(self.unsynced("6"), block + 9));
        self.write(self.unsynced("new"), 0, block);
        self.steps.push(Step::Mkdir(self.unsynced("folder")));
        let path = format!("{}/7", self.unsynced("folder"));
        self.steps.push(Step::Rename(self.unsynced("7"), path));
        self.set_xattr(self.unsynced("8"), "user.late", 300);
        self.steps.push(Step::Remove(self.unsynced("9")));
    }
}

/// Random steps, on files that such steps have created.
impl Plan {
    fn pick<'a>(&mut self, from: impl ExactSizeIterator<Item = &'a String>) -> Option<String> {
        let count = from.len() as u64;
        if count == 0 {
            return None;
        }
        let mut from = from;
        from.nth(self.random.below(count) as usize).cloned()
    }

    fn pick_file(&mut self) -> Option<String> {
        let files = self.files.clone();
        self.pick(files.keys())
    }

    fn new_path(&mut self) -> String {
        let folders = self.folders.clone();
        let folder = self.pick(folders.iter()).unwrap_or_default();
        self.names += 1;
        let rest = "n".repeat(self.random.below(40) as usize);
        format!("{folder}/{}-{rest}", self.names)
    }

    fn random_step(&mut self, by_kernel: bool) {
        let block = self.block();
        // If data is inline, preallocation and punching in Linux up to 7.2 move it to a block
        // through the journal. The block is not revoked when it is freed, so the journal may write
        // the old data over the data of the next file in this block. (Other steps use files that
        // are too large for inline data.)
        let preallocate = by_kernel && self.options.preallocate && !self.options.inline_data;
        let which = self.random.below(100);
        let path = match which {
            0..=19 => self.new_path(),
            _ => match self.pick_file() {
                Some(path) => path,
                None => return,
            },
        };
        let (at, length) = (self.random.below(8 * block), self.random_length());
        match which {
            0..=13 => {
                self.files.insert(path.clone(), self.names);
                self.write(path, 0, length);
            }
            14..=16 => {
                self.folders.insert(path.clone());
                self.steps.push(Step::Mkdir(path));
            }
            17..=19 => {
                self.others.insert(path.clone());
                let length = 1 + self.random.below(100) as usize;
                self.steps.push(Step::Symlink(path, length));
            }
            // Linux up to 7.2 loses writes to the first page of a file that was extended while its
            // data was inline.
            20..=45 if by_kernel && self.grown.contains(&self.files[&path]) => {}
            20..=34 => self.write(path, at, length),
            35..=45 => self.append(path, length),
            46..=54 if by_kernel && self.options.inline_data => {
                self.steps.push(Step::SetSize(path, 0));
            }
            46..=54 => {
                if self.options.inline_data {
                    self.grown.insert(self.files[&path]);
                }
                self.steps.push(Step::SetSize(path, at));
            }
            55..=58 if preallocate && at % 2 == 0 => {
                self.steps.push(Step::Allocate(path, at, length + 1));
            }
            55..=58 if preallocate => self.steps.push(Step::Punch(path, at, length + 1)),
            55..=66 => self.rename(path),
            67..=70 => {
                let (new, inode) = (self.new_path(), self.files[&path]);
                self.files.insert(new.clone(), inode);
                self.steps.push(Step::Link(path, new));
            }
            71..=78 => {
                self.files.remove(&path);
                self.steps.push(Step::Remove(path));
            }
            79..=80 => {
                self.files.remove(&path);
                let bytes = self.bytes(length);
                self.steps.push(Step::RemoveOpen(path, bytes));
            }
            81..=92 => self.random_xattr(path),
            93..=95 => {
                // Not the sticky bit, with which Linux restricts opening files.
                let permissions = self.random.below(0o10000) as u16 & 0o6777;
                self.steps.push(Step::SetMode(path, permissions));
            }
            96..=97 => {
                let (uid, gid) =
                    (self.random.below(1 << 32) as u32, self.random.below(1 << 17) as u32);
                self.steps.push(Step::SetOwner(path, uid & !1, gid));
            }
            _ => self.steps.push(Step::Sync(path)),
        }
    }

    /// Chooses a length of at most three blocks, which usually is short.
    fn random_length(&mut self) -> u64 {
        let bound = 1 << (4 + self.random.below(u64::from((self.block() * 2).ilog2()) - 3));
        self.random.below(bound) + self.random.below(self.block()) * (self.random.below(4) / 3)
    }

    fn rename(&mut self, path: String) {
        let (which, inode) = (self.random.below(8), self.files[&path]);
        let other = self.pick_file().filter(|other| self.files[other] != inode);
        let folders = self.folders.clone();
        match (which, other) {
            (0 | 1, Some(other)) => {
                self.files.remove(&path);
                self.files.insert(other.clone(), inode);
                self.steps.push(Step::Rename(path, other));
            }
            (2 | 3, Some(other)) => {
                let replaced = self.files.insert(other.clone(), inode);
                self.files.extend(replaced.map(|replaced| (path.clone(), replaced)));
                self.steps.push(Step::Exchange(path, other));
            }
            // A folder with its contents.
            (4, _) => {
                let movable = folders.iter().filter(|folder| !folder.ends_with("/random"));
                let movable: Vec<&String> = movable.collect();
                let Some(from) = self.pick(movable.into_iter()) else { return };
                let to = self.new_path();
                if !to.starts_with(&format!("{from}/")) {
                    self.move_folder(&from, &to);
                    self.steps.push(Step::Rename(from, to));
                }
            }
            _ => {
                let new = self.new_path();
                self.files.remove(&path);
                self.files.insert(new.clone(), inode);
                self.steps.push(Step::Rename(path, new));
            }
        }
    }

    fn move_folder(&mut self, from: &str, to: &str) {
        let below = format!("{from}/");
        let moved = |path: String| match path.strip_prefix(&below) {
            Some(rest) => format!("{to}/{rest}"),
            None if path == from => to.to_owned(),
            None => path,
        };
        let files = std::mem::take(&mut self.files);
        self.files = files.into_iter().map(|(path, inode)| (moved(path), inode)).collect();
        self.folders = std::mem::take(&mut self.folders).into_iter().map(moved).collect();
        self.others = std::mem::take(&mut self.others).into_iter().map(moved).collect();
    }

    fn random_xattr(&mut self, path: String) {
        let name = format!("user.{}", self.random.below(3));
        let inode = self.files[&path];
        let removes = self.random.below(3) == 0;
        let names = self.xattrs.entry(inode).or_default();
        if removes && names.contains(&name) {
            names.remove(&name);
            self.steps.push(Step::RemoveXattr(path, name));
        } else {
            names.insert(name.clone());
            let length = self.random.below(300);
            self.set_xattr(path, &name, length);
        }
    }
}
