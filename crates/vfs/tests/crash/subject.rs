//! A file that one thread changes in every way, and its expected contents. Not here: names, and files that
//! several threads change at once.

use std::ops::{ControlFlow, Range};
use std::sync::mpsc;

use base::{Error, FileOffset, Result};
use device::RecordDevice;
use testkit::Random;
use testkit::crash::FileHistory;
use vfs::{
    DirectIo, Fallocate, File, FileMap, MapAccess, MapSync, Privileges, RwFlags, SyncRange,
    WriteAt, WriteSync,
};

use crate::common::{WRITE, bytes, store, sync};
use crate::planted::Planted;

/// The bytes of what the device writes as a whole.
pub const SECTOR: usize = 512;
/// The largest file, unless blocks are large.
const SIZE_MAX: usize = 24_000;
/// Bytes of a write, at most: two to the power of this.
const WRITE_BITS_MAX: u64 = 13;
/// Direct requests that are in flight at once, at most.
const IN_FLIGHT_MAX: u64 = 3;

/// An open file.
pub struct Subject {
    pub file: File,
    /// All that the file may ever have, once it is wanted.
    map: Option<FileMap>,
    size_max: usize,
}

/// A history, and the recorder that says when something was promised.
pub struct Notes<'n> {
    pub history: &'n mut FileHistory,
    pub recorder: &'n RecordDevice,
}

impl Notes<'_> {
    /// Notes that bytes of what the file holds now are durable.
    fn durable_in(&mut self, range: Range<usize>) {
        let version = self.history.version();
        self.history.is_durable_in(self.recorder.point(), version, range);
    }

    /// Notes that all of `version` is durable.
    pub fn durable(&mut self, version: usize) {
        self.history.is_durable(self.recorder.point(), version);
    }

    fn size(&self) -> usize {
        self.history.now().len()
    }
}

/// How durable a write is to be: as a rule not at all.
pub fn any_sync(random: &mut Random) -> WriteSync {
    match random.below(12) {
        0 => WriteSync::All,
        1..=2 => WriteSync::Data,
        _ => WriteSync::None,
    }
}

/// The flags of a write, which may leave the cache.
pub fn any_flags(random: &mut Random, sync: WriteSync) -> RwFlags {
    RwFlags { dontcache: random.below(3) == 0, append: false, sync }
}

fn offset(at: usize) -> FileOffset {
    FileOffset(at as u64)
}

fn range_of(range: &Range<usize>) -> Range<FileOffset> {
    bytes(range.start as u64..range.end as u64)
}

impl Subject {
    pub fn new(file: File) -> Self {
        let size_max = SIZE_MAX.max(3 * file.allocation_unit() as usize);
        Self { file, map: None, size_max: size_max.next_multiple_of(SECTOR) }
    }

    /// Changes the file in some way. Gives whether all that is known of the file is durable then.
    pub fn change(&mut self, notes: &mut Notes<'_>, random: &mut Random) -> bool {
        match random.below(100) {
            0..=24 => return self.write(notes, random),
            25..=37 => return self.write_direct(notes, random),
            38..=42 => self.submit_direct(notes, random),
            43..=54 => self.store(notes, random),
            55..=60 => self.truncate(notes, random),
            61..=88 => self.fallocate(notes, random),
            89..=92 => self.sync_range(notes, random),
            93..=97 => return self.sync_map(notes, random),
            _ => self.close(),
        }
        false
    }

    /// Writes through the cache.
    pub fn write(&self, notes: &mut Notes<'_>, random: &mut Random) -> bool {
        let place = self.place(notes.size(), random);
        let (sync, data) = (any_sync(random), notes.history.bytes(place.start, place.len()));
        let (at, flags) = (WriteAt::Offset(offset(place.start)), any_flags(random, sync));
        let written = self.file.write_with(at, &data, Privileges::Keep, flags).unwrap();
        assert_eq!(written, data.len());
        notes.history.write(place.start, &data);
        promise(notes, place, sync)
    }

    /// Writes around the cache.
    fn write_direct(&self, notes: &mut Notes<'_>, random: &mut Random) -> bool {
        let place = self.sectors(notes.size(), random);
        let (sync, data) = (any_sync(random), notes.history.bytes(place.start, place.len()));
        let at = WriteAt::Offset(offset(place.start));
        let written = self.file.write_direct(at, &data, Privileges::Keep, sync).unwrap();
        assert_eq!(written, data.len());
        notes.history.write(place.start, &data);
        promise(notes, place, sync)
    }

    /// Has several direct writes be in flight at once.
    fn submit_direct(&self, notes: &mut Notes<'_>, random: &mut Random) {
        let (sender, ended) = mpsc::channel();
        let (mut batch, mut places) = (Vec::new(), Vec::<Range<usize>>::new());
        for _ in 0..=random.below(IN_FLIGHT_MAX) {
            let place = self.sectors(notes.size(), random);
            let overlaps =
                |other: &Range<usize>| place.start < other.end && other.start < place.end;
            if places.iter().any(overlaps) {
                continue;
            }
            let data = notes.history.bytes(place.start, place.len());
            notes.history.write(place.start, &data);
            let sender = sender.clone();
            batch.push(DirectIo::write(offset(place.start), data, move |data, result| {
                sender.send((data.len(), result)).unwrap();
            }));
            places.push(place);
        }
        self.file.submit_direct(batch, Privileges::Keep, false);
        for _ in places {
            let (length, result) = ended.recv().unwrap();
            assert_eq!(result, Ok(length));
        }
    }

