//! A file that is written to: what those who write to its folios share with those who write them
//! back. Not here: both.
//!
//! The caller holds the inode's lock: together with others to read, to lend and to overwrite around the cache;
//! alone to write to the cache, to zero and to truncate. Writeback takes no such lock.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, FileOffset, Result};
use device::SharedDevice;
use pagecache::Mapping;
use parking_lot::{Mutex, MutexGuard};

use crate::direct::{DirectTail, EndedCalls, InFlight};
use crate::end_io::{EndIo, Ended};
use crate::errors::WritebackErrors;
use crate::mapping::{FinishedRange, MapRead, MapWrite};
use crate::progress::Progress;
use crate::read::{ReadContext, ReadOptions};

/// A file that is written to. Lives as long as something in it is dirty, or on its way to the
/// device: its owner sees to the first, the second holds it by itself.
pub struct WritableFile {
    pub(crate) mapping: Arc<Mapping>,
    reader: Arc<dyn MapRead>,
    pub(crate) mapper: Arc<dyn MapWrite>,
    pub(crate) device: SharedDevice,
    pub(crate) end_io: Arc<EndIo>,
    errors: WritebackErrors,
    /// Taken after `telling`, before the locks of the mapping; nothing of the format is called under it. Ends
    /// that wait in here hold this file, until what they wait for has ended.
    pub(crate) progress: Mutex<Progress<Ended>>,
    /// Requests that go around the cache.
    pub(crate) direct: InFlight,
    pub(crate) direct_ended: EndedCalls,
    pub(crate) direct_tail: DirectTail,
    /// The number of times that writeback found no blocks for data and gave up its reservation. Grows while
    /// the folio with the data is locked.
    unplaced: AtomicU64,
    /// Held to tell the format what has ended, so that it hears of that in the order of the file, and of no
    /// size from before a truncation afterwards. Taken before any transaction.
    telling: Mutex<()>,
    /// The size in memory.
    size: AtomicU64,
    options: ReadOptions,
}

impl WritableFile {
    /// A file of `size` bytes, in memory and on the disk, none of whose folios is dirty. What it
    /// writes ends in `end_io`.
    pub fn new<M: MapWrite + 'static>(
        mapping: Arc<Mapping>,
        mapper: Arc<M>,
        device: SharedDevice,
        end_io: Arc<EndIo>,
        size: u64,
        options: ReadOptions,
    ) -> Arc<Self> {
        let progress = Mutex::new(Progress::new(size));
        let (reader, size) = (Arc::clone(&mapper) as Arc<dyn MapRead>, AtomicU64::new(size));
        let errors = WritebackErrors::default();
        let telling = Mutex::default();
        let (direct, direct_ended, direct_tail) = Default::default();
        Arc::new(Self {
            mapping,
            reader,
            mapper,
            device,
            end_io,
            errors,
            progress,
            direct,
            direct_ended,
            direct_tail,
            unplaced: AtomicU64::new(0),
            telling,
            size,
            options,
        })
    }

    /// The size in bytes, which that on the disk follows. It changes under the inode's lock, held
    /// alone.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        self.mapping.set_mapped_size(size);
    }

    /// The size on the disk, as far as this file has told its format.
    pub fn size_on_disk(&self) -> u64 {
        self.progress.lock().on_disk()
    }

    /// Waits until nobody else tells the format what has ended, and has others wait meanwhile.
    pub(crate) fn telling(&self) -> Telling<'_> {
        Telling { file: self, _alone: self.telling.lock() }
    }

    /// Notes that the size on the disk is about to become `size`, whatever the format was told.
    pub(crate) fn set_size_on_disk(&self, size: u64) {
        let _telling = self.telling();
        self.progress.lock().set_size(size);
    }

    /// Returns a number that changes when writeback cancels a reservation. While it stays the same, dirty
    /// data has a reservation or blocks.
    pub(crate) fn unplaced(&self) -> u64 {
        self.unplaced.load(Ordering::Acquire)
    }

    /// Cancels the reservation for the data in `range` of a locked folio, for which no blocks were found.
    pub(crate) fn cancel_unplaced(&self, range: Range<u64>) {
        self.mapper.end_write(FileOffset(range.start)..FileOffset(range.end));
        self.unplaced.fetch_add(1, Ordering::Release);
    }

    /// The cached folios.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Whether direct requests are in flight, which need the file as it is known here.
    pub fn has_direct_requests(&self) -> bool {
        self.direct.any()
    }

    /// What went wrong with writeback.
    pub fn errors(&self) -> &WritebackErrors {
        &self.errors
    }

    /// Records that data of this file was lost, for the file's users and for those who sync all files.
    pub fn record_error(&self, error: Error) {
        self.end_io.errors().record(error.clone());
        self.errors.record(error);
    }

    /// What it takes to read the file.
    pub fn read_context(&self) -> ReadContext<'_> {
        ReadContext {
            mapping: &self.mapping,
            mapper: &*self.reader,
            device: &self.device,
            size: self.size(),
            options: self.options,
        }
    }
}

/// The right to tell a file's format what has ended.
pub(crate) struct Telling<'f> {
    file: &'f WritableFile,
    _alone: MutexGuard<'f, ()>,
}

impl Telling<'_> {
    /// Tells the format that `finished` is on the device, and that the size on the disk may grow to
    /// `reached`: all before that has arrived, or has failed, which the file's errors say.
    pub(crate) fn tell(&self, finished: &[FinishedRange], reached: u64) -> Result<()> {
        let size = self.file.size_on_disk().max(reached);
        self.file.mapper.end_io(finished, FileOffset(size))?;
        self.file.progress.lock().grew(size);
        Ok(())
    }
}

impl fmt::Debug for WritableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WritableFile({:?}, {} bytes)", self.mapping, self.size())
    }
}
