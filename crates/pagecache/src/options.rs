//! Options and counters of a cache.

use crate::limit::bytes_max_default;

/// The greatest order of a folio: 2^9 pages, 2 MiB.
pub const ORDER_MAX: u8 = 9;

/// The settings of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// The memory limit of the cache, in bytes: data, descriptors and index together.
    pub bytes_max: u64,
    /// The greatest folio order, 0 to 9. With order 0, all folios are single pages, unless blocks
    /// are larger. This is the baseline for measuring large folios.
    pub folio_order_max: u8,
}

impl Default for CacheOptions {
    /// Returns a limit of a quarter of the memory that this process may use, and folios of up to 2
    /// MiB.
    fn default() -> Self {
        Self { bytes_max: bytes_max_default(), folio_order_max: ORDER_MAX }
    }
}

/// A cache's counters at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// The limit of folios, index and descriptors together, in bytes.
    pub bytes_max: u64,
    /// Bytes in folios now.
    pub bytes_resident: u64,
    /// The greatest value of `bytes_resident` so far.
    pub bytes_resident_max: u64,
    /// Bytes that are not on the device yet.
    pub dirty: DirtyStats,
    /// Bytes in the nodes of the index. They count against the limit, too.
    pub bytes_index: u64,
    /// The number of folios of each order now.
    pub folios: [u64; ORDER_MAX as usize + 1],
    /// Folios that reclaim has evicted so far.
    pub folios_reclaimed: u64,
    /// Bytes in folios that reclaim has evicted so far.
    pub bytes_reclaimed: u64,
    /// Dropbehind folios that have left the cache so far, after uncached reads and writes.
    pub folios_dropped: u64,
    /// Bytes in dropbehind folios that have left the cache so far.
    pub bytes_dropped: u64,
}

/// Cached bytes that are not on the device yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirtyStats {
    /// Bytes in dirty blocks.
    pub bytes_dirty: u64,
    /// Bytes in blocks under writeback.
    pub bytes_writeback: u64,
    /// Bytes in folios with such blocks. Reclaim evicts none of them, so this is more than the
    /// other two together if large folios are dirty in part.
    pub bytes_held: u64,
}
