//! Files on an f2fs volume with few free segments, which is cut off, recovered in place and written
//! to again, several times. Freed blocks are soon used again, and the device has data and synced
//! nodes of the writers before. What a recovery finds must remain. Not here: how the volume becomes
//! nearly full (`nearly_full.rs`).

use std::sync::Arc;

use base::{DeviceOffset, FileOffset};
use device::{MemoryDevice, RecordDevice, SharedDevice};
use testkit::Random;
use testkit::crash::{
    Disks, FileHistory, History, Kind, Pace, Recorded, RecordedRun, Snapshot, cut_off, read,
};
use vfs::{Credentials, F2fsMode, Privileges, RwFlags, Volume, VolumeOptions, WriteAt, XattrMode};

use crate::common::{file, make, sync};
use crate::nearly_full::nearly_full;
use crate::planted::{Bug, Planted};
use crate::stage::options;
use crate::subject::{Notes, Subject};

/// The maximum number of files, and of the bytes of each: together less than the volume has left.
const FILES_MAX: usize = 8;
const SIZE_MAX: usize = 128 << 10;
/// Small writes have less than 2^15 bytes.
const WRITE_BITS_MAX: u64 = 15;
/// The size of an extended attribute that does not fit into an inode.
const XATTR_BYTES: usize = 3000;

/// A file, and the points at which its name was made, durable and removed.
struct Named {
    name: String,
    history: FileHistory,
    /// The point before it was made.
    made: usize,
    /// The point from which on the name is durable.
    durable: Option<usize>,
    /// The point before it was removed.
    removed: Option<usize>,
    /// The point from which on the removal is durable.
    gone: Option<usize>,
}

impl Named {
    fn new(name: String, number: u64, made: usize) -> Self {
        let history = FileHistory::new(number, false);
        Self { name, history, made, durable: None, removed: None, gone: None }
    }

    /// Returns the file as a recovery has found it.
    fn found(name: String, number: u64, contents: &[u8]) -> Self {
        let history = FileHistory::holding(number, contents.to_vec());
        Self { history, durable: Some(0), ..Self::new(name, number, 0) }
    }

    fn path(&self) -> String {
        format!("/{}", self.name)
    }

    /// Fails with a description if the file breaks a promise after a cut at `point`.
    fn check(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        let path = self.path();
        let is_past = |at: Option<usize>| at.is_some_and(|at| at <= point);
        if !found.tree.contains_key(&path) {
            let is_promised = is_past(self.durable) && self.removed.is_none_or(|at| at >= point);
            return if is_promised { Err(format!("{path} is missing")) } else { Ok(()) };
        }
        if is_past(self.gone) || self.made > point {
            return Err(format!("{path} is there"));
        }
        self.history.check_at(&path, point, found)
    }
}

pub struct Reopened {
    run: RecordedRun,
    files: Vec<Named>,
    /// The broken promise of a writer before the recorded one.
    broken: Option<String>,
}

impl Reopened {
    /// Lets a writer after the other make `steps` changes, and cuts off all but the last of
    /// `writers`, which is recorded.
    pub fn record(kind: &Kind, bug: Bug, seed: u64, writers: u64, steps: usize) -> Self {
        let mut random = Random(seed);
        let mut before = nearly_full(kind);
        let mut files = Vec::new();
        let mut number = 0;
        loop {
            number += 1;
            let planted = Planted::new(bug);
            let Recorded { recorder, disks } =
                kind.record_over(before, Pace::AtOnce, |device| planted.device(device));
            let volume = open(&disks, bug, &mut random);
            let seed = random.draw();
            let mut writer = Writer::new(kind, &volume, &recorder, &planted, number, files, seed);
            writer.run(steps);
            let begun = writer.last_sync();
            files = writer.files;
            drop(volume);
            if number == writers {
                // A cut of the recovery leaves the same files.
                let run = RecordedRun::new(kind, &recorder, 0);
                return Self { run, files, broken: None };
            }
            let begun = if random.below(2) == 0 { begun } else { 0 };
            let run = RecordedRun::new(kind, &recorder, begun);
            let (point, disks) = cut_off(&run, &mut random);
            match found_after(point, &disks, &files) {
                Ok(found) => files = kept(&files, number << 16, &found),
                Err(what) => {
                    let broken = Some(format!("writer {number} was cut off at {point}: {what}"));
                    return Self { run, files, broken };
                }
            }
            before = copy_of(&disks);
        }
    }
}

