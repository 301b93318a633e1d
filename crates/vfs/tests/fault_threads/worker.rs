//! One thread: its operations, the errors that it got, and the states of its files that a power cut
//! may leave.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::attributes::DirCursor;
use base::{Error, FileOffset, Result};
use testkit::Random;
use vfs::{
    AtomicWrite, Credentials, Fallocate, File, Follow, Node, OpenMode, Privileges, RenameFlags,
    SyncRange, Volume, WriteAt, WriteSync,
};

use crate::{EIO, THREADS};

const EROFS: i32 = 30;
const FILES_MAX: usize = 4;
const SIZE_MAX: u64 = 40_000;
/// The unit of direct writes.
const SECTOR: usize = 512;

/// The state of a file after an operation, or the state that a failed operation was to make.
#[derive(Clone, Default)]
struct Version {
    /// `None` before the file has a name, and after it was deleted.
    path: Option<String>,
    data: Vec<u8>,
}

/// A file that is open twice, and its history.
struct Subject {
    number: u64,
    open: Option<(Arc<Node>, [File; 2])>,
    versions: Vec<Version>,
    /// The versions of the data and of the name at the last successful fsync.
    durable: Option<[usize; 2]>,
    /// Whether no data of the file is lost: all writes have succeeded, and no fsync has reported an
    /// error.
    is_whole: bool,
    /// The number of losses that each of the two open files has reported.
    reported: [usize; 2],
}

impl Subject {
    fn current(&self) -> Version {
        self.versions.last().cloned().unwrap_or_default()
    }

    fn add_version(&mut self, change: impl FnOnce(&mut Version)) {
        let mut version = self.current();
        change(&mut version);
        self.versions.push(version);
    }

    /// Returns whether the file has a name at the end.
    fn has_name(&self) -> bool {
        self.current().path.is_some()
    }

    /// Returns whether the file was not changed since it was last synced.
    fn is_untouched(&self) -> bool {
        self.durable.is_some_and(|[data, name]| data == name && data + 1 == self.versions.len())
    }

    fn open(&self) -> &(Arc<Node>, [File; 2]) {
        self.open.as_ref().expect("files are open while threads run")
    }
}

/// What threads do beside the operations of all volumes.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The binary logarithm of the maximum length of a write.
    pub write_bits_max: u64,
    /// Whether threads write atomically, directly, and punch holes.
    pub uses_all_writes: bool,
}

pub struct Worker {
    number: u64,
    work: Work,
    random: Random,
    names: u64,
    files: Vec<Subject>,
    /// Files that were deleted.
    deleted: Vec<Subject>,
    /// The number of operations that have failed.
    pub reported: usize,
}

impl Worker {
    pub fn new(number: u64, seed: u64, work: Work) -> Self {
        let random = Random(seed << 8 | number);
        let (files, deleted) = (Vec::new(), Vec::new());
        Self { number, work, random, names: 0, files, deleted, reported: 0 }
    }

    /// Runs `steps` operations, and syncs all files at the end. Sets `shut` when an error shows
    /// that the volume is shut down.
    pub fn run(&mut self, volume: &Volume, shut: &AtomicBool, steps: usize) {
        for _ in 0..steps {
            self.check_operation(shut, |worker| worker.step(volume));
        }
        for index in 0..self.files.len() {
            for user in 0..2 {
                self.check_operation(shut, |worker| worker.fsync(index, user, false));
            }
        }
    }

    /// Runs an operation, and checks its result: on a volume that is shut down, all changes and
    /// syncs fail.
    fn check_operation(&mut self, shut: &AtomicBool, work: impl FnOnce(&mut Self) -> Result<()>) {
        let was_shut = shut.load(Ordering::Acquire);
        let result = work(self);
        let number = result.as_ref().map_or_else(Error::errno, |()| 0);
        assert!([0, EIO, EROFS].contains(&number), "{result:?}");
        assert!(!was_shut || number > 0, "an operation succeeds on a volume that is shut down");
        shut.fetch_or(matches!(result, Err(Error::ShutDown(_))), Ordering::AcqRel);
        self.reported += usize::from(number > 0);
    }

