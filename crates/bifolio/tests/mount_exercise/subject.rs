//! A file of a mount and its model, and operations on both. Not here: the choice of operations.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::MsyncFlags;
use testkit::Random;
use testkit::exercise::Model;

use crate::mounting::direct_and_mapped::{open_direct, read_direct, write_direct};
use crate::operation::{Flush, Operation};
use crate::window::Window;

/// Maximum size of a file.
pub const SIZE_MAX: u64 = 3 << 20;
/// Alignment of direct reads and writes.
const SECTOR: u64 = 512;

/// A file, open in several ways, and its model.
pub struct Subject {
    path: PathBuf,
    file: File,
    direct: File,
    writing: File,
    appending: File,
    /// A mapping of the maximum size, created when it is first used.
    window: Option<Window>,
    model: Model,
}

/// Runs an operation on the first of two files and its model. Compares data that was read with the
/// model.
pub fn run(
    subjects: &mut [Subject],
    operation: Operation,
    (index, other): (usize, usize),
    range: Range<u64>,
    random: &mut Random,
) {
    if operation == Operation::CopyTo {
        let to = random.below(SIZE_MAX - (range.end - range.start) + 1);
        let data = subjects[index].model.expected(&range).to_vec();
        subjects[index].copy_to(&subjects[other], &range, to);
        if !data.is_empty() {
            subjects[other].model.write(to, &data);
        }
    } else {
        subjects[index].run(operation, range, random);
    }
    for index in [index, other] {
        subjects[index].check_size();
    }
}

impl Subject {
    /// Opens the file that the model names in `directory`. Creates it if it does not exist.
    pub fn new(directory: &Path, model: Model) -> Self {
        let path = directory.join(model.name());
        let mut write = OpenOptions::new();
        write.write(true).create(true).truncate(false);
        let file = write.clone().read(true).open(&path).unwrap();
        let direct = open_direct(&path);
        let writing = write.open(&path).unwrap();
        let appending = write.append(true).open(&path).unwrap();
        Self { path, file, direct, writing, appending, window: None, model }
    }

    /// Closes the file. Returns its model.
    pub fn close(self) -> Model {
        self.model
    }

    pub fn size(&self) -> u64 {
        self.model.size()
    }

    fn check_size(&self) {
        assert_eq!(self.file.metadata().unwrap().len(), self.size(), "{}", self.path.display());
    }

    /// Compares the whole file with the model, from the cache of the kernel and from the server.
    pub fn check(&mut self) {
        self.check_size();
        self.read(0..SIZE_MAX + 1);
        self.file.sync_all().unwrap();
        self.drop_cache();
        self.read(0..SIZE_MAX + 1);
        self.check_holes(0..SIZE_MAX);
    }

    fn read(&self, range: Range<u64>) {
        let mut found = vec![0xEE; (range.end - range.start) as usize];
        let mut length = 0;
        while length < found.len() {
            match self.file.read_at(&mut found[length..], range.start + length as u64).unwrap() {
                0 => break,
                more => length += more,
            }
        }
        self.model.compare(&found[..length], &range);
    }