/// Opens a volume in one of all ways.
fn open(disks: &Disks, bug: Bug, random: &mut Random) -> Volume {
    let mode = if random.below(2) == 0 { F2fsMode::Adaptive } else { F2fsMode::Lfs };
    let mut options = VolumeOptions { discard: Some(true), ..options(disks, bug, random.draw()) };
    options.f2fs.mode = mode;
    Volume::open_device(disks.volume.clone(), &options).unwrap()
}

/// Returns the contents after a recovery from a cut at `point`. Fails with a description if they
/// break a promise.
fn found_after(point: usize, disks: &Disks, files: &[Named]) -> Result<Snapshot, String> {
    let found = read(disks)?;
    files.iter().try_for_each(|file| file.check(point, &found))?;
    Ok(found)
}

/// Returns those of `files` that were found. They have numbers from `first` on.
fn kept(files: &[Named], first: u64, found: &Snapshot) -> Vec<Named> {
    let found = (first..).zip(files).filter_map(|(number, file)| {
        let contents = found.file(&file.path()).ok()?;
        Some(Named::found(file.name.clone(), number, contents))
    });
    found.collect()
}

fn copy_of(disks: &Disks) -> SharedDevice {
    let mut bytes = vec![0; disks.volume.size() as usize];
    disks.volume.read_at(DeviceOffset(0), &mut bytes).unwrap();
    Arc::new(MemoryDevice::new(bytes))
}

/// One of the writers.
struct Writer<'w> {
    kind: &'w Kind,
    volume: &'w Volume,
    recorder: &'w RecordDevice,
    planted: &'w Planted,
    number: u64,
    files: Vec<Named>,
    /// The files that are there, with their index in `files`.
    open: Vec<(usize, Subject)>,
    random: Random,
    /// Whether only data changes, and is synced by chains of nodes, so that checkpoints are rare.
    only_syncs: bool,
}

impl<'w> Writer<'w> {
    fn new(
        kind: &'w Kind,
        volume: &'w Volume,
        recorder: &'w RecordDevice,
        planted: &'w Planted,
        number: u64,
        files: Vec<Named>,
        seed: u64,
    ) -> Self {
        let mut random = Random(seed);
        let subject = |(index, named): (usize, &Named)| (index, subject(file(volume, &named.name)));
        let open = files.iter().enumerate().map(subject).collect();
        let only_syncs = random.below(2) == 0;
        Self { kind, volume, recorder, planted, number, files, open, random, only_syncs }
    }

    /// Makes `steps` changes.
    fn run(&mut self, steps: usize) {
        if let Some(at) = self.pick() {
            // The first sync after a recovery, which the nodes of the writer before must not join.
            self.resize(at);
            self.sync(at);
        }
        for _ in 0..steps {
            let at = match self.pick() {
                Some(at) if self.open.len() > 2 => at,
                _ => {
                    self.make();
                    continue;
                }
            };
            match self.random.below(100) {
                0..=24 => self.change(at, Subject::change),
                25..=44 => self.change(at, write_much),
                45..=59 => self.sync(at),
                60..=69 => {
                    self.change(at, Subject::change);
                    self.sync(at);
                }
                _ if self.only_syncs => {
                    self.change(at, write_much);
                    self.sync(at);
                }
                70..=79 => self.make(),
                80..=87 => self.remove(at),
                88..=94 => self.sync_volume(),
                _ => drop(self.volume.clean().unwrap()),
            }
        }
    }

    /// Syncs a file after a checkpoint, by several nodes. Returns the point before the sync.
    fn last_sync(&mut self) -> usize {
        self.sync_volume();
        let at = self.pick().expect("there are files");
        let value = [self.random.draw() as u8; XATTR_BYTES];
        let node = self.open[at].1.file.node();
        node.set_xattr(b"user.large", &value, XattrMode::Either, Privileges::Keep).unwrap();
        self.resize(at);
        let point = self.recorder.point();
        self.sync(at);
        point
    }

