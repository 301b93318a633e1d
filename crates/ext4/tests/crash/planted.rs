//! Typical bugs of a file system, planted from outside: by a device between the volume and the
//! recorder, or by a map between a file's data and its inode. The judge must find each of them.

use std::ops::Range;
use std::sync::Arc;

use base::{FileOffset, Result};
use device::{RecordDevice, SharedDevice};
use ext4::{Inode, Volume};
use iomap::{CacheOptions, FinishedRange, Iomap, IomapKind, MapRead, MapWrite, PageCache};
use testkit::crash::{JournalBug, Kind, Pace, Recorded};

/// A bug to plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// A bug that a device imitates.
    Journal(JournalBug),
    /// Blocks are marked as written, and the size grows, when blocks are allocated.
    EarlyConversion,
    /// The size grows over unwritten blocks when blocks are allocated.
    EarlySize,
    /// Blocks are marked as written before direct writes to them have reached the device.
    EarlyDirectConversion,
    /// The size grows when blocks are allocated for direct writes.
    EarlyDirectSize,
}

impl Bug {
    fn device(self, device: SharedDevice) -> SharedDevice {
        match self {
            Self::Journal(bug) => bug.device(device),
            _ => device,
        }
    }

    /// Opens a new volume that has the bug, and returns the recorder of all its devices.
    pub fn open(self, kind: &Kind, pace: Pace) -> (Arc<RecordDevice>, Arc<Volume>) {
        let Recorded { recorder, disks } = kind.record(pace, |device| self.device(device));
        let options = CacheOptions { bytes_max: 32 << 20, ..CacheOptions::default() };
        let volume = disks.open_ext4_for_writing(&PageCache::new(options).unwrap()).unwrap();
        (recorder, volume)
    }

    /// Returns the map of a file, with the bug.
    pub fn mapper(self, inode: &Arc<Inode>) -> Arc<BuggyMapper> {
        Arc::new(BuggyMapper { inode: Arc::clone(inode), bug: self })
    }
}

/// A file's map. With some bugs, it ends I/O that has just begun.
#[derive(Debug)]
pub struct BuggyMapper {
    inode: Arc<Inode>,
    bug: Bug,
}

impl MapRead for BuggyMapper {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.inode.map_read(at, length)
    }

    fn map_known(&self, at: FileOffset) -> Option<Iomap> {
        self.inode.map_known(at)
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        MapRead::inline_data(&*self.inode)
    }

    fn generation(&self) -> u64 {
        self.inode.generation()
    }
}

impl MapWrite for BuggyMapper {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.inode.map_write(at, length)
    }

    fn end_write(&self, unused: Range<FileOffset>) {
        self.inode.end_write(unused);
    }

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let map = self.inode.map_writeback(at, length)?;
        let ended =
            FinishedRange { offset: map.offset, length: map.length, kind: map.kind, token: None };
        match self.bug {
            Bug::EarlyConversion if map.kind == IomapKind::Unwritten => {
                self.inode.end_io(&[ended], FileOffset(ended.end()))?;
            }
            Bug::EarlySize => self.inode.end_io(&[], FileOffset(at.0 + length))?,
            _ => return Ok(map),
        }
        // The result reaches the device before the data, as with a concurrent commit of another
        // thread.
        self.inode.volume().sync()?;
        self.inode.map_read(at, length)
    }

    fn allocate(&self, range: Range<FileOffset>) -> Result<bool> {
        let end = range.end;
        let can = self.inode.allocate(range)?;
        if can && self.bug == Bug::EarlyDirectSize {
            self.inode.end_io(&[], end)?;
            self.inode.volume().sync()?;
        }
        Ok(can)
    }

    fn split_extents(&self, range: Range<FileOffset>) -> Result<()> {
        // Past the size on the disk, the bug would be found without comparing data.
        if self.bug == Bug::EarlyDirectConversion && range.end.0 <= self.inode.size() {
            let length = range.end.0 - range.start.0;
            let ended = FinishedRange {
                offset: range.start,
                length,
                kind: IomapKind::Unwritten,
                token: None,
            };
            self.inode.end_io(&[ended], FileOffset(0))?;
            return self.inode.volume().sync();
        }
        self.inode.split_extents(range)
    }

    fn may_split_at_end(&self) -> bool {
        self.bug != Bug::EarlyDirectConversion && self.inode.may_split_at_end()
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        self.inode.end_io(finished, size)
    }

    fn panicked(&self, operation: &'static str) {
        self.inode.panicked(operation);
    }
}
