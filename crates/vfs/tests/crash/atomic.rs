//! Atomic writes of some files, which are cut off anywhere. A cut leaves each file as one of its
//! commits has left it, all of it: the last durable one, or one after that which had begun.
//! Meanwhile another thread changes files in the usual way and writes checkpoints.

use std::sync::atomic::{AtomicBool, Ordering};

use base::{Error, FileOffset};
use iomap::DIRECT_ALIGNMENT;
use testkit::Random;
use testkit::crash::{History, Kind, Pace, Recorded, RecordedRun, Snapshot};
use vfs::{
    AtomicWrite, File, MapAccess, Privileges, RwFlags, SyncRange, Volume, WriteAt, WriteSync,
};

use crate::common::{bytes, make, store, sync};
use crate::planted::{Bug, Planted};
use crate::stage::open;

const NAMES: [&str; 3] = ["a", "b", "c"];
const BLOCK: usize = 4096;
const SIZE_MAX: usize = 60 * BLOCK;
const WRITES_MAX: u64 = 6;

/// A file that only commits change.
#[derive(Debug)]
struct Committed {
    number: u64,
    versions: Vec<Version>,
}

/// The contents after a commit.
#[derive(Debug)]
struct Version {
    contents: Vec<u8>,
    /// The point of the recording before the commit.
    begun: usize,
    /// The point after it.
    ended: usize,
}

impl Committed {
    fn now(&self) -> &[u8] {
        &self.versions.last().expect("a file has a first version").contents
    }

    /// Fails with a description if a cut at `point` cannot leave these contents.
    fn check(&self, name: &str, point: usize, found: &[u8]) -> Result<(), String> {
        let durable = self.versions.iter().rposition(|version| version.ended <= point).unwrap_or(0);
        let mut possible = self.versions[durable..].iter().filter(|it| it.begun <= point);
        if possible.any(|version| version.contents == found) {
            return Ok(());
        }
        let equal: Vec<usize> = (0..self.versions.len())
            .filter(|index| self.versions[*index].contents == found)
            .collect();
        Err(format!(
            "{name}, {} bytes, is not as commit {durable} or a later one has left it, but as {equal:?}",
            found.len()
        ))
    }
}

pub struct Atomic {
    run: RecordedRun,
    files: Vec<Committed>,
}

impl Atomic {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, steps: usize) -> Self {
        let planted = Planted::new(bug);
        let Recorded { recorder, disks } =
            kind.record(Pace::AtOnce, |device| planted.device(device));
        let volume = open(&disks, bug, seed);
        let mut random = Random(seed);
        let open_files = NAMES.map(|name| make(&volume, name));
        let mut files: Vec<Committed> = Vec::new();
        for (number, file) in (1..).zip(&open_files) {
            let contents = data(&mut random, random_size(seed, number));
            file.write_all_at(&contents, 0).unwrap();
            files.push(Committed { number, versions: Vec::new() });
            let versions = &mut files.last_mut().expect("just added").versions;
            versions.push(Version { contents, begun: 0, ended: 0 });
        }
        let noise = make(&volume, "noise");
        volume.sync().unwrap();
        let begun = recorder.point();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| make_noise(&volume, &noise, seed, &is_done));
            for _ in 0..steps {
                let index = random.below(NAMES.len() as u64) as usize;
                let (file, committed) = (&open_files[index], &mut files[index]);
                let writes = Writes { file, committed, volume: &volume, bug };
                writes.run(&mut random, || recorder.point());
            }
            is_done.store(true, Ordering::Relaxed);
        });
        Self { run: RecordedRun::new(kind, &recorder, begun), files }
    }
}

fn random_size(seed: u64, number: u64) -> usize {
    Random(seed ^ number << 40).below(SIZE_MAX as u64) as usize
}

fn data(random: &mut Random, length: usize) -> Vec<u8> {
    // As all data of the suite: no metadata has such bytes only.
    (0..length).map(|_| 1 + random.below(200) as u8).collect()
}

/// Changes a file, which has no promises, and writes checkpoints.
fn make_noise(volume: &Volume, noise: &File, seed: u64, is_done: &AtomicBool) {
    let mut random = Random(seed ^ 0x5555);
    while !is_done.load(Ordering::Relaxed) {
        let length = 1 + random.below(8 * BLOCK as u64) as usize;
        let at = random.below(SIZE_MAX as u64);
        noise.write_all_at(&data(&mut random, length), at).unwrap();
        match random.below(8) {
            0..=1 => volume.sync().unwrap(),
            2..=4 => sync(noise, false),
            _ => std::thread::yield_now(),
        }
    }
}

