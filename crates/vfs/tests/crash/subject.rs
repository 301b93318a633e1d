//! A file that one thread changes in every way, and its expected contents. Not here: names, and
//! files that several threads change concurrently.

use std::ops::{ControlFlow, Range};
use std::sync::mpsc;

use base::{Error, FileOffset};
use device::RecordDevice;
use testkit::Random;
use testkit::crash::{FileHistory, Kind};
use vfs::{
    DirectIo, Fallocate, File, FileMap, MapAccess, MapSync, Privileges, RwFlags, SyncRange,
    WriteAt, WriteSync,
};

use crate::common::{WRITE, bytes, store, sync};
use crate::planted::Planted;
use crate::refused::{refuses, refuses_to_move_extents};

/// The number of bytes that the device writes as a whole.
pub const SECTOR: usize = 512;
/// The maximum size of a file, unless blocks are large.
const SIZE_MAX: usize = 24_000;
/// The maximum size of a compressed file: four clusters of 16 KiB.
const SIZE_MAX_COMPRESSED: usize = 64 << 10;
/// The binary logarithm of the maximum length of a write.
const WRITE_BITS_MAX: u64 = 13;
/// The same for a compressed file, so that many writes have whole clusters.
const WRITE_BITS_MAX_COMPRESSED: u64 = 17;
/// The maximum number of direct requests in flight.
const IN_FLIGHT_MAX: u64 = 3;

/// An open file.
pub struct Subject {
    pub file: File,
    /// A map of the maximum size, created on first use.
    map: Option<FileMap>,
    size_max: usize,
    write_bits_max: u64,
}

/// A file's history, and the recorder with the current point.
pub struct Notes<'n> {
    pub history: &'n mut FileHistory,
    pub recorder: &'n RecordDevice,
    pub kind: &'n Kind,
}

impl Notes<'_> {
    /// Records that the current contents of `range` are durable.
    fn durable_in(&mut self, range: Range<usize>) {
        let version = self.history.version();
        self.history.is_durable_in(self.recorder.point(), version, range);
    }

    /// Records that all of `version` is durable.
    pub fn durable(&mut self, version: usize) {
        self.history.is_durable(self.recorder.point(), version);
    }

    fn size(&self) -> usize {
        self.history.now().len()
    }
}

/// Returns a random [`WriteSync`], usually `None`.
pub fn any_sync(random: &mut Random) -> WriteSync {
    match random.below(12) {
        0 => WriteSync::All,
        1..=2 => WriteSync::Data,
        _ => WriteSync::None,
    }
}

