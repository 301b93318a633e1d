//! One thread that creates, writes, links, renames and removes files on a volume without a journal.
//! A power cut may leave names in any state that e2fsck can repair, and files in lost+found. But
//! data that was synced, and not changed since, exists, and no file has data of another file, or
//! stale data.

use std::sync::Arc;

use base::Result;
use base::attributes::FileType;
use device::RecordDevice;
use ext4::{Inode, Named, ROOT_INODE, RenameMode, Volume};
use testkit::Random;

use crate::common::cached_file::{Cache, CachedFile};
use crate::common::{TIME, new_inode};
use crate::planted::Bug;
use testkit::crash::{FileHistory, History, Kind, Pace, RecordedRun, Snapshot};

const SIZE_MAX: u64 = 20_000;
const DIRECTORIES: usize = 5;

/// The history of a file.
struct File {
    inode: u64,
    history: FileHistory,
    /// Points before which an operation began that may write to the file.
    touched: Vec<usize>,
    /// The point before which its last name was removed.
    removed: Option<usize>,
}

impl File {
    /// Returns whether the last synced contents must exist after a cut at `point`.
    fn is_promised(&self, point: usize) -> bool {
        let synced = self.history.synced(point);
        synced > 0
            && !self.touched.iter().any(|at| (synced..point).contains(at))
            && self.removed.is_none_or(|removed| removed >= point)
    }
}

pub struct Unlogged {
    run: RecordedRun,
    files: Vec<File>,
}

impl Unlogged {
    pub fn record(kind: &Kind, seed: u64, steps: usize) -> Self {
        let (device, volume) = Bug::None.open(kind, Pace::AtOnce);
        let root = Arc::new(volume.inode(ROOT_INODE).unwrap());
        let make = |index: usize| {
            root.create(format!("{index}").as_bytes(), &new_inode(FileType::Directory)).unwrap()
        };
        let directories: Vec<_> = (1..DIRECTORIES).map(make).chain([Arc::clone(&root)]).collect();
        volume.sync().unwrap();
        let begun = device.point();
        let (named, files, cache) = (Vec::new(), Vec::new(), Cache::new());
        let random = Random(seed);
        let mut worker =
            Worker { device, volume, cache, directories, random, counter: 0, named, files };
        for _ in 0..steps {
            worker.step().unwrap();
        }
        Self { run: RecordedRun::new(kind, &worker.device, begun), files: worker.files }
    }
}

impl History for Unlogged {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        for file in self.files.iter().filter(|file| file.is_promised(point)) {
            // e2fsck does not keep an empty file that has lost its name.
            let contents = found.contents.get(&file.inode).map_or(&[][..], Vec::as_slice);
            let checked = file.history.check(point, contents);
            checked.map_err(|what| format!("inode {} has {what}", file.inode))?;
        }
        for (inode, contents) in &found.contents {
            let mut had_it = self.files.iter().filter(|file| file.inode == *inode);
            if !had_it.any(|file| file.history.is_all_of_it(contents)) {
                return Err(format!("inode {inode} has data that was never written to it"));
            }
        }
        Ok(())
    }
}

/// The position of a name: the index of its directory, and the name.
type Location = (usize, String);

/// A file with names.
struct Open {
    /// Its index in `Worker::files`.
    index: usize,
    file: CachedFile,
    names: Vec<Location>,
}

struct Worker {
    device: Arc<RecordDevice>,
    volume: Arc<Volume>,
    cache: Cache,
    directories: Vec<Arc<Inode>>,
    random: Random,
    counter: usize,
    named: Vec<Open>,
    files: Vec<File>,
}

impl Worker {
    fn step(&mut self) -> Result<()> {
        if self.named.len() < 3 {
            return self.create();
        }
        let number = self.random.below(self.named.len() as u64) as usize;
        match self.random.below(100) {
            0..=14 => self.create(),
            15..=39 => self.write(number),
            40..=44 => self.set_size(number),
            45..=49 => self.write_back(number),
            50..=64 => self.sync(number),
            65..=74 => self.rename(number),
            75..=80 => self.link(number),
            81..=93 => self.remove(number),
            _ => self.volume.sync(),
        }
    }

