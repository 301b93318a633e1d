//! A workload that continues after errors, and a check of what must exist after a power cut.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{AttributeChange, DirCursor, FileType, XattrMode};
use base::{Error, FileOffset, InodeNumber, Result};
use ext4::{Inode, Named, ROOT_INODE, RenameMode, Volume};
use iomap::{
    EndIo, ErrorCursor, PageCache, WritableFile, truncate_cache, wait_for_writeback, write,
    write_back,
};
use testkit::Random;

use crate::common::cached_file::writable_file;
use crate::common::{TIME, contents, new_inode};

const FILES_MAX: usize = 6;
const SIZE_MAX: u64 = 40_000;
const XATTR: &[u8] = b"user.faults";

/// The state of a file after an operation that was tried.
#[derive(Clone, Default)]
struct Version {
    /// `None` before the file is created, and after it is deleted.
    name: Option<String>,
    data: Vec<u8>,
    xattr: Option<u8>,
}

/// A file with two users, and all its versions.
struct Subject {
    inode: Arc<Inode>,
    file: Arc<WritableFile>,
    users: [ErrorCursor; 2],
    versions: Vec<Version>,
    /// The version at the last successful fsync.
    durable: Option<usize>,
    /// Whether an fsync has reported lost data. From then on, nothing more is promised.
    has_lost: bool,
}

impl Subject {
    fn now(&self) -> Version {
        self.versions.last().cloned().unwrap_or_default()
    }

    fn add_version(&mut self, change: impl FnOnce(&mut Version)) {
        let mut version = self.now();
        change(&mut version);
        self.versions.push(version);
    }

    fn write_back(&self) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
    }

    /// Returns the error of writeback, which is reported to each user once.
    fn data_error(&self) -> Result<()> {
        let results = self.users.each_ref().map(|user| self.file.errors().check(user));
        assert_eq!(results[0], results[1], "both users must get the same result");
        let again = self.users.each_ref().map(|user| self.file.errors().check(user));
        assert_eq!(again, [Ok(()), Ok(())], "an error is reported only once");
        let [result, _] = results;
        assert!(!matches!(result, Err(Error::ShutDown(_))), "lost data is not a shutdown");
        result
    }

    fn record_sync(&mut self, result: &Result<()>) {
        match result {
            Ok(()) if !self.has_lost => self.durable = Some(self.versions.len() - 1),
            Ok(()) => {}
            Err(_) => self.has_lost = true,
        }
    }
}

/// A volume, and the files on it.
pub struct Workload {
    pub volume: Arc<Volume>,
    cache: Arc<PageCache>,
    end_io: Arc<EndIo>,
    root: Arc<Inode>,
    files: Vec<Subject>,
    gone: Vec<Subject>,
    random: Random,
    counter: u64,
    /// Errors that were returned to callers.
    pub errors: Vec<Error>,
}

impl Workload {
    pub fn new(volume: Arc<Volume>, cache: Arc<PageCache>, seed: u64) -> Result<Self> {
        let root = Arc::new(volume.inode(ROOT_INODE)?);
        let end_io = EndIo::start()?;
        Ok(Self {
            volume,
            cache,
            end_io,
            root,
            files: Vec::new(),
            gone: Vec::new(),
            random: Random(seed),
            counter: 0,
            errors: Vec::new(),
        })
    }