    fn step(&mut self, volume: &Volume) -> Result<()> {
        if self.files.is_empty() {
            return self.create(volume);
        }
        let index = self.random.below(self.files.len() as u64) as usize;
        match self.random.below(24) {
            0..=3 if self.files.len() < FILES_MAX => self.create(volume),
            7 if self.work.uses_all_writes => self.punch(index),
            8 if self.work.uses_all_writes => self.write_directly(index),
            9 if self.work.uses_all_writes => self.write_atomically(index),
            0..=9 => self.write(index),
            10 => self.empty(index),
            11 => self.truncate(index),
            12..=13 => self.rename(volume, index),
            14 => self.replace(volume, index),
            15 => self.unlink(volume, index),
            16 => volume.sync(),
            17 => self.write_while_written_back(index),
            18..=19 => self.fsync(index, 0, true),
            20 => self.fsync(index, 1, false),
            _ => self.fsync(index, 0, false),
        }
    }

    /// Returns an unused path, in the thread's directory or in the shared one.
    fn new_path(&mut self) -> String {
        self.names += 1;
        let directory = match self.random.below(3) {
            0 => "shared".to_owned(),
            _ => self.number.to_string(),
        };
        format!("/{directory}/{}-{}-{}", self.number, self.names, "n".repeat(100))
    }

    fn create(&mut self, volume: &Volume) -> Result<()> {
        let path = self.new_path();
        let node = volume.create_file(path.as_bytes(), 0o644, &Credentials::ROOT)?;
        let mode = OpenMode { write: true, append: false };
        let users = [node.open_for(mode)?, node.open_for(mode)?];
        let versions = vec![Version::default(), Version { path: Some(path), ..Version::default() }];
        let number = node.number().0;
        let open = Some((node, users));
        self.files.push(Subject {
            number,
            open,
            versions,
            durable: None,
            is_whole: true,
            reported: [0; 2],
        });
        Ok(())
    }

    fn write(&mut self, index: usize) -> Result<()> {
        let mut data = self.files[index].current().data;
        let (at, bytes) = self.change_anywhere(&mut data);
        let file = &mut self.files[index];
        file.add_version(|version| version.data = data);
        let written = file.open().1[0].write_at(&bytes, at);
        file.is_whole &= written == Ok(bytes.len());
        written.map(drop)
    }

    /// Writes to a random range of `data`. Returns where, and what.
    fn change_anywhere(&mut self, data: &mut Vec<u8>) -> (u64, Vec<u8>) {
        let at = match self.random.below(3) {
            0 => self.random.below(data.len() as u64 + 1),
            1 => self.random.below(SIZE_MAX / 2),
            _ => data.len() as u64,
        };
        let bits = 5 + self.random.below(self.work.write_bits_max - 4);
        let length = (1 + self.random.below(1 << bits)).min(SIZE_MAX - at);
        let bytes = vec![1 + self.random.below(200) as u8; length as usize];
        let end = at as usize + bytes.len();
        data.resize(data.len().max(end), 0);
        data[at as usize..end].copy_from_slice(&bytes);
        (at, bytes)
    }

    /// Writes whole sectors directly.
    fn write_directly(&mut self, index: usize) -> Result<()> {
        let mut data = self.files[index].current().data;
        let start = self.random.below(data.len() as u64 + 1) as usize / SECTOR * SECTOR;
        let sectors = 1 + self.random.below(1 << (self.work.write_bits_max - 9)) as usize;
        let end = (start + sectors * SECTOR).min(SIZE_MAX as usize / SECTOR * SECTOR);
        let bytes = vec![1 + self.random.below(200) as u8; end - start];
        data.resize(data.len().max(end), 0);
        data[start..end].copy_from_slice(&bytes);
        let file = &mut self.files[index];
        file.add_version(|version| version.data = data);
        let at = WriteAt::Offset(FileOffset(start as u64));
        let open = &file.open().1[0];
        let written = open.write_direct(at, &bytes, Privileges::Keep, WriteSync::None);
        file.is_whole &= written == Ok(bytes.len());
        written.map(drop)
    }

    fn punch(&mut self, index: usize) -> Result<()> {
        let size = self.files[index].current().data.len() as u64;
        let start = self.random.below(size + 1);
        let end = start + 1 + self.random.below(9000);
        let file = &mut self.files[index];
        file.add_version(|version| version.data[start as usize..end.min(size) as usize].fill(0));
        let range = FileOffset(start)..FileOffset(end);
        let punched = file.open().1[0].fallocate(Fallocate::PunchHole, range, Privileges::Keep);
        file.is_whole &= punched.is_ok();
        punched
    }

