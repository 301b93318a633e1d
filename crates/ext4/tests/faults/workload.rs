//! A workload that goes on whatever fails, and what of it has to be there after a power cut.

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

/// A file as it is, or was tried to be made, by one operation.
#[derive(Clone, Default)]
struct Version {
    /// `None` before it has one, and when it was deleted.
    name: Option<String>,
    data: Vec<u8>,
    xattr: Option<u8>,
}

/// A file with two users, and all that it was.
struct Subject {
    inode: Arc<Inode>,
    file: Arc<WritableFile>,
    users: [ErrorCursor; 2],
    versions: Vec<Version>,
    /// The version that was there when an fsync said that all is well.
    durable: Option<usize>,
    /// An fsync said that something was lost: from then on nothing more is promised.
    has_lost: bool,
}

impl Subject {
    fn now(&self) -> Version {
        self.versions.last().cloned().unwrap_or_default()
    }

    fn try_to_be(&mut self, change: impl FnOnce(&mut Version)) {
        let mut version = self.now();
        change(&mut version);
        self.versions.push(version);
    }

    fn write_back(&self) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
    }

    /// What writing the data back has met, which each user hears of once.
    fn data_error(&self) -> Result<()> {
        let told = self.users.each_ref().map(|user| self.file.errors().check(user));
        assert_eq!(told[0], told[1], "the users hear different things");
        let again = self.users.each_ref().map(|user| self.file.errors().check(user));
        assert_eq!(again, [Ok(()), Ok(())], "the users hear it again");
        let [told, _] = told;
        assert!(!matches!(told, Err(Error::ShutDown(_))), "lost data is told of as unchanged");
        told
    }

    fn note_synced(&mut self, result: &Result<()>) {
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
    /// What callers were told.
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

    /// Does so many operations, then syncs all files, and the volume.
    pub fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            let was_shut = self.volume.check_writable().is_err();
            let (result, is_change) = self.step();
            if was_shut && is_change {
                assert!(matches!(result, Err(Error::ShutDown(_))), "changed when shut: {result:?}");
            }
            self.note(result);
        }
        for index in 0..self.files.len() {
            let result = self.fsync(index);
            self.note(result);
        }
        let result = self.sync();
        self.note(result);
    }

    /// Ends the volume.
    pub fn close(&mut self) {
        let result = self.volume.close();
        let files = self.files.iter_mut().chain(&mut self.gone);
        files.for_each(|file| file.note_synced(&result));
        self.note(result);
    }

    fn note(&mut self, result: Result<()>) {
        self.errors.extend(result.err());
    }

    /// One operation, and whether it always changes something in a transaction.
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
        file.try_to_be(|version| version.data = data);
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
        file.try_to_be(|version| version.data = data);
        truncate_cache(&file.file, size)?;
        file.inode.set_size(size, false, TIME)
    }

    fn rename(&mut self, index: usize) -> Result<()> {
        let name = self.new_name();
        self.rename_to(index, name, None)
    }

    /// Gives a file the name of another one, which is deleted by that.
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
        file.try_to_be(|version| version.name = Some(name.clone()));
        let moved = Arc::clone(&file.inode);
        let replaced = other.map(|other| {
            self.files[other].try_to_be(|version| version.name = None);
            Arc::clone(&self.files[other].inode)
        });
        let from = Named { directory: &self.root, name: old.as_bytes() };
        let to = Named { directory: &self.root, name: name.as_bytes() };
        let renamed = moved.rename(from, to, replaced.as_ref(), &RenameMode::Move, TIME);
        if renamed.is_err() {
            // It has the old name still, in memory at least.
            self.files[index].try_to_be(|version| version.name = Some(old));
            if let Some(other) = other {
                self.files[other].try_to_be(|version| version.name = Some(name));
            }
            return renamed;
        }
        other.map_or(Ok(()), |other| self.forget(other))
    }

    fn unlink(&mut self, index: usize) -> Result<()> {
        let file = &mut self.files[index];
        let name = file.now().name.unwrap_or_default();
        file.try_to_be(|version| version.name = None);
        let unlinked = self.root.unlink(name.as_bytes(), &file.inode, TIME);
        if unlinked.is_err() {
            file.try_to_be(|version| version.name = Some(name));
            return unlinked;
        }
        self.forget(index)
    }

    fn forget(&mut self, index: usize) -> Result<()> {
        let file = self.files.remove(index);
        let inode = Arc::clone(&file.inode);
        let dropped = truncate_cache(&file.file, 0);
        self.gone.push(file);
        dropped.and(inode.release())
    }

    fn set_xattr(&mut self, index: usize) -> Result<()> {
        let file = &mut self.files[index];
        let byte = 1 + self.random.below(200) as u8;
        // In the inode or in a block of its own.
        let value = vec![byte; 1 + self.random.below(400) as usize];
        file.try_to_be(|version| version.xattr = Some(byte));
        file.inode.set_xattr(XATTR, &value, XattrMode::Either, &AttributeChange::default())
    }

    fn fsync(&mut self, index: usize) -> Result<()> {
        let was_shut = self.volume.check_writable().is_err();
        let file = &mut self.files[index];
        file.write_back();
        let synced = file.inode.sync(false);
        let result = file.data_error().and(synced);
        assert!(!was_shut || result.is_err(), "an fsync succeeds on a volume that is shut");
        file.note_synced(&result);
        result
    }

    fn sync(&mut self) -> Result<()> {
        let mut all = Ok(());
        for file in &mut self.files {
            file.write_back();
            let result = file.inode.write_pending().and(file.data_error());
            if result.is_err() {
                file.note_synced(&result);
            }
            all = all.and(result);
        }
        let synced = self.volume.sync();
        for file in self.files.iter_mut().chain(&mut self.gone) {
            file.note_synced(&synced);
        }
        all.and(synced)
    }

    /// Where the data of the files lies on the device.
    pub fn data_places(&self) -> Vec<std::ops::Range<u64>> {
        let maps = self.files.iter().flat_map(|file| crate::common::maps(&file.inode));
        let location = |map: iomap::Iomap| map.address.map(|at| at.0..at.0 + map.length);
        maps.filter_map(location).collect()
    }

    /// Whether a volume, found after a cut, has what is durable, and nothing that never was. Without
    /// a journal nothing is promised of what was changed since.
    pub fn check(&self, volume: &Arc<Volume>, has_journal: bool, location: &str) {
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
            // Without a journal an old name may lead to the file that has its number now.
            let has_number = |other: &&Subject| other.inode.number() == number;
            let is_shared = self.files.iter().chain(&self.gone).filter(has_number).count() > 1;
            if !has_journal && is_shared && since.iter().any(|one| one.name.is_none()) {
                continue;
            }
            let known = |name: &&String| since.iter().any(|one| one.name.as_ref() == Some(*name));
            let found = names.get(&number.0).and_then(|names| names.iter().find(known));
            match found {
                Some(name) => {
                    let location = format!("{location}: {name:.6}");
                    check_file(volume, number, since, has_journal, &location);
                }
                // Without a journal names can get lost when directories grow.
                None if !has_journal && volume.inode(number).is_ok() => {}
                None => {
                    let may_lack = since.iter().any(|one| one.name.is_none());
                    let last = since[0].name.clone().unwrap_or_default();
                    assert!(may_lack, "{location}: {last:.6} was synced, and is not there");
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
    location: &str,
) {
    let inode = volume.inode(number).unwrap();
    let found = contents(volume, &inode);
    let sizes = since.iter().map(|one| one.data.len());
    let (min, max) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    assert!((min..=max).contains(&found.len()), "{location} has {} bytes", found.len());
    for (at, byte) in found.iter().enumerate() {
        let was = since.iter().any(|one| one.data.get(at).copied().unwrap_or(0) == *byte);
        let has_changed = since.iter().any(|one| one.data.get(at) != since[0].data.get(at));
        assert!(
            was || has_changed && !has_journal,
            "{location} has {byte:#x} at {at}, of {}",
            found.len()
        );
    }
    let xattr = match inode.get_xattr(XATTR) {
        Ok(value) => value.first().copied(),
        Err(Error::NoAttribute) => None,
        Err(error) => panic!("{location}: {error}"),
    };
    let known: Vec<Option<u8>> = since.iter().map(|one| one.xattr).collect();
    let has_changed = known.iter().any(|one| *one != known[0]);
    let is_known = known.contains(&xattr) || has_changed && !has_journal;
    assert!(is_known, "{location} has the attribute {xattr:?}, not of {known:?}");
}