    /// Cuts the file off, writes it again, and closes it. A crash shows the one or the other, unless what is
    /// in between was made durable.
    pub fn rewrite(&self, notes: &mut Notes<'_>, random: &mut Random) {
        let (begun, length) = (notes.recorder.point(), 1 + random.below(SIZE_MAX as u64) as usize);
        let (was_empty, data) = (notes.size() == 0, notes.history.bytes(0, length));
        let file = self.file.node().open_for(WRITE).unwrap();
        file.node().set_size(0, Privileges::Keep).unwrap();
        let flags = any_flags(random, WriteSync::None);
        let written = file.write_with(WriteAt::Offset(offset(0)), &data, Privileges::Keep, flags);
        assert_eq!(written, Ok(length));
        drop(file);
        let flushes = notes.recorder.recording().flush_points();
        if was_empty || flushes.into_iter().any(|flush| flush > begun) {
            notes.history.set_size(0);
            notes.history.write(0, &data);
        } else {
            notes.history.replace(&data);
        }
    }

    /// Stores to the file's memory.
    fn store(&mut self, notes: &mut Notes<'_>, random: &mut Random) {
        let size = notes.size();
        let place = self.place(size, random);
        let place = place.start.min(size)..place.end.min(size);
        let data = notes.history.bytes(place.start, place.len());
        store(self.map(), place.start as u64, &data);
        notes.history.write(place.start, &data);
    }

    /// Stores to the file's memory, and makes all of the file durable, while the store comes late if that is
    /// the bug.
    pub fn store_and_sync(
        &mut self,
        notes: &mut Notes<'_>,
        random: &mut Random,
        planted: &Planted,
    ) {
        let before = notes.history.now().to_vec();
        self.store(notes, random);
        let after = notes.history.now();
        let changed = (0..after.len()).find(|at| before[*at] != after[*at]);
        if let Some(start) = changed {
            // In one sector, so that one write has it.
            let end = (start + 1).next_multiple_of(SECTOR).min(after.len());
            planted.come_late(&before[start..end], &after[start..end]);
        }
        let version = notes.history.version();
        sync(&self.file, random.below(2) == 0);
        notes.durable(version);
    }

    fn map(&mut self) -> &FileMap {
        let (file, end) = (&self.file, self.size_max as u64);
        self.map.get_or_insert_with(|| file.map(bytes(0..end), MapAccess::ReadWrite).unwrap())
    }

    fn truncate(&self, notes: &mut Notes<'_>, random: &mut Random) {
        let size = random.below(notes.size() as u64 * 5 / 4 + 1) as usize;
        let size = size.min(self.size_max);
        self.file.node().set_size(size as u64, Privileges::Keep).unwrap();
        notes.history.set_size(size);
    }

    /// Gives some part of the file space, or takes it away, or moves what lies behind it.
    fn fallocate(&self, notes: &mut Notes<'_>, random: &mut Random) {
        let size = notes.size();
        let start = random.below(size as u64 + 1) as usize;
        let end = (start + 1 + random.below(9000) as usize).min(self.size_max);
        let unit = self.file.allocation_unit() as usize;
        let (part, whole) = (start..end, start / unit * unit..end.next_multiple_of(unit));
        let keep_size = random.below(2) == 0;
        let (mode, range) = match random.below(7) {
            0 => (Fallocate::Allocate { keep_size }, part),
            1..=2 => (Fallocate::PunchHole, part),
            3 => (Fallocate::ZeroRange { keep_size }, part),
            4..=5 => (Fallocate::CollapseRange, whole),
            _ => (Fallocate::InsertRange, whole),
        };
        let fits = match mode {
            Fallocate::CollapseRange => range.end < size,
            Fallocate::InsertRange => range.start < size && size + range.len() <= self.size_max,
            _ => true,
        };
        if !range.is_empty() && fits && self.try_fallocate(mode, &range) {
            note_fallocated(notes, mode, range);
        }
    }

    /// Whether that can be done to such files: to a block map, only holes can.
    fn try_fallocate(&self, mode: Fallocate, range: &Range<usize>) -> bool {
        match self.file.fallocate(mode, range_of(range), Privileges::Keep) {
            Ok(()) => true,
            Err(Error::Unsupported(_)) => false,
            Err(error) => panic!("{mode:?} {range:?}: {error}"),
        }
    }

    /// Starts writing back, or waits for it: nothing is durable by that.
    fn sync_range(&self, notes: &Notes<'_>, random: &mut Random) {
        let place = self.place(notes.size(), random);
        let [wait_before, write, wait_after] = [0; 3].map(|_| random.below(2) == 0);
        let how = SyncRange { wait_before, write, wait_after };
        self.file.sync_range(place.start as u64..place.end as u64, how).unwrap();
    }

