//! The state of a file that writers and writeback share. Not here: writes, and writeback.
//!
//! The caller holds the inode's lock: shared to read, to lend and for direct overwrites; alone to
//! write to the cache, to zero and to truncate. Writeback takes no such lock.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, FileOffset, Result};
use device::SharedDevice;
use pagecache::Mapping;
use parking_lot::{Mutex, MutexGuard};

use crate::direct::end::EndedRequests;
use crate::direct::in_flight::{DirectReads, InFlightCount, ZeroedTail};
use crate::mapping::{FinishedRange, MapRead, MapWrite};
use crate::read::context::{ReadContext, ReadOptions};
use crate::writeback::end_io::{EndIo, EndedWrite};
use crate::writeback::errors::WritebackErrors;
use crate::writeback::progress::Progress;

/// A file that is written to. The owner keeps it while data is dirty; data under writeback holds a
/// reference.
pub struct WritableFile {
    pub(crate) mapping: Arc<Mapping>,
    reader: Arc<dyn MapRead>,
    pub(crate) mapper: Arc<dyn MapWrite>,
    pub(crate) device: SharedDevice,
    pub(crate) end_io: Arc<EndIo>,
    errors: WritebackErrors,
    /// Taken after `end_io_lock`, before the locks of the mapping; the format is not called under
    /// it. Ends of I/O that wait in it hold a reference to this file.
    pub(crate) progress: Mutex<Progress<EndedWrite>>,
    /// The number of direct requests in flight, and the requests that have ended but are not
    /// completed.
    pub(crate) direct_in_flight: InFlightCount,
    /// Those of the direct requests in flight that read.
    pub(crate) direct_reads: DirectReads,
    pub(crate) direct_ended: EndedRequests,
    pub(crate) zeroed_tail: ZeroedTail,
    /// The number of reservations that writeback has cancelled, since it found no blocks for their
    /// data, or could not write to new blocks. Grows while the folio with the data is locked or
    /// under writeback.
    cancelled_reservations: AtomicU64,
    /// Held around the format's `end_io`, so that its calls come in the order of the file, and none
    /// of them has a size from before a truncation. Taken before any transaction.
    end_io_lock: Mutex<()>,
    /// The size in memory.
    size: AtomicU64,
    options: ReadOptions,
}

impl WritableFile {
    /// Returns a file of `size` bytes, in memory and on the disk, without dirty folios. Its writes
    /// are completed by `end_io`.
    pub fn new<M: MapWrite + 'static>(
        mapping: Arc<Mapping>,
        mapper: Arc<M>,
        device: SharedDevice,
        end_io: Arc<EndIo>,
        size: u64,
        options: ReadOptions,
    ) -> Arc<Self> {
        let reader: Arc<dyn MapRead> = Arc::clone(&mapper) as _;
        Arc::new(Self {
            mapping,
            reader,
            mapper,
            device,
            end_io,
            errors: WritebackErrors::default(),
            progress: Mutex::new(Progress::new(size)),
            direct_in_flight: InFlightCount::default(),
            direct_reads: DirectReads::default(),
            direct_ended: EndedRequests::default(),
            zeroed_tail: ZeroedTail::default(),
            cancelled_reservations: AtomicU64::new(0),
            end_io_lock: Mutex::default(),
            size: AtomicU64::new(size),
            options,
        })
    }

    /// Returns the size in memory, in bytes. It changes under the inode's lock, held alone. The
    /// size on the disk follows it.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        self.mapping.set_mapped_size(size);
    }

    /// Returns the size on the disk, as far as the format was called for it.
    pub fn size_on_disk(&self) -> u64 {
        self.progress.lock().on_disk()
    }

    /// Locks the format's `end_io`, which one thread calls at a time.
    pub(crate) fn lock_end_io(&self) -> EndIoGuard<'_> {
        EndIoGuard { file: self, _alone: self.end_io_lock.lock() }
    }

    /// Records that the caller has set the size on the disk to `size`, or, if that is not larger,
    /// is about to do so.
    pub(crate) fn set_size_on_disk(&self, size: u64) {
        let _guard = self.lock_end_io();
        self.progress.lock().set_size(size);
    }

    /// Returns a number that changes when writeback cancels a reservation. While it stays the same,
    /// dirty data has a reservation or blocks.
    pub(crate) fn cancelled_reservations(&self) -> u64 {
        self.cancelled_reservations.load(Ordering::Acquire)
    }

    /// Cancels the reservation for the data in `range` of a locked folio, for which no blocks were
    /// found.
    pub(crate) fn cancel_delalloc(&self, range: Range<u64>) {
        self.mapper.end_write(FileOffset(range.start)..FileOffset(range.end));
        self.cancelled_reservations.fetch_add(1, Ordering::Release);
    }

    /// Returns the cached folios.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Waits until no direct request of the file is in flight. The caller holds the inode's lock
    /// alone, so that none begins.
    pub fn wait_for_direct(&self) {
        self.direct_in_flight.wait_none();
    }

    /// Returns whether direct requests are in flight.
    pub fn has_direct_requests(&self) -> bool {
        self.direct_in_flight.any()
    }

    /// Returns the errors of writeback.
    pub fn errors(&self) -> &WritebackErrors {
        &self.errors
    }

    /// Records an error for the users of this file, and for syncs of all files.
    pub fn record_error(&self, error: Error) {
        self.end_io.errors().record(error.clone());
        self.errors.record(error);
    }

    /// Returns the context for reading the file.
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

/// The lock for calls of the format's `end_io`.
pub(crate) struct EndIoGuard<'f> {
    file: &'f WritableFile,
    _alone: MutexGuard<'f, ()>,
}

impl EndIoGuard<'_> {
    /// Returns the placements among `failed`, whose data did not reach the device, to the format.
    pub(crate) fn unplace<'r>(&self, failed: impl IntoIterator<Item = &'r FinishedRange>) {
        let placed = failed.into_iter().filter(|range| range.token.is_some());
        let placed: Vec<FinishedRange> = placed.copied().collect();
        if !placed.is_empty() {
            self.file.mapper.unplace(&placed);
            self.file.cancelled_reservations.fetch_add(1, Ordering::Release);
        }
    }

    /// Calls the format for ranges that are on the device. The size on the disk may grow to
    /// `reached`: all data before it is on the device, or is lost and recorded in the file's
    /// errors.
    pub(crate) fn end_io(&self, finished: &[FinishedRange], reached: u64) -> Result<()> {
        let block = u64::from(self.file.mapping.block_size().bytes());
        debug_assert!(finished.iter().all(|range| range.is_valid(block)), "{finished:?}");
        debug_assert!(finished.is_sorted_by_key(|range| range.offset), "{finished:?}");
        let size = self.file.size_on_disk().max(reached);
        self.file.mapper.end_io(finished, FileOffset(size))?;
        self.file.progress.lock().grew(size);
        Ok(())
    }
}

impl Drop for WritableFile {
    /// Requests and writes in flight hold a reference to the file, so there are none. Dirty data
    /// may be left: a file that is deleted loses it. Lent bytes have references of their own.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        debug_assert!(!self.direct_in_flight.any(), "direct requests are in flight");
        debug_assert!(self.direct_ended.is_empty(), "direct requests are not completed");
        debug_assert!(self.progress.get_mut().is_idle(), "writes have not ended");
        let pages = 0..u64::MAX;
        debug_assert!(self.mapping.next_under_writeback(pages).is_none(), "I/O is in flight");
    }
}

impl fmt::Debug for WritableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WritableFile({:?}, {} bytes)", self.mapping, self.size())
    }
}