    fn new_location(&mut self) -> Location {
        self.counter += 1;
        let name = format!("{}-{}", self.counter, "n".repeat(self.random.below(120) as usize));
        (self.random.below(DIRECTORIES as u64) as usize, name)
    }

    fn create(&mut self) -> Result<()> {
        let (directory, name) = self.new_location();
        let new = new_inode(FileType::Regular);
        let inode = self.directories[directory].create(name.as_bytes(), &new)?;
        let index = self.files.len();
        let history = FileHistory::new(index as u64 + 1, false);
        let (touched, removed) = (Vec::new(), None);
        self.files.push(File { inode: inode.number().0, history, touched, removed });
        let file = self.cache.file(&inode, Arc::clone(&inode));
        self.named.push(Open { index, file, names: vec![(directory, name)] });
        Ok(())
    }

    /// Records that a file is about to be changed. Returns it.
    fn touch(&mut self, number: usize) -> (CachedFile, &mut File) {
        let open = &self.named[number];
        let file = &mut self.files[open.index];
        file.touched.push(self.device.point());
        (open.file.clone(), file)
    }

    fn write(&mut self, number: usize) -> Result<()> {
        let mut random = Random(self.random.draw());
        let (open, file) = self.touch(number);
        open.write_somewhere(&mut file.history, &mut random, SIZE_MAX, 13)
    }

    fn set_size(&mut self, number: usize) -> Result<()> {
        let by = self.random.draw();
        let (open, file) = self.touch(number);
        let size = by % (file.history.now().len() as u64 * 5 / 4 + 1).min(SIZE_MAX);
        open.set_size(size as usize);
        file.history.set_size(size as usize);
        Ok(())
    }

    fn write_back(&mut self, number: usize) -> Result<()> {
        self.touch(number).0.write_back();
        Ok(())
    }

    fn sync(&mut self, number: usize) -> Result<()> {
        let (open, file) = self.touch(number);
        open.sync(false);
        let version = file.history.version();
        let point = self.device.point();
        let index = self.named[number].index;
        self.files[index].history.is_durable(point, version);
        Ok(())
    }

    /// Renames a file, usually over another one.
    fn rename(&mut self, number: usize) -> Result<()> {
        let from = self.random.pick(&self.named[number].names).cloned();
        let (from, other) = (from.expect("it has names"), self.random.below(3));
        let other = (other > 0).then(|| self.random.below(self.named.len() as u64) as usize);
        let other = other.filter(|other| *other != number);
        let onto = match other {
            Some(other) => self.named[other].names[0].clone(),
            None => self.new_location(),
        };
        if let Some(other) = other {
            self.record_removal(other, &onto);
        }
        let replaced = other.map(|other| Arc::clone(&self.named[other].file.inode));
        let [from_at, onto_at] = [&from, &onto].map(|location| Named {
            directory: &self.directories[location.0],
            name: location.1.as_bytes(),
        });
        let inode = &self.named[number].file.inode;
        inode.rename(from_at, onto_at, replaced.as_ref(), &RenameMode::Move, TIME)?;
        let open = &mut self.named[number];
        open.names.retain(|name| *name != from);
        open.names.push(onto);
        other.map_or(Ok(()), |other| self.release_if_nameless(other))
    }

    fn link(&mut self, number: usize) -> Result<()> {
        let (directory, name) = self.new_location();
        let open = &mut self.named[number];
        self.directories[directory].link(name.as_bytes(), &open.file.inode, TIME)?;
        open.names.push((directory, name));
        Ok(())
    }

    fn remove(&mut self, number: usize) -> Result<()> {
        let location = self.named[number].names[0].clone();
        self.record_removal(number, &location);
        let directory = &self.directories[location.0];
        directory.unlink(location.1.as_bytes(), &self.named[number].file.inode, TIME)?;
        self.release_if_nameless(number)
    }

    /// Records that a file is about to lose a name.
    fn record_removal(&mut self, number: usize, location: &Location) {
        let open = &mut self.named[number];
        open.names.retain(|name| name != location);
        if open.names.is_empty() {
            self.files[open.index].removed = Some(self.device.point());
        }
    }

    fn release_if_nameless(&mut self, number: usize) -> Result<()> {
        if self.named[number].names.is_empty() {
            self.named.swap_remove(number).file.release()
        } else {
            Ok(())
        }
    }
}