    /// Makes a part of the file's memory durable.
    fn sync_map(&mut self, notes: &mut Notes<'_>, random: &mut Random) -> bool {
        let place = self.place(notes.size(), random);
        self.map().sync(place.clone(), MapSync::Sync).unwrap();
        // Zeroes may be a hole that nothing was written for. The file need not reach that far on the device.
        let start = place.start.min(notes.size());
        let synced = &notes.history.now()[start..place.end.max(start).min(notes.size())];
        let length = synced.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        notes.durable_in(start..start + length);
        true
    }

    fn close(&mut self) {
        self.map = None;
        self.file = self.file.node().open_for(WRITE).unwrap();
    }

    /// A range to write to: at the end as a rule, else in the middle or beyond the end.
    fn place(&self, size: usize, random: &mut Random) -> Range<usize> {
        let at = match random.below(4) {
            0 => random.below(self.size_max as u64 / 2) as usize,
            1..=2 => random.below(size as u64 + 1) as usize,
            _ => size,
        };
        let (at, bits) = (at.min(self.size_max - 1), random.below(WRITE_BITS_MAX));
        at..(at + 1 + random.below(1 << bits) as usize).min(self.size_max)
    }

    /// Such a range of whole sectors, or whole blocks.
    fn sectors(&self, size: usize, random: &mut Random) -> Range<usize> {
        let unit = match random.below(2) {
            0 => SECTOR,
            _ => self.file.allocation_unit() as usize,
        };
        let place = self.place(size, random);
        let start = place.start / unit * unit;
        start..place.end.next_multiple_of(unit).min(self.size_max)
    }

    /// Makes the data durable; gives the ranges that have blocks then.
    pub fn sync_to_blocks(&self, notes: &mut Notes<'_>) -> Vec<Range<usize>> {
        self.file.sync_data().unwrap();
        notes.durable(notes.history.version());
        let mut blocks = Vec::new();
        let mut emit = |extent: iomap::FiemapExtent| {
            if !extent.flags.inline {
                let start = extent.logical.0 as usize;
                blocks.push(start..start + extent.length as usize);
            }
            ControlFlow::Continue(())
        };
        self.file.extents(bytes(0..u64::MAX), &mut emit).unwrap();
        blocks
    }
}

/// Notes what was done to a range.
fn note_fallocated(notes: &mut Notes<'_>, mode: Fallocate, range: Range<usize>) {
    let grown = notes.size().max(range.end);
    match mode {
        Fallocate::CollapseRange | Fallocate::InsertRange => {
            let from = range.start;
            notes.history.shift(range, mode == Fallocate::InsertRange);
            // What has moved is durable.
            return notes.durable_in(from..usize::MAX);
        }
        Fallocate::PunchHole | Fallocate::ZeroRange { .. } => notes.history.clear(range),
        Fallocate::Allocate { .. } | Fallocate::Unshare { .. } => {}
    }
    if matches!(
        mode,
        Fallocate::Allocate { keep_size: false } | Fallocate::ZeroRange { keep_size: false }
    ) {
        notes.history.set_size(grown);
    }
}

/// Notes what a write that was to be so durable has promised. Gives whether all that is known of the file
/// is durable.
fn promise(notes: &mut Notes<'_>, place: Range<usize>, sync: WriteSync) -> bool {
    if sync > WriteSync::None {
        notes.durable_in(place);
    }
    sync == WriteSync::All
}

/// Has a file exchange some blocks with a donor, which loses what it had there. Both have been synced to
/// these blocks just now.
pub fn move_extents(
    (subject, notes, blocks): (&Subject, &Notes<'_>, &[Range<usize>]),
    (donor, donor_notes, donor_blocks): (&Subject, &mut Notes<'_>, &[Range<usize>]),
    random: &mut Random,
) {
    let unit = subject.file.allocation_unit() as usize;
    let mut place = |size: usize| {
        let count = size.div_ceil(unit);
        let first = random.below(count as u64 + 1) as usize;
        (first * unit, (count - first).min(1 + random.below(12) as usize) * unit)
    };
    let ((at, length), (to, donor_length)) = (place(notes.size()), place(donor_notes.size()));
    let length = length.min(donor_length);
    if length == 0 {
        return;
    }
    let moved = subject.file.move_extents(offset(at), &donor.file, offset(to), length as u64);
    let moved: Result<u64> = match moved {
        // Of block maps, clusters and inline data.
        Err(Error::Unsupported(_)) => return,
        moved => moved,
    };
    let has = |blocks: &[Range<usize>], at: usize| blocks.iter().any(|range| range.contains(&at));
    let both = |at_: &usize| has(blocks, at + at_) && has(donor_blocks, to + at_);
    let exchanged: Vec<usize> = (0..length).step_by(unit).filter(both).collect();
    assert_eq!(moved, Ok((exchanged.len() * unit) as u64));
    for at in exchanged {
        donor_notes.history.clear(to + at..to + at + unit);
        donor_notes.durable_in(to + at..to + at + unit);
    }
}
