//! Files that several threads change concurrently: one that they write to at any offset, and one
//! that they append to. Not here: the states that a power cut may leave.

use std::ops::Range;
use std::sync::mpsc;

use base::FileOffset;
use device::RecordDevice;
use parking_lot::Mutex;
use testkit::Random;
use testkit::crash::{Appended, Kind, Races};
use vfs::{
    DirectIo, Fallocate, File, FileMap, MapAccess, MapSync, Privileges, SyncRange, WriteAt,
    WriteSync,
};

use crate::common::{bytes, store, sync};
use crate::refused::refuses;
use crate::subject::{SECTOR, any_flags, any_sync};

/// The size of the file that threads write to at any offset, unless blocks are large.
const SIZE_MIN: usize = 40 << 10;

/// A file that threads write to at any offset.
pub struct RacedFile<'r> {
    file: File,
    map: FileMap,
    size: usize,
    kind: Kind,
    recorder: &'r RecordDevice,
    races: Mutex<Races>,
}

impl<'r> RacedFile<'r> {
    /// Sets the size of an empty file, and preallocates its first half.
    pub fn new(file: File, kind: &Kind, recorder: &'r RecordDevice) -> Self {
        let size = SIZE_MIN.max(3 * file.allocation_unit() as usize);
        file.node().set_size(size as u64, Privileges::Keep).unwrap();
        let half = bytes(0..size as u64 / 2);
        let whole = bytes(0..size as u64);
        let allocate = Fallocate::Allocate { keep_size: true };
        if !refuses(kind, allocate) {
            file.fallocate(allocate, half, Privileges::Keep).unwrap();
        }
        let map = file.map(whole, MapAccess::ReadWrite).unwrap();
        Self { file, map, size, kind: *kind, recorder, races: Mutex::new(Races::new(size)) }
    }

    pub fn into_races(self) -> Races {
        self.races.into_inner()
    }

    /// Panics if the file has not the contents that its changes have left. No change is under way.
    pub fn check_contents(&self) {
        let mut found = vec![0; self.size];
        assert_eq!(self.file.read_at(&mut found, 0), Ok(self.size));
        if let Err(what) = self.races.lock().check_now(&found) {
            panic!("the file that all write to has {what}, before any power cut");
        }
    }

    /// Changes the file in some way.
    pub fn change(&self, random: &mut Random) {
        let range = self.random_range(random);
        match random.below(16) {
            0..=2 => self.write(range, random),
            3..=5 => self.write_direct(range, random),
            6..=7 => self.submit_direct(range, random),
            8..=10 => self.store(range, random),
            11 => self.clear(range, Fallocate::PunchHole),
            12 => self.clear(range, Fallocate::ZeroRange { keep_size: true }),
            13 => self.start_writeback(range),
            14 => self.sync_map(range),
            _ => self.sync(random),
        }
    }

    /// Returns a random range of whole sectors in the file.
    fn random_range(&self, random: &mut Random) -> Range<usize> {
        let sectors = self.size / SECTOR;
        let first = random.below(sectors as u64) as usize;
        let bits = random.below(5);
        let end = (first + 1 + random.below(1 << bits) as usize).min(sectors);
        first * SECTOR..end * SECTOR
    }

    /// Runs a change that puts new data at byte `at`. `change` returns whether the data is durable.
    fn put(&self, at: usize, data: Vec<u8>, change: impl FnOnce(Vec<u8>) -> bool) {
        let begun = self.races.lock().begin(at, data.clone());
        let is_durable = change(data);
        let durable = is_durable.then(|| self.recorder.point());
        self.races.lock().end(begun, durable);
    }

    fn write(&self, range: Range<usize>, random: &mut Random) {
        // Not only whole sectors: the rest of a sector comes from the device or the cache.
        let range = range.start + random.below(100) as usize..range.end;
        let sync = any_sync(random);
        let flags = any_flags(random, sync);
        self.put(range.start, new_data(&range, random), |data| {
            let at = WriteAt::Offset(FileOffset(range.start as u64));
            let written = self.file.write_with(at, &data, Privileges::Keep, flags);
            assert_eq!(written, Ok(data.len()));
            sync > WriteSync::None
        });
    }