    /// Does `steps` operations, then syncs all files and the volume.
    pub fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            let was_shut = self.volume.check_writable().is_err();
            let (result, is_change) = self.step();
            if was_shut && is_change {
                assert!(
                    matches!(result, Err(Error::ShutDown(_))),
                    "a change after the shutdown: {result:?}"
                );
            }
            self.record(result);
        }
        for index in 0..self.files.len() {
            let result = self.fsync(index);
            self.record(result);
        }
        let result = self.sync();
        self.record(result);
    }

    /// Closes the volume.
    pub fn close(&mut self) {
        let result = self.volume.close();
        let files = self.files.iter_mut().chain(&mut self.gone);
        files.for_each(|file| file.record_sync(&result));
        self.record(result);
    }

    fn record(&mut self, result: Result<()>) {
        self.errors.extend(result.err());
    }

    /// Does one operation. Returns its result, and whether it always changes something in a
    /// transaction.
    fn step(&mut self) -> (Result<()>, bool) {
        self.counter += 1;
        if self.files.is_empty() {
            return (self.create(), true);
        }
        let index = self.random.below(self.files.len() as u64) as usize;
        match self.random.below(20) {
            0..=2 if self.files.len() < FILES_MAX => (self.create(), true),
            0..=8 => (self.write(index), false),
            9 => (self.truncate(index), true),
            10..=11 => (self.rename(index), true),
            12 => (self.replace(index), true),
            13..=14 => (self.set_xattr(index), true),
            15 => (self.unlink(index), true),
            16 => (self.sync(), false),
            _ => (self.fsync(index), false),
        }
    }

    fn new_name(&self) -> String {
        // Long enough for several blocks of names.
        format!("{}-{}", self.counter, "n".repeat(120))
    }

    fn create(&mut self) -> Result<()> {
        let name = self.new_name();
        let inode = self.root.create(name.as_bytes(), &new_inode(FileType::Regular))?;
        let file = writable_file(&inode, Arc::clone(&inode), &self.cache, &self.end_io);
        let users = [file.errors().cursor(), file.errors().cursor()];
        let versions = vec![Version::default(), Version { name: Some(name), ..Version::default() }];
        let (durable, has_lost) = (None, false);
        self.files.push(Subject { inode, file, users, versions, durable, has_lost });
        Ok(())
    }

    fn write(&mut self, index: usize) -> Result<()> {
        let file = &mut self.files[index];
        let mut data = file.now().data;
        let at = match self.random.below(3) {
            0 => self.random.below(data.len() as u64 + 1),
            1 => self.random.below(SIZE_MAX / 2),
            _ => data.len() as u64,
        };
        let bits = 5 + self.random.below(9);
        let length = 1 + self.random.below(1 << bits);
        let bytes = vec![1 + self.random.below(200) as u8; length.min(SIZE_MAX - at) as usize];
        let end = at as usize + bytes.len();
        data.resize(data.len().max(end), 0);
        data[at as usize..end].copy_from_slice(&bytes);
        file.add_version(|version| version.data = data);
        file.inode.note_modified(TIME);
        let written = write(&file.file, FileOffset(at), &bytes)?;
        assert_eq!(written, bytes.len());
        Ok(())
    }

    fn truncate(&mut self, index: usize) -> Result<()> {
        let file = &mut self.files[index];
        let mut data = file.now().data;
        data.truncate(self.random.below(data.len() as u64 + 1) as usize);
        let size = data.len() as u64;
        file.add_version(|version| version.data = data);
        truncate_cache(&file.file, size)?;
        file.inode.set_size(size, false, TIME)
    }

    fn rename(&mut self, index: usize) -> Result<()> {
        let name = self.new_name();
        self.rename_to(index, name, None)
    }

    /// Renames a file over another one, which is deleted.
    fn replace(&mut self, index: usize) -> Result<()> {
        let other = (index + 1) % self.files.len();
        match self.files[other].now().name {
            Some(name) if other != index => self.rename_to(index, name, Some(other)),
            _ => self.rename(index),
        }
    }

    fn rename_to(&mut self, index: usize, name: String, other: Option<usize>) -> Result<()> {
        let file = &mut self.files[index];
        let old = file.now().name.unwrap_or_default();
        file.add_version(|version| version.name = Some(name.clone()));
        let moved = Arc::clone(&file.inode);
        let replaced = other.map(|other| {
            self.files[other].add_version(|version| version.name = None);
            Arc::clone(&self.files[other].inode)
        });
        let from = Named { directory: &self.root, name: old.as_bytes() };
        let to = Named { directory: &self.root, name: name.as_bytes() };
        let renamed = moved.rename(from, to, replaced.as_ref(), &RenameMode::Move, TIME);
        if renamed.is_err() {
            // The file still has the old name, at least in memory.
            self.files[index].add_version(|version| version.name = Some(old));
            if let Some(other) = other {
                self.files[other].add_version(|version| version.name = Some(name));
            }
            return renamed;
        }
        other.map_or(Ok(()), |other| self.release(other))
    }

    fn unlink(&mut self, index: usize) -> Result<()> {
        let file = &mut self.files[index];
        let name = file.now().name.unwrap_or_default();
        file.add_version(|version| version.name = None);
        let unlinked = self.root.unlink(name.as_bytes(), &file.inode, TIME);
        if unlinked.is_err() {
            file.add_version(|version| version.name = Some(name));
            return unlinked;
        }
        self.release(index)
    }

    fn release(&mut self, index: usize) -> Result<()> {
        let file = self.files.remove(index);
        let inode = Arc::clone(&file.inode);
        let dropped = truncate_cache(&file.file, 0);
        self.gone.push(file);
        dropped.and(inode.release())
    }

    fn set_xattr(&mut self, index: usize) -> Result<()> {
        let file = &mut self.files[index];
        let byte = 1 + self.random.below(200) as u8;
        // In the inode, or in its own block.
        let value = vec![byte; 1 + self.random.below(400) as usize];
        file.add_version(|version| version.xattr = Some(byte));
        file.inode.set_xattr(XATTR, &value, XattrMode::Either, &AttributeChange::default())
    }

    fn fsync(&mut self, index: usize) -> Result<()> {
        let was_shut = self.volume.check_writable().is_err();
        let file = &mut self.files[index];
        file.write_back();
        let synced = file.inode.sync(false);
        let result = file.data_error().and(synced);
        assert!(!was_shut || result.is_err(), "an fsync succeeded after the shutdown");
        file.record_sync(&result);
        result
    }

    fn sync(&mut self) -> Result<()> {
        let mut all = Ok(());
        for file in &mut self.files {
            file.write_back();
            let result = file.inode.write_pending().and(file.data_error());
            if result.is_err() {
                file.record_sync(&result);
            }
            all = all.and(result);
        }
        let synced = self.volume.sync();
        for file in self.files.iter_mut().chain(&mut self.gone) {
            file.record_sync(&synced);
        }
        all.and(synced)
    }

    /// Returns the ranges of the files' data on the device.
    pub fn data_ranges(&self) -> Vec<std::ops::Range<u64>> {
        let maps = self.files.iter().flat_map(|file| crate::common::maps(&file.inode));
        let range_of = |map: iomap::Iomap| map.address.map(|at| at.0..at.0 + map.length);
        maps.filter_map(range_of).collect()
    }

    /// Checks that a volume after a power cut has everything that is durable, and nothing that
    /// never existed. Without a journal, nothing is promised of later changes.
    pub fn check(&self, volume: &Arc<Volume>, has_journal: bool, case: &str) {
        let root = volume.inode(ROOT_INODE).unwrap();
        let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        root.read_dir(DirCursor::default(), &mut |entry| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            names.entry(entry.inode.0).or_default().push(name);
            ControlFlow::Continue(())
        })
        .unwrap();
        for file in self.files.iter().chain(&self.gone) {
            let number = file.inode.number();
            if file.durable.is_none() && !has_journal {
                continue;
            }
            let since = &file.versions[file.durable.unwrap_or(0)..];
            // Without a journal, an old name may refer to the file that reuses its number.
            let has_number = |other: &&Subject| other.inode.number() == number;
            let is_shared = self.files.iter().chain(&self.gone).filter(has_number).count() > 1;
            if !has_journal && is_shared && since.iter().any(|one| one.name.is_none()) {
                continue;
            }
            let known = |name: &&String| since.iter().any(|one| one.name.as_ref() == Some(*name));
            let found = names.get(&number.0).and_then(|names| names.iter().find(known));
            match found {
                Some(name) => {
                    let case = format!("{case}: {name:.6}");
                    check_file(volume, number, since, has_journal, &case);
                }
                // Without a journal, names can be lost when directories grow.
                None if !has_journal && volume.inode(number).is_ok() => {}
                None => {
                    let may_lack = since.iter().any(|one| one.name.is_none());
                    let last = since[0].name.clone().unwrap_or_default();
                    assert!(may_lack, "{case}: {last:.6} was synced, but does not exist");
                }
            }
        }
    }
}