    /// Chooses an open file.
    fn pick(&mut self) -> Option<usize> {
        let count = self.open.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    /// Calls `change` with an open file.
    fn change(
        &mut self,
        at: usize,
        change: impl FnOnce(&mut Subject, &mut Notes<'_>, &mut Random) -> bool,
    ) {
        let (index, subject) = &mut self.open[at];
        let history = &mut self.files[*index].history;
        let mut notes = Notes { history, recorder: self.recorder, kind: self.kind };
        let blocks = self.planted.blocks_of(&subject.file);
        change(subject, &mut notes, &mut self.random);
        self.planted.had_blocks(&subject.file, blocks);
    }

    fn resize(&mut self, at: usize) {
        self.change(at, |subject, notes, random| {
            subject.set_size(notes, random.below(SIZE_MAX as u64) as usize);
            false
        });
    }

    fn sync(&mut self, at: usize) {
        let (index, subject) = &self.open[at];
        let blocks = self.planted.blocks_of(&subject.file);
        sync(&subject.file, self.random.below(4) == 0);
        self.planted.had_blocks(&subject.file, blocks);
        let (point, named) = (self.recorder.point(), &mut self.files[*index]);
        named.durable.get_or_insert(point);
        named.history.is_durable(point, named.history.version());
    }

    /// Makes a file and usually syncs it.
    fn make(&mut self) {
        if self.open.len() == FILES_MAX {
            return;
        }
        // Numbers of files that are found after the next cut begin at the next multiple of 2^16.
        let index = self.files.len();
        let number = self.number << 16 | 1 << 15 | index as u64;
        let name = format!("file{}.{index}", self.number);
        let mut named = Named::new(name, number, self.recorder.point());
        let mut subject = subject(make(self.volume, &named.name));
        let history = &mut named.history;
        let mut notes = Notes { history, recorder: self.recorder, kind: self.kind };
        write_much(&mut subject, &mut notes, &mut self.random);
        if self.random.below(4) > 0 {
            sync(&subject.file, false);
            let point = self.recorder.point();
            named.durable = Some(point);
            named.history.is_durable(point, named.history.version());
        }
        self.files.push(named);
        self.open.push((index, subject));
    }

    fn remove(&mut self, at: usize) {
        let (index, subject) = self.open.swap_remove(at);
        let named = &mut self.files[index];
        named.removed = Some(self.recorder.point());
        self.volume.remove(named.path().as_bytes(), &Credentials::ROOT).unwrap();
        drop(subject);
    }

    fn sync_volume(&mut self) {
        let blocks: Vec<_> =
            self.open.iter().map(|(_, subject)| self.planted.blocks_of(&subject.file)).collect();
        self.volume.sync().unwrap();
        let point = self.recorder.point();
        for ((_, subject), blocks) in self.open.iter().zip(blocks) {
            self.planted.had_blocks(&subject.file, blocks);
        }
        for named in &mut self.files {
            match named.removed {
                Some(_) => {
                    named.gone.get_or_insert(point);
                }
                None => {
                    named.durable.get_or_insert(point);
                    named.history.is_durable(point, named.history.version());
                }
            }
        }
    }
}

fn subject(file: vfs::File) -> Subject {
    Subject::with_size_max(file, SIZE_MAX, WRITE_BITS_MAX)
}

/// Overwrites at least a quarter of the maximum size, through the cache.
fn write_much(subject: &mut Subject, notes: &mut Notes<'_>, random: &mut Random) -> bool {
    let length = SIZE_MAX / 4 + random.below(SIZE_MAX as u64 * 3 / 4) as usize;
    let at = random.below((SIZE_MAX - length) as u64 + 1) as usize;
    let data = notes.history.bytes(at, length);
    let flags = RwFlags { dontcache: random.below(3) == 0, ..RwFlags::default() };
    let place = WriteAt::Offset(FileOffset(at as u64));
    let written = subject.file.write_with(place, &data, Privileges::Keep, flags);
    assert_eq!(written, Ok(length));
    notes.history.write(at, &data);
    false
}

impl History for Reopened {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        match &self.broken {
            Some(broken) => Err(broken.clone()),
            None => self.files.iter().try_for_each(|file| file.check(point, found)),
        }
    }
}
