//! Turns after which f2fs must roll forward: changes of files that fsync(2) makes durable without a
//! checkpoint. Not here: interrupting the kernel.

use crate::Random;
use crate::turns::{Bytes, Step, Turn};

use super::BLOCK_SIZE;

/// The number of folders.
const FOLDERS: u64 = 3;
/// The number of files before the sync.
const FILES: u64 = 24;
/// The number of files before the sync that are open and have no name then.
const UNNAMED: u64 = 3;
/// The number of changes after the sync.
const CHANGES: u64 = 80;

/// The kinds of steps of a turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Steps {
    /// Writing, creating, extending, truncating, describing and replacing files, and making many of
    /// them durable.
    Data,
    /// Also linking, renaming and removing files. Then some calls of fsync(2) make a checkpoint,
    /// because only that keeps such a change, and later steps roll forward from there.
    Names,
    /// Also removing files that stay open, so that a checkpoint has orphans. Linux deletes them
    /// even in a mount without recovery, and then refuses that mount.
    Orphans,
    /// Also removing parts of files, so that blocks move from one address to another one. Linux
    /// does not do that on a volume that it writes in order only.
    Moves,
}

/// Chooses a turn by `seed`, with `kinds` of steps after the sync.
pub fn interrupted_turn(seed: u64, kinds: Steps) -> Turn {
    let mut chooser =
        Chooser { random: Random(seed), files: Vec::new(), made: 0, steps: Vec::new() };
    for folder in 0..FOLDERS {
        chooser.steps.push(Step::Mkdir(format!("{folder}")));
    }
    for _ in 0..FILES {
        chooser.create();
    }
    if kinds >= Steps::Orphans {
        for _ in 0..UNNAMED {
            chooser.remove_open();
        }
    }
    let synced = std::mem::take(&mut chooser.steps);
    for _ in 0..CHANGES {
        chooser.change(kinds);
    }
    // At least one change needs a roll-forward.
    let path = chooser.create();
    chooser.steps.push(Step::Sync(path));
    Turn { synced, after: chooser.steps }
}

struct Chooser {
    random: Random,
    files: Vec<String>,
    made: u64,
    steps: Vec<Step>,
}

impl Chooser {
    /// Returns a new name in one of the folders.
    fn name(&mut self) -> String {
        self.made += 1;
        // Some long names, so that they do not fit into a directory's inode.
        let length = if self.random.below(3) == 0 { self.random.below(240) } else { 0 };
        let rest = "n".repeat(length as usize);
        format!("{}/file {}{rest}", self.random.below(FOLDERS), self.made)
    }

    fn bytes(&mut self, length: u64) -> Bytes {
        Bytes { seed: self.random.draw(), length: length as usize }
    }

    /// Returns a length in the inode, in its blocks, or in direct nodes.
    fn length(&mut self) -> u64 {
        let block = u64::from(BLOCK_SIZE);
        match self.random.below(4) {
            0 => self.random.below(3000),
            1 => self.random.below(3 * block),
            2 => self.random.below(30 * block),
            _ => block * self.random.below(20) + 1,
        }
    }

    /// Returns an offset that the inode, a direct node or an indirect node maps.
    fn offset(&mut self) -> u64 {
        let block = u64::from(BLOCK_SIZE);
        let last = match self.random.below(4) {
            0 | 1 => 40,
            2 => 2500,
            // Behind blocks much farther into a file, FIEMAP takes Linux seconds.
            _ => 20_000,
        };
        self.random.below(last * block)
    }

    fn create(&mut self) -> String {
        let path = self.name();
        let length = self.length();
        let bytes = self.bytes(length);
        self.steps.push(Step::Write(path.clone(), 0, bytes));
        if self.random.below(3) == 0 {
            self.write_far(&path);
        }
        self.files.push(path.clone());
        path
    }

    fn write_far(&mut self, path: &str) {
        let (at, length) = (self.offset(), self.length());
        let bytes = self.bytes(length);
        self.steps.push(Step::Write(path.to_owned(), at, bytes));
    }

    /// Removes the name of a file that stays open.
    fn remove_open(&mut self) {
        let Some(path) = self.random.take(&mut self.files) else { return };
        let length = self.length();
        let bytes = self.bytes(length);
        self.steps.push(Step::RemoveOpen(path, bytes));
    }

    /// Replaces a file by a new one with the same name.
    fn replace(&mut self, path: &str) {
        self.steps.push(Step::Remove(path.to_owned()));
        let length = self.length();
        let bytes = self.bytes(length);
        self.steps.push(Step::Write(path.to_owned(), 0, bytes));
    }

    /// Removes a part of a new file, whose blocks have addresses already.
    fn collapse(&mut self) {
        let path = self.create();
        let block = u64::from(BLOCK_SIZE);
        let blocks = 4 + self.random.below(40);
        let bytes = self.bytes(blocks * block + self.random.clone().below(block));
        self.steps.push(Step::Write(path.clone(), 0, bytes));
        self.steps.push(Step::Sync(path.clone()));
        let at = self.random.below(blocks - 1);
        let length = 1 + self.random.below((blocks - 1 - at).max(1));
        self.steps.push(Step::Collapse(path.clone(), at * block, length * block));
        self.sync(path);
    }

    /// Changes a file, and often makes it durable.
    fn change(&mut self, kinds: Steps) {
        let end = match kinds {
            Steps::Data => 10,
            Steps::Names => 13,
            Steps::Orphans => 14,
            Steps::Moves => 17,
        };
        let kind = self.random.below(end);
        let chosen = self.random.pick(&self.files).cloned();
        let path = match chosen {
            Some(path) if kind > 1 => path,
            _ => self.create(),
        };
        match kind {
            0 | 1 => {}
            2 | 3 => self.write_far(&path),
            4 => {
                let length = self.length();
                let bytes = self.bytes(length);
                self.steps.push(Step::Append(path.clone(), bytes));
            }
            5 => {
                let size = self.offset();
                self.steps.push(Step::SetSize(path.clone(), size));
            }
            6 => {
                let (at, length) = (self.offset(), 1 + self.length());
                let step = if self.random.below(2) == 0 { Step::Allocate } else { Step::Punch };
                self.steps.push(step(path.clone(), at, length));
            }
            7 => {
                // Large values need a node of their own.
                let max = if self.random.below(3) == 0 { 3000 } else { 100 };
                let length = 1 + self.random.below(max);
                let bytes = self.bytes(length);
                self.steps.push(Step::SetXattr(path.clone(), "user.changed".into(), bytes));
            }
            8 => {
                self.steps.push(Step::SetMode(path.clone(), 0o600 + self.random.below(64) as u16));
                self.steps.push(Step::SetOwner(path.clone(), self.random.below(70_000) as u32, 3));
            }
            9 => self.replace(&path),
            10 => {
                let other = self.name();
                self.steps.push(Step::Link(path.clone(), other.clone()));
                self.files.push(other);
            }
            11 => {
                let other = self.name();
                self.steps.push(Step::Rename(path.clone(), other.clone()));
                self.files.retain(|file| *file != path);
                self.files.push(other.clone());
                return self.sync(other);
            }
            12 => {
                self.steps.push(Step::Remove(path.clone()));
                self.files.retain(|file| *file != path);
                return;
            }
            13 => return self.remove_open(),
            _ => return self.collapse(),
        }
        self.sync(path);
    }

    /// Makes the file durable in two of three cases.
    fn sync(&mut self, path: String) {
        if self.random.below(3) > 0 {
            self.steps.push(Step::Sync(path));
        }
    }
}