    fn write_direct(&self, range: Range<usize>, random: &mut Random) {
        let sync = any_sync(random);
        self.put(range.start, new_data(&range, random), |data| {
            let at = WriteAt::Offset(FileOffset(range.start as u64));
            let written = self.file.write_direct(at, &data, Privileges::Keep, sync);
            assert_eq!(written, Ok(data.len()));
            sync > WriteSync::None
        });
    }

    fn submit_direct(&self, range: Range<usize>, random: &mut Random) {
        self.put(range.start, new_data(&range, random), |data| {
            let (sender, ended) = mpsc::channel();
            let at = FileOffset(range.start as u64);
            let write = DirectIo::write(at, data, move |_, result| sender.send(result).unwrap());
            self.file.submit_direct(vec![write], Privileges::Keep, false);
            assert_eq!(ended.recv().unwrap(), Ok(range.len()));
            false
        });
    }

    fn store(&self, range: Range<usize>, random: &mut Random) {
        self.put(range.start, new_data(&range, random), |data| {
            store(&self.map, range.start as u64, &data);
            false
        });
    }

    fn clear(&self, range: Range<usize>, mode: Fallocate) {
        if refuses(&self.kind, mode) {
            return;
        }
        self.put(range.start, vec![0; range.len()], |_| {
            let range = bytes(range.start as u64..range.end as u64);
            self.file.fallocate(mode, range, Privileges::Keep).unwrap();
            false
        });
    }

    pub fn start_writeback(&self, range: Range<usize>) {
        let how = SyncRange { write: true, ..SyncRange::default() };
        self.file.sync_range(range.start as u64..range.end as u64, how).unwrap();
    }

    fn sync_map(&self, range: Range<usize>) {
        self.sync_with(range.clone(), || self.map.sync(range, MapSync::Sync).unwrap());
    }

    fn sync(&self, random: &mut Random) {
        let data_only = random.below(2) == 0;
        self.sync_with(0..self.size, || sync(&self.file, data_only));
    }

    /// Calls `sync`, which makes the whole volume durable, and records that.
    pub fn sync_volume(&self, sync: impl FnOnce()) {
        self.sync_with(0..self.size, sync);
    }

    fn sync_with(&self, range: Range<usize>, sync: impl FnOnce()) {
        let begun = self.races.lock().now();
        sync();
        self.races.lock().synced(range, begun, self.recorder.point());
    }
}

fn new_data(range: &Range<usize>, random: &mut Random) -> Vec<u8> {
    range.clone().map(|_| 1 + random.below(200) as u8).collect()
}

/// A file that threads append to.
pub struct Log<'r> {
    file: File,
    /// Whether records are whole sectors, so that they can be written directly.
    is_aligned: bool,
    recorder: &'r RecordDevice,
    appended: Mutex<Appended>,
}

impl<'r> Log<'r> {
    pub fn new(file: File, threads: usize, is_aligned: bool, recorder: &'r RecordDevice) -> Self {
        Self { file, is_aligned, recorder, appended: Mutex::new(Appended::new(threads)) }
    }

    pub fn into_appended(self) -> Appended {
        self.appended.into_inner()
    }

    /// Appends a record of a thread.
    pub fn append(&self, thread: usize, random: &mut Random) {
        let length = 6 + random.below(1800) as usize;
        let length = if self.is_aligned { length.next_multiple_of(SECTOR) } else { length };
        let data = self.appended.lock().begin(thread, length);
        let sync = any_sync(random);
        let is_direct = self.is_aligned && random.below(2) == 0;
        let written = if is_direct {
            self.file.write_direct(WriteAt::End, &data, Privileges::Keep, sync)
        } else {
            let flags = any_flags(random, sync);
            self.file.write_with(WriteAt::End, &data, Privileges::Keep, flags)
        };
        assert_eq!(written, Ok(data.len()));
        let durable = (sync > WriteSync::None).then(|| self.recorder.point());
        self.appended.lock().end(thread, durable);
    }

    pub fn sync(&self, random: &mut Random) {
        let data_only = random.below(2) == 0;
        self.sync_volume(|| sync(&self.file, data_only));
    }

    /// Calls `sync`, which makes the whole volume durable, and records that.
    pub fn sync_volume(&self, sync: impl FnOnce()) {
        let ended = self.appended.lock().ended();
        sync();
        self.appended.lock().synced(self.recorder.point(), ended);
    }
}