fn check_file(
    volume: &Arc<Volume>,
    number: InodeNumber,
    since: &[Version],
    has_journal: bool,
    case: &str,
) {
    let inode = volume.inode(number).unwrap();
    let found = contents(volume, &inode);
    let sizes = since.iter().map(|one| one.data.len());
    let (min, max) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    assert!((min..=max).contains(&found.len()), "{case} has {} bytes", found.len());
    for (at, byte) in found.iter().enumerate() {
        let was = since.iter().any(|one| one.data.get(at).copied().unwrap_or(0) == *byte);
        let has_changed = since.iter().any(|one| one.data.get(at) != since[0].data.get(at));
        assert!(
            was || has_changed && !has_journal,
            "{case} has {byte:#x} at {at}, of {}",
            found.len()
        );
    }
    let xattr = match inode.get_xattr(XATTR) {
        Ok(value) => value.first().copied(),
        Err(Error::NoAttribute) => None,
        Err(error) => panic!("{case}: {error}"),
    };
    let known: Vec<Option<u8>> = since.iter().map(|one| one.xattr).collect();
    let has_changed = known.iter().any(|one| *one != known[0]);
    let is_known = known.contains(&xattr) || has_changed && !has_journal;
    assert!(is_known, "{case} has the attribute {xattr:?}, not of {known:?}");
}