/// Returns the flags of a write, with a random `dontcache`.
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
        let is_compressed = file.node().compression().is_ok_and(|found| found.is_some());
        let (size_max, write_bits_max) = if is_compressed {
            (SIZE_MAX_COMPRESSED, WRITE_BITS_MAX_COMPRESSED)
        } else {
            (SIZE_MAX, WRITE_BITS_MAX)
        };
        let size_max = size_max.max(3 * file.allocation_unit() as usize);
        Self { file, map: None, size_max: size_max.next_multiple_of(SECTOR), write_bits_max }
    }

    /// Returns a file of at most `size_max` bytes, which are whole sectors. Random writes have less
    /// than 2^`write_bits_max` bytes.
    pub fn with_size_max(file: File, size_max: usize, write_bits_max: u64) -> Self {
        Self { file, map: None, size_max, write_bits_max }
    }

    /// Changes the file in a random way. Returns whether the whole file is durable afterwards.
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

    /// Returns the number of blocks that compression saves.
    pub fn saved_blocks(&self) -> u64 {
        let compression = self.file.node().compression().unwrap_or(None);
        compression.map_or(0, |compression| compression.saved_blocks)
    }

    /// Pins the file, which is new, and gives it all of its blocks.
    pub fn pin(&self) {
        self.file.node().set_pinned(true).unwrap();
        self.preallocate();
    }

    /// Allocates all blocks that the file can have, also past its end.
    fn preallocate(&self) {
        let (mode, range) = (Fallocate::Allocate { keep_size: true }, 0..self.size_max);
        self.file.fallocate(mode, range_of(&range), Privileges::Keep).unwrap();
    }

    /// Changes the file, which is pinned, in a random way, as [`change`](Self::change).
    pub fn change_pinned(&mut self, notes: &mut Notes<'_>, random: &mut Random) -> bool {
        match random.below(100) {
            0..=24 => return self.write(notes, random),
            25..=44 => return self.write_direct(notes, random),
            45..=54 => self.submit_direct(notes, random),
            55..=69 => self.store(notes, random),
            70..=79 => {
                self.truncate_pinned(notes, random);
                self.preallocate();
            }
            80..=87 => self.sync_range(notes, random),
            88..=95 => return self.sync_map(notes, random),
            _ => self.close(),
        }
        false
    }

    /// Writes through the cache.
    pub fn write(&self, notes: &mut Notes<'_>, random: &mut Random) -> bool {
        let range = self.random_range(notes.size(), random);
        let (sync, data) = (any_sync(random), notes.history.bytes(range.start, range.len()));
        let (at, flags) = (WriteAt::Offset(offset(range.start)), any_flags(random, sync));
        let written = self.file.write_with(at, &data, Privileges::Keep, flags).unwrap();
        assert_eq!(written, data.len());
        notes.history.write(range.start, &data);
        promise(notes, range, sync)
    }

    /// Writes directly.
    fn write_direct(&self, notes: &mut Notes<'_>, random: &mut Random) -> bool {
        let range = self.sectors(notes.size(), random);
        let (sync, data) = (any_sync(random), notes.history.bytes(range.start, range.len()));
        let at = WriteAt::Offset(offset(range.start));
        let written = self.file.write_direct(at, &data, Privileges::Keep, sync).unwrap();
        assert_eq!(written, data.len());
        notes.history.write(range.start, &data);
        promise(notes, range, sync)
    }

    /// Submits several direct writes at once.
    fn submit_direct(&self, notes: &mut Notes<'_>, random: &mut Random) {
        let (sender, ended) = mpsc::channel();
        let (mut batch, mut ranges) = (Vec::new(), Vec::<Range<usize>>::new());
        for _ in 0..=random.below(IN_FLIGHT_MAX) {
            let range = self.sectors(notes.size(), random);
            let overlaps =
                |other: &Range<usize>| range.start < other.end && other.start < range.end;
            if ranges.iter().any(overlaps) {
                continue;
            }
            let data = notes.history.bytes(range.start, range.len());
            notes.history.write(range.start, &data);
            let sender = sender.clone();
            batch.push(DirectIo::write(offset(range.start), data, move |data, result| {
                sender.send((data.len(), result)).unwrap();
            }));
            ranges.push(range);
        }
        self.file.submit_direct(batch, Privileges::Keep, false);
        for _ in ranges {
            let (length, result) = ended.recv().unwrap();
            assert_eq!(result, Ok(length));
        }
    }

    /// Truncates the file to zero, writes it again, and closes it. A crash leaves the old or the
    /// new contents, unless the truncation alone was made durable.
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

    /// Stores to the map of the file.
    fn store(&mut self, notes: &mut Notes<'_>, random: &mut Random) {
        let size = notes.size();
        let range = self.random_range(size, random);
        let range = range.start.min(size)..range.end.min(size);
        let data = notes.history.bytes(range.start, range.len());
        store(self.map(), range.start as u64, &data);
        notes.history.write(range.start, &data);
    }

    /// Stores to the map of the file, and syncs the file. With [`CleanBeforeProtect`], the store
    /// comes late.
    ///
    /// [`CleanBeforeProtect`]: crate::planted::Bug::CleanBeforeProtect
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
            // Within one sector, so that one write contains it.
            let end = (start + 1).next_multiple_of(SECTOR).min(after.len());
            planted.delay_store(&before[start..end], &after[start..end]);
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
        self.set_size(notes, size.min(self.size_max));
    }

    /// Frees all blocks of the file, which is pinned and has less than a section, or extends it.
    fn truncate_pinned(&self, notes: &mut Notes<'_>, random: &mut Random) {
        let grown = random.below(self.size_max as u64 + 1) as usize;
        self.set_size(notes, if grown > notes.size() { grown } else { 0 });
    }

    pub fn set_size(&self, notes: &mut Notes<'_>, size: usize) {
        self.file.node().set_size(size as u64, Privileges::Keep).unwrap();
        notes.history.set_size(size);
    }

    /// Allocates or frees blocks of a range of the file, or shifts the data behind it.
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
        if !range.is_empty() && fits && self.try_fallocate(notes.kind, mode, &range) {
            record_fallocate(notes, mode, range);
        }
    }

    /// Returns false if files on this kind of volume do not offer the operation.
    fn try_fallocate(&self, kind: &Kind, mode: Fallocate, range: &Range<usize>) -> bool {
        let done = self.file.fallocate(mode, range_of(range), Privileges::Keep);
        let is_refused = refuses(kind, mode);
        match done {
            Ok(()) if !is_refused => true,
            Err(Error::Unsupported(_)) if is_refused => false,
            done => panic!("{mode:?} {range:?} on {}: {done:?}", kind.name),
        }
    }

    /// Starts writeback, or waits for it. This makes nothing durable.
    fn sync_range(&self, notes: &Notes<'_>, random: &mut Random) {
        let range = self.random_range(notes.size(), random);
        let [wait_before, write, wait_after] = [0; 3].map(|_| random.below(2) == 0);
        let how = SyncRange { wait_before, write, wait_after };
        self.file.sync_range(range.start as u64..range.end as u64, how).unwrap();
    }

    /// Syncs a part of the map.
    fn sync_map(&mut self, notes: &mut Notes<'_>, random: &mut Random) -> bool {
        let range = self.random_range(notes.size(), random);
        self.map().sync(range.clone(), MapSync::Sync).unwrap();
        // Zeroes at the end may be a hole. Then nothing was written, and the size on the disk may
        // be less.
        let start = range.start.min(notes.size());
        let synced = &notes.history.now()[start..range.end.max(start).min(notes.size())];
        let length = synced.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        notes.durable_in(start..start + length);
        true
    }

    fn close(&mut self) {
        self.map = None;
        self.file = self.file.node().open_for(WRITE).unwrap();
    }

    /// Returns a random range to write to: in the file, at its end, or anywhere up to half of the
    /// maximum size.
    fn random_range(&self, size: usize, random: &mut Random) -> Range<usize> {
        let at = match random.below(4) {
            0 => random.below(self.size_max as u64 / 2) as usize,
            1..=2 => random.below(size as u64 + 1) as usize,
            _ => size,
        };
        let (at, bits) = (at.min(self.size_max - 1), random.below(self.write_bits_max));
        at..(at + 1 + random.below(1 << bits) as usize).min(self.size_max)
    }

    /// Returns a random range of whole sectors, or of whole blocks.
    fn sectors(&self, size: usize, random: &mut Random) -> Range<usize> {
        let unit = match random.below(2) {
            0 => SECTOR,
            _ => self.file.allocation_unit() as usize,
        };
        let range = self.random_range(size, random);
        let start = range.start / unit * unit;
        start..range.end.next_multiple_of(unit).min(self.size_max)
    }

    /// Makes the data durable. Returns the ranges that have blocks.
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

