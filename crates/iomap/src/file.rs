//! A file that is written to: what those who write to its folios share with those who write them
//! back. Not here: both.
//!
//! The caller holds the inode's lock: together with others to read, to lend and to overwrite around the cache;
//! alone to write to the cache, to zero and to truncate. Writeback takes no such lock.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{FileOffset, Result};
use device::SharedDevice;
use pagecache::Mapping;
use parking_lot::Mutex;

use crate::direct::{DirectTail, EndedCalls, InFlight};
use crate::end_io::EndIo;
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
    pub(crate) errors: WritebackErrors,
    pub(crate) progress: Mutex<Progress>,
    /// Requests that go around the cache.
    pub(crate) direct: InFlight,
    pub(crate) direct_ended: EndedCalls,
    pub(crate) direct_tail: DirectTail,
    /// Held to tell the format how far the size on the disk may grow, so that nobody tells it of a
    /// size from before a truncation afterwards.
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
        let progress = Mutex::new(Progress::new(mapping.block_size(), size));
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

    /// Tells the format that `finished` is on the device, of the writes of `ranges`, which have
    /// ended, and how far the size on the disk may grow if the data reaches to `reached`.
    pub(crate) fn tell_format(
        &self,
        finished: &[FinishedRange],
        ranges: impl IntoIterator<Item = Range<u64>>,
        reached: u64,
    ) -> Result<()> {
        let _telling = self.telling.lock();
        let (before, size) = {
            let mut progress = self.progress.lock();
            (progress.on_disk(), progress.end(ranges, reached))
        };
        let told = self.mapper.end_io(finished, FileOffset(size));
        if told.is_err() {
            self.progress.lock().did_not_grow(before);
        }
        told
    }

    /// Notes that the size on the disk is about to become `size`, whatever the format was told.
    pub(crate) fn set_size_on_disk(&self, size: u64) {
        let _telling = self.telling.lock();
        self.progress.lock().set_size(size);
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

impl fmt::Debug for WritableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WritableFile({:?}, {} bytes)", self.mapping, self.size())
    }
}
