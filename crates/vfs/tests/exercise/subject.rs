//! A file and a model of it, and operations on both. Not here: the choice of operations
//! (`operation.rs`).

use std::ops::{ControlFlow, Range};

use base::{Error, FileOffset};
use testkit::Random;
use testkit::exercise::Model;
use vfs::{
    Fallocate, File, FileMap, MapAccess, Privileges, RwFlags, SyncRange, WriteAt, WriteSync,
};

use crate::common::{WRITE, bytes, load, store};
use crate::operation::Operation;

/// The maximum size of a file.
pub const SIZE_MAX: u64 = 3 << 20;
/// The unit of direct reads and writes, in bytes.
const SECTOR: u64 = 512;
const PAGE: u64 = 4096;
const UNCACHED: RwFlags = RwFlags { dontcache: true, append: false, sync: WriteSync::None };

/// A file, and its expected contents.
pub struct Subject {
    file: File,
    model: Model,
    /// A map of the maximum size, created on first use.
    map: Option<FileMap>,
}

/// Runs an operation on the file `index` and its model, and compares reads. `other` is the donor of
/// `MoveExtents`.
pub fn run(
    subjects: &mut [Subject],
    operation: Operation,
    (index, other): (usize, usize),
    range: Range<u64>,
    random: &mut Random,
) {
    if operation == Operation::MoveExtents {
        return move_extents(subjects, index, other, range, random);
    }
    subjects[index].run(operation, range, random);
}

impl Subject {
    pub fn new(file: File, model: Model) -> Self {
        Self { file, model, map: None }
    }

    pub fn size(&self) -> u64 {
        self.model.size()
    }

    /// Closes the file. Returns its model.
    pub fn close(self) -> Model {
        self.model
    }

    /// Compares all of the file with the model.
    pub fn check(&self) {
        self.read(0..SIZE_MAX + 1, RwFlags::default());
        self.check_holes(0..self.size());
    }

    fn read(&self, range: Range<u64>, flags: RwFlags) {
        let mut found = vec![0xEE; (range.end - range.start) as usize];
        let read = self.file.read_with(FileOffset(range.start), &mut found, flags).unwrap();
        self.model.compare(&found[..read], &range);
    }

    /// Checks that the model has only zeroes where the file reports holes.
    fn check_holes(&self, range: Range<u64>) {
        let data = |at| match self.file.seek_data(FileOffset(at)) {
            Err(Error::NoSuchOffset) => None,
            data => Some(data.unwrap().0),
        };
        let hole = |at| self.file.seek_hole(FileOffset(at)).unwrap().0;
        self.model.check_holes(&range, data, hole);
    }

    fn map(&mut self) -> &FileMap {
        let file = &self.file;
        self.map.get_or_insert_with(|| file.map(bytes(0..SIZE_MAX), MapAccess::ReadWrite).unwrap())
    }

    fn fallocate(&self, mode: Fallocate, range: Range<u64>) -> base::Result<()> {
        self.file.fallocate(mode, bytes(range), Privileges::Keep)
    }