/// Records an operation of fallocate.
fn record_fallocate(notes: &mut Notes<'_>, mode: Fallocate, range: Range<usize>) {
    let grown = notes.size().max(range.end);
    match mode {
        Fallocate::CollapseRange | Fallocate::InsertRange => {
            let from = range.start;
            notes.history.shift(range, mode == Fallocate::InsertRange);
            // A shift makes the data that has moved durable.
            if notes.kind.is_ext4() {
                notes.durable_in(from..usize::MAX);
            }
            return;
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

/// Records the promise of a write with `sync`. Returns whether the whole file is durable.
fn promise(notes: &mut Notes<'_>, range: Range<usize>, sync: WriteSync) -> bool {
    if sync > WriteSync::None {
        notes.durable_in(range);
    }
    sync == WriteSync::All
}

/// Exchanges some blocks of a file with a donor, which loses its data there. Both were just synced,
/// and have data only in `blocks` and `donor_blocks`.
pub fn move_extents(
    (subject, notes, blocks): (&Subject, &Notes<'_>, &[Range<usize>]),
    (donor, donor_notes, donor_blocks): (&Subject, &mut Notes<'_>, &[Range<usize>]),
    random: &mut Random,
) {
    let unit = subject.file.allocation_unit() as usize;
    let mut blocks_of = |size: usize| {
        let count = size.div_ceil(unit);
        let first = random.below(count as u64 + 1) as usize;
        (first * unit, (count - first).min(1 + random.below(12) as usize) * unit)
    };
    let ((at, length), (to, donor_length)) =
        (blocks_of(notes.size()), blocks_of(donor_notes.size()));
    let length = length.min(donor_length);
    if length == 0 {
        return;
    }
    let moved = subject.file.move_extents(offset(at), &donor.file, offset(to), length as u64);
    if refuses_to_move_extents(notes.kind) {
        return assert!(matches!(moved, Err(Error::Unsupported(_))), "{moved:?}");
    }
    let has = |blocks: &[Range<usize>], at: usize| blocks.iter().any(|range| range.contains(&at));
    let both = |offset: &usize| has(blocks, at + offset) && has(donor_blocks, to + offset);
    let exchanged: Vec<usize> = (0..length).step_by(unit).filter(both).collect();
    assert_eq!(moved, Ok((exchanged.len() * unit) as u64));
    for offset in exchanged {
        donor_notes.history.clear(to + offset..to + offset + unit);
        donor_notes.durable_in(to + offset..to + offset + unit);
    }
}
