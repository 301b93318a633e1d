//! The file of a read: its cache, its map, its device and its size, and the options of the read
//! path. Not here: the reads.

use base::FileOffset;
use device::SharedDevice;
use pagecache::Mapping;

use crate::caching::Caching;
use crate::mapping::MapRead;

/// The maximum size of a file, in bytes, as offsets are signed 64-bit numbers.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// Options of the read path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOptions {
    /// Whether the bytes of a read in flight are added to the folio's count once per mapped range,
    /// not once per block.
    pub batch_pending_accounting: bool,
    /// Whether a folio that one mapping and one bio cover gets no per-block state.
    pub skip_folio_state: bool,
    /// The maximum of bytes in a readahead window. Windows of small caches are smaller.
    pub readahead_bytes_max: u32,
    /// Whether folios that reads add stay in the cache.
    pub caching: Caching,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            batch_pending_accounting: true,
            skip_folio_state: true,
            readahead_bytes_max: 4 << 20,
            caching: Caching::Kept,
        }
    }
}

/// The file of a read.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    /// The cached folios.
    pub mapping: &'a Mapping,
    /// The mappings of the file's ranges.
    pub mapper: &'a dyn MapRead,
    /// The device with the file's blocks.
    pub device: &'a SharedDevice,
    /// The size in bytes.
    pub size: u64,
    /// The options.
    pub options: ReadOptions,
}

impl ReadContext<'_> {
    /// Returns the size in bytes, at most [`SIZE_MAX`].
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size.min(SIZE_MAX)
    }

    /// Returns how many of `length` bytes from `at` on are in the file.
    #[inline]
    pub(crate) fn length_at(&self, at: FileOffset, length: usize) -> usize {
        usize::try_from(self.size().saturating_sub(at.0)).unwrap_or(usize::MAX).min(length)
    }
}