    /// Writes to a file by an atomic write. After an error before the commit, the file has its old
    /// contents.
    fn write_atomically(&mut self, index: usize) -> Result<()> {
        let old = self.files[index].current().data;
        let mut data = old.clone();
        let writes: Vec<_> =
            (0..=self.random.below(3)).map(|_| self.change_anywhere(&mut data)).collect();
        let file = &mut self.files[index];
        if let Err(error) = file.open().1[0].atomic_start(AtomicWrite::Update) {
            // As an fsync, it reports the loss of earlier data.
            file.reported[0] += 1;
            file.is_whole = false;
            return Err(error);
        }
        let open = &file.open().1[0];
        for (at, bytes) in writes {
            open.write_at(&bytes, at).inspect_err(|_| open.atomic_abort().unwrap())?;
        }
        let committed = open.atomic_commit();
        file.add_version(|version| version.data = data);
        match &committed {
            Ok(()) if file.is_whole => file.durable = Some([file.versions.len() - 1; 2]),
            Ok(()) => {}
            Err(_) => {
                // The commit reports the loss to the open file, which does not report it again.
                file.reported[0] += 1;
                file.add_version(|version| version.data = old);
            }
        }
        committed
    }

    fn set_size(&mut self, index: usize, size: u64) -> Result<()> {
        let file = &mut self.files[index];
        file.add_version(|version| version.data.truncate(size as usize));
        let done = file.open().0.set_size(size, Privileges::Keep);
        file.is_whole &= done.is_ok();
        done
    }

    fn truncate(&mut self, index: usize) -> Result<()> {
        let size = self.random.below(self.files[index].current().data.len() as u64 + 1);
        self.set_size(index, size)
    }

    /// Truncates a file to zero, after which earlier losses of data do not matter.
    fn empty(&mut self, index: usize) -> Result<()> {
        self.set_size(index, 0)?;
        self.files[index].is_whole = true;
        Ok(())
    }

    fn rename(&mut self, volume: &Volume, index: usize) -> Result<()> {
        let path = self.new_path();
        self.rename_to(volume, index, path, None)
    }

    /// Renames a file over another file, which is thereby deleted.
    fn replace(&mut self, volume: &Volume, index: usize) -> Result<()> {
        let other = (index + 1) % self.files.len();
        match self.files[other].current().path {
            Some(path) if other != index => self.rename_to(volume, index, path, Some(other)),
            _ => self.rename(volume, index),
        }
    }

    fn rename_to(
        &mut self,
        volume: &Volume,
        index: usize,
        path: String,
        other: Option<usize>,
    ) -> Result<()> {
        let old = self.files[index].current().path.unwrap_or_default();
        self.files[index].add_version(|version| version.path = Some(path.clone()));
        if let Some(other) = other {
            self.files[other].add_version(|version| version.path = None);
        }
        let (from, to, flags) = (old.as_bytes(), path.as_bytes(), RenameFlags::default());
        let renamed = volume.rename_at(from, to, flags, &Credentials::ROOT);
        match (&renamed, other) {
            (Ok(()), Some(other)) => self.record_deletion(other),
            (Ok(()), None) => {}
            (Err(_), _) => {
                // The file still has the old name, at least in memory.
                self.files[index].add_version(|version| version.path = Some(old));
                if let Some(other) = other {
                    self.files[other].add_version(|version| version.path = Some(path));
                }
            }
        }
        renamed
    }

    fn unlink(&mut self, volume: &Volume, index: usize) -> Result<()> {
        let path = self.files[index].current().path.unwrap_or_default();
        self.files[index].add_version(|version| version.path = None);
        let removed = volume.remove(path.as_bytes(), &Credentials::ROOT);
        match removed {
            Ok(()) => self.record_deletion(index),
            Err(_) => self.files[index].add_version(|version| version.path = Some(path)),
        }
        removed
    }

    fn record_deletion(&mut self, index: usize) {
        let mut file = self.files.remove(index);
        file.open = None;
        self.deleted.push(file);
    }

    /// Writes to a file while earlier data of it is under writeback.
    fn write_while_written_back(&mut self, index: usize) -> Result<()> {
        let how = SyncRange { wait_before: false, write: true, wait_after: false };
        self.files[index].open().1[1].sync_range(0..u64::MAX, how)?;
        self.write(index)
    }

    fn fsync(&mut self, index: usize, user: usize, data_only: bool) -> Result<()> {
        let file = &mut self.files[index];
        let open = &file.open().1[user];
        let done = if data_only { open.sync_data() } else { open.sync_all() };
        let now = file.versions.len() - 1;
        match (&done, file.durable) {
            (Ok(()), Some([_, name])) if file.is_whole && data_only => {
                file.durable = Some([now, name]);
            }
            (Ok(()), _) if file.is_whole && !data_only => file.durable = Some([now; 2]),
            (Ok(()), _) => {}
            (Err(_), _) => {
                file.reported[user] += 1;
                file.is_whole = false;
            }
        }
        done
    }