    /// Checks that reported holes are zero in the model. First syncs the file, because the server
    /// reports holes, and does not have the data that is only in the cache of the kernel.
    fn check_holes(&self, range: Range<u64>) {
        self.file.sync_data().unwrap();
        let data = |at| match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => None,
            data => Some(data.unwrap()),
        };
        let hole = |at| rustix::fs::seek(&self.file, SeekFrom::Hole(at)).unwrap();
        self.model.check_holes(&range, data, hole);
    }

    /// Drops clean data from the cache of the kernel.
    fn drop_cache(&self) {
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed).unwrap();
    }

    fn window(&mut self) -> &Window {
        self.window.get_or_insert_with(|| Window::new(&self.file, SIZE_MAX))
    }

    fn fallocate(&self, flags: FallocateFlags, range: &Range<u64>) {
        let length = range.end - range.start;
        rustix::fs::fallocate(&self.file, flags, range.start, length).unwrap();
    }

    /// Copies `range` to offset `to` of another file with copy_file_range(2).
    fn copy_to(&self, other: &Self, range: &Range<u64>, to: u64) {
        let (mut from, mut to) = (range.start, to);
        let expected = self.model.within(range);
        while from < range.end {
            let length = (range.end - from) as usize;
            let (file, other) = (&self.file, &other.file);
            let copied =
                rustix::fs::copy_file_range(file, Some(&mut from), other, Some(&mut to), length);
            if copied.unwrap() == 0 {
                break;
            }
        }
        assert_eq!(from.max(expected.start), expected.end.max(range.start), "bytes copied");
    }

    fn run(&mut self, operation: Operation, range: Range<u64>, random: &mut Random) {
        let size = self.size();
        let range = match operation.is_within() {
            true => self.model.within(&range),
            false => range,
        };
        let sectors = range.start / SECTOR * SECTOR..range.end.next_multiple_of(SECTOR);
        match operation {
            Operation::Read => self.read(range),
            Operation::ReadDirect => {
                let length = (sectors.end - sectors.start) as usize;
                let found = read_direct(&self.direct, sectors.start, length).unwrap();
                self.model.compare(&found, &sectors);
            }
            Operation::Load => {
                let found = self.window().load(&range);
                self.model.compare(&found, &range);
            }
            Operation::SeekHoles => self.check_holes(range),
            Operation::Write | Operation::WriteOnly => {
                let data = self.model.new_data(&range, random);
                let file = if operation == Operation::Write { &self.file } else { &self.writing };
                file.write_all_at(&data, range.start).unwrap();
            }
            Operation::WriteDirect => {
                let data = self.model.new_data(&sectors, random);
                let written = write_direct(&self.direct, sectors.start, &data);
                assert_eq!(written, Ok(data.len()));
            }
            Operation::Append => {
                let end = (size + range.end - range.start).min(SIZE_MAX);
                let data = self.model.new_data(&(size..end), random);
                self.appending.write_all(&data).unwrap();
            }
            Operation::Store(flush) => {
                let data = self.model.new_data(&range, random);
                let window = self.window();
                window.store(range.start, &data);
                match flush {
                    Flush::Nothing => {}
                    Flush::Begin => window.sync(MsyncFlags::ASYNC),
                    Flush::Wait => window.sync(MsyncFlags::SYNC),
                }
            }
            Operation::CopyTo => unreachable!("copies need two files"),
            Operation::Truncate => {
                self.file.set_len(range.end).unwrap();
                self.model.truncate(range.end);
            }
            Operation::Allocate { keep_size } => {
                self.fallocate(keeping(keep_size), &range);
                if !keep_size {
                    self.model.grow(range.end);
                }
            }
            Operation::PunchHole => {
                self.fallocate(FallocateFlags::PUNCH_HOLE | keeping(true), &range);
                self.model.clear(&range);
            }
            Operation::ZeroRange { keep_size } => {
                self.fallocate(FallocateFlags::ZERO_RANGE | keeping(keep_size), &range);
                if !keep_size {
                    self.model.grow(range.end);
                }
                self.model.clear(&range);
            }
            Operation::Sync { data_only: true } => self.file.sync_data().unwrap(),
            Operation::Sync { data_only: false } => self.file.sync_all().unwrap(),
            Operation::DropCache => {
                let length = NonZeroU64::new(range.end - range.start);
                rustix::fs::fadvise(&self.file, range.start, length, Advice::DontNeed).unwrap();
            }
            Operation::CloseFile => {
                let directory = self.path.parent().unwrap().to_owned();
                let model = std::mem::replace(&mut self.model, Model::new(""));
                self.window = None;
                *self = Self::new(&directory, model);
            }
        }
    }
}

fn keeping(keep_size: bool) -> FallocateFlags {
    if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() }
}