    fn run(&mut self, operation: Operation, range: Range<u64>, random: &mut Random) {
        let (size, unit) = (self.size(), self.file.allocation_unit());
        let range = if operation.is_within() { self.model.within(&range) } else { range };
        let sectors = range.start / SECTOR * SECTOR..range.end.next_multiple_of(SECTOR);
        let units = range.start / unit * unit..range.end.next_multiple_of(unit);
        let at = FileOffset(range.start);
        match operation {
            Operation::Read => self.read(range, RwFlags::default()),
            Operation::ReadUncached => self.read(range, UNCACHED),
            Operation::ReadDirect => {
                let mut found = vec![0xEE; (sectors.end - sectors.start) as usize];
                let read = self.file.read_direct(FileOffset(sectors.start), &mut found).unwrap();
                self.model.compare(&found[..read], &sectors);
            }
            Operation::Load => {
                let found = load(self.map(), &range);
                self.model.compare(&found, &range);
            }
            Operation::SeekHoles => self.check_holes(range),
            Operation::Write | Operation::WriteUncached => {
                let data = self.model.new_data(&range, random);
                let uncached = operation == Operation::WriteUncached;
                let flags = if uncached { UNCACHED } else { RwFlags::default() };
                let at = WriteAt::Offset(at);
                let written = self.file.write_with(at, &data, Privileges::Keep, flags);
                assert_eq!(written, Ok(data.len()));
            }
            Operation::WriteDirect => {
                let data = self.model.new_data(&sectors, random);
                let at = WriteAt::Offset(FileOffset(sectors.start));
                let written = self.file.write_direct(at, &data, Privileges::Keep, WriteSync::None);
                assert_eq!(written, Ok(data.len()));
            }
            Operation::Store => {
                let data = self.model.new_data(&range, random);
                store(self.map(), range.start, &data);
                let page_end = size.next_multiple_of(PAGE);
                if !range.is_empty() && range.end == size && size < page_end {
                    // Stores to the rest of the last page, past the end of the file, are lost.
                    store(self.map(), size, &vec![0xDD; (page_end - size) as usize]);
                }
            }
            Operation::Truncate => {
                self.file.node().set_size(range.end, Privileges::Keep).unwrap();
                self.model.truncate(range.end);
            }
            Operation::Allocate { keep_size } => {
                self.fallocate(Fallocate::Allocate { keep_size }, range.clone()).unwrap();
                if !keep_size {
                    self.model.grow(range.end);
                }
            }
            Operation::PunchHole => {
                self.fallocate(Fallocate::PunchHole, range.clone()).unwrap();
                self.model.clear(&range);
            }
            Operation::ZeroRange { keep_size } => {
                self.fallocate(Fallocate::ZeroRange { keep_size }, range.clone()).unwrap();
                if !keep_size {
                    self.model.grow(range.end);
                }
                self.model.clear(&range);
            }
            Operation::Collapse => {
                let collapsed = self.fallocate(Fallocate::CollapseRange, units.clone());
                if units.end < size {
                    collapsed.unwrap();
                    self.model.collapse(&units);
                } else {
                    assert!(matches!(collapsed, Err(Error::InvalidArgument(_))), "{collapsed:?}");
                }
            }
            Operation::Insert => {
                let length = units.end - units.start;
                if size + length > SIZE_MAX {
                    return;
                }
                let inserted = self.fallocate(Fallocate::InsertRange, units.clone());
                if units.start < size {
                    inserted.unwrap();
                    self.model.insert(&units);
                } else {
                    assert!(matches!(inserted, Err(Error::InvalidArgument(_))), "{inserted:?}");
                }
            }
            Operation::MoveExtents => unreachable!("`run` handles operations on two files"),
            Operation::Sync { data_only: true } => self.file.sync_data().unwrap(),
            Operation::Sync { data_only: false } => self.file.sync_all().unwrap(),
            Operation::SyncRange => {
                let [wait_before, write, wait_after] = [0; 3].map(|_| random.below(2) == 0);
                let how = SyncRange { wait_before, write, wait_after };
                self.file.sync_range(range, how).unwrap();
            }
            Operation::CloseFile => {
                self.map = None;
                self.file = self.file.node().open_for(WRITE).unwrap();
            }
        }
    }

    /// Makes the data durable, and returns the ranges that have blocks.
    fn blocks(&self) -> Vec<Range<u64>> {
        self.file.sync_data().unwrap();
        let mut blocks = Vec::new();
        let mut emit = |extent: iomap::FiemapExtent| {
            if !extent.flags.inline {
                blocks.push(extent.logical.0..extent.logical.0 + extent.length);
            }
            ControlFlow::Continue(())
        };
        self.file.extents(bytes(0..u64::MAX), &mut emit).unwrap();
        blocks
    }
}

/// Exchanges blocks of a file with those of a donor at a random position.
fn move_extents(
    subjects: &mut [Subject],
    index: usize,
    donor: usize,
    range: Range<u64>,
    random: &mut Random,
) {
    let (subject, other) = (&subjects[index], &subjects[donor]);
    let unit = subject.file.allocation_unit();
    let at = range.start / unit * unit;
    let to = random.below(other.size().max(1)) / unit * unit;
    let (blocks, donor_blocks) = (subject.blocks(), other.blocks());
    let length = range.end - range.start;
    let moved = subject.file.move_extents(FileOffset(at), &other.file, FileOffset(to), length);
    let has = |blocks: &[Range<u64>], at| blocks.iter().any(|range| range.contains(&at));
    let left = |subject: &Subject, at| subject.size().next_multiple_of(unit).saturating_sub(at);
    let length = length.next_multiple_of(unit).min(left(subject, at)).min(left(other, to));
    let bytes = match moved {
        Ok(bytes) => bytes,
        Err(error) => {
            assert!(matches!(error, Error::InvalidArgument(_)) && length == 0, "{error}");
            return;
        }
    };
    let both = |offset: &u64| has(&blocks, at + offset) && has(&donor_blocks, to + offset);
    let exchanged: Vec<u64> = (0..length).step_by(unit as usize).filter(both).collect();
    assert_eq!(bytes, exchanged.len() as u64 * unit, "the number of moved bytes");
    for offset in exchanged {
        subjects[donor].model.clear(&(to + offset..to + offset + unit));
    }
    // Compares at once: readers must see no difference.
    subjects[index].read(at..at + length, RwFlags::default());
    subjects[donor].read(to..to + length, RwFlags::default());
}