    /// Closes all files.
    pub fn close_files(&mut self) {
        self.files.iter_mut().for_each(|file| file.open = None);
    }

    /// Returns the number of files for which a loss was reported.
    pub fn losses(&self) -> usize {
        self.files.iter().chain(&self.deleted).filter(|file| file.reported != [0; 2]).count()
    }

    /// Checks that both open files of a file have reported the same number of losses.
    pub fn check_reports(&self, place: &str) {
        for file in &self.files {
            assert_eq!(
                file.reported[0], file.reported[1],
                "{place}: two open files of one file report different losses"
            );
        }
    }
}

/// A volume after a power cut and its recovery.
pub struct Found<'a> {
    pub volume: &'a Volume,
    /// Without a journal, changes since the last sync of a file may leave anything of it, and names
    /// may be lost.
    pub has_journal: bool,
    /// On a volume with a recorded error, e2fsck does not process the orphan list, and rounds the
    /// size of a file up to its last block. The size may be this much too large, rounded up, and
    /// the further bytes are zeroes.
    pub padding: usize,
}

impl Found<'_> {
    /// Checks that files have their durable data, and only data that was written to them.
    pub fn check(&self, workers: &[Worker], place: &str) {
        let names = names(self.volume);
        let files = workers.iter().flat_map(|worker| worker.files.iter().chain(&worker.deleted));
        let mut users: BTreeMap<u64, usize> = BTreeMap::new();
        files.clone().for_each(|file| *users.entry(file.number).or_default() += 1);
        for file in files {
            let paths = names.get(&file.number).map_or(&[][..], Vec::as_slice);
            // Otherwise, if both the number and the name were reused, the file found may be either
            // of two.
            let is_its_own = file.durable.is_some() && file.has_name();
            let is_known = is_its_own || users[&file.number] == 1;
            if is_known && (self.has_journal || file.is_untouched()) {
                self.check_file(file, paths, place);
            }
        }
    }

    fn check_file(&self, file: &Subject, paths: &[String], place: &str) {
        let [data_from, name_from] = file.durable.unwrap_or_default();
        let since = &file.versions[data_from..];
        let names = &file.versions[name_from..];
        let is_known =
            |path: &&String| names.iter().any(|version| version.path.as_ref() == Some(*path));
        let found = if self.has_journal { paths.iter().find(is_known) } else { paths.first() };
        let Some(path) = found else {
            let is_empty = !self.has_journal && since[0].data.is_empty();
            let may_lack = names.iter().any(|version| version.path.is_none()) || is_empty;
            let last = names[0].path.clone().unwrap_or_default();
            assert!(may_lack, "{place}: {last:.12} was synced, and is missing");
            return;
        };
        let (data, place) = (contents(self.volume, path), format!("{place}: {path:.12}"));
        let sizes = since.iter().map(|version| version.data.len());
        let min = sizes.clone().min().unwrap_or(0);
        let max = sizes.max().unwrap_or(0).next_multiple_of(self.padding);
        let length = data.len();
        assert!((min..=max).contains(&length), "{place}: {length} bytes, not {min} to {max}");
        for (at, byte) in data.iter().enumerate() {
            let byte_of = |version: &Version| version.data.get(at).copied().unwrap_or(0);
            let was_written = since.iter().any(|version| byte_of(version) == *byte);
            assert!(was_written, "{place}: {byte:#x} at {at} of {length}");
        }
    }
}

/// Returns the paths of each inode by its number.
fn names(volume: &Volume) -> BTreeMap<u64, Vec<String>> {
    let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let of_threads = (0..THREADS).map(|number| number.to_string());
    for directory in of_threads.chain(["shared".into(), "lost+found".into()]) {
        let Ok(node) = volume.resolve(format!("/{directory}").as_bytes(), Follow::No) else {
            continue;
        };
        let listed = node.read_dir(DirCursor::default(), &mut |entry| {
            let name = String::from_utf8_lossy(entry.name);
            names.entry(entry.inode.0).or_default().push(format!("/{directory}/{name}"));
            ControlFlow::Continue(())
        });
        listed.unwrap();
    }
    names
}

fn contents(volume: &Volume, path: &str) -> Vec<u8> {
    let file = volume.resolve(path.as_bytes(), Follow::No).unwrap().open().unwrap();
    let mut data = vec![0xAA; SIZE_MAX as usize + 1];
    let length = file.read_at(&mut data, 0).unwrap();
    data.truncate(length);
    data
}