/// An atomic write of one file.
struct Writes<'w> {
    file: &'w File,
    committed: &'w mut Committed,
    volume: &'w Volume,
    bug: Bug,
}

impl Writes<'_> {
    fn run(self, random: &mut Random, point: impl Fn() -> usize) {
        let Self { file, committed, volume, bug } = self;
        let replaces = random.below(3) == 0;
        // Of the file itself, which a planted bug leaves otherwise than as committed.
        let mut next = if replaces { Vec::new() } else { read(file) };
        let kind = if replaces { AtomicWrite::Replace } else { AtomicWrite::Update };
        match bug {
            Bug::NotAtomic if replaces => file.node().set_size(0, Privileges::Keep).unwrap(),
            Bug::NotAtomic => {}
            _ => file.atomic_start(kind).unwrap(),
        }
        for _ in 0..=random.below(WRITES_MAX) {
            write(file, &mut next, random, bug != Bug::NotAtomic);
            match random.below(10) {
                0 => volume.sync().unwrap(),
                1..=2 => sync(file, random.below(2) == 0),
                3..=5 => {
                    let how = SyncRange { wait_before: true, write: true, wait_after: true };
                    file.sync_range(0..u64::MAX, how).unwrap();
                }
                _ => {}
            }
            if bug == Bug::TwoCommits && random.below(3) == 0 {
                file.atomic_commit().unwrap();
                file.atomic_start(AtomicWrite::Update).unwrap();
            }
        }
        if bug == Bug::NotAtomic || random.below(4) > 0 {
            let begun = point();
            file.atomic_commit().unwrap();
            let ended = point();
            committed.versions.push(Version { contents: next, begun, ended });
        } else {
            file.atomic_abort().unwrap();
        }
        let found = read(file);
        let is_as_promised = found == committed.now();
        assert!(is_as_promised || bug != Bug::None, "file {} in memory", committed.number);
    }
}

/// Writes to a random range, in one of all ways. Direct writes are refused if the write is atomic.
fn write(file: &File, next: &mut Vec<u8>, random: &mut Random, is_atomic: bool) {
    let at = match random.below(4) {
        0 => next.len(),
        1 => random.below(next.len() as u64 + 1) as usize,
        _ => random.below(SIZE_MAX as u64) as usize / BLOCK * BLOCK,
    };
    let bits = 6 + random.below(10);
    let length = 1 + random.below(1 << bits) as usize;
    let mut range = at..(at + length).min(SIZE_MAX).max(at);
    let how = random.below(8);
    if how == 0 {
        let unit = DIRECT_ALIGNMENT as usize;
        range = range.start / unit * unit..range.end.next_multiple_of(unit);
    }
    if how == 1 {
        range = range.start.min(next.len())..range.end.min(next.len());
    }
    if range.is_empty() {
        return;
    }
    let data = data(random, range.len());
    let place = WriteAt::Offset(FileOffset(range.start as u64));
    match how {
        0 => {
            let written = file.write_direct(place, &data, Privileges::Keep, WriteSync::None);
            match written {
                Err(Error::Unsupported(_)) if is_atomic => return,
                written => assert!(written.is_ok() && !is_atomic, "{written:?}"),
            }
        }
        1 => {
            let map = file.map(bytes(0..next.len() as u64), MapAccess::ReadWrite).unwrap();
            store(&map, range.start as u64, &data);
        }
        _ => {
            let flags = RwFlags { dontcache: how == 2, ..RwFlags::default() };
            file.write_with(place, &data, Privileges::Keep, flags).unwrap();
        }
    }
    next.resize(next.len().max(range.end), 0);
    next[range].copy_from_slice(&data);
}

fn read(file: &File) -> Vec<u8> {
    let mut contents = vec![0; file.node().attributes().size as usize];
    file.read_exact_at(&mut contents, 0).unwrap();
    contents
}

impl History for Atomic {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        let mut files = self.files.iter().zip(NAMES);
        files.try_for_each(|(file, name)| file.check(name, point, found.file(&format!("/{name}"))?))
    }
}
