//! What a cache is made with, and what it tells of itself.

use crate::limit::bytes_max_default;

/// The greatest order of a folio: 2^9 pages, 2 MiB.
pub const ORDER_MAX: u8 = 9;

/// The settings of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// The most memory the cache uses, in bytes: data, descriptors and index together.
    pub bytes_max: u64,
    /// The greatest folio order, 0 to 9. Order 0 gives a page-at-a-time cache (save for blocks
    /// larger than a page), the baseline that large folios are measured against.
    pub folio_order_max: u8,
}

impl Default for CacheOptions {
    /// A quarter of the memory that this process may use, and folios of up to 2 MiB.
    fn default() -> Self {
        Self { bytes_max: bytes_max_default(), folio_order_max: ORDER_MAX }
    }
}

/// A cache's counters at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// The limit, in bytes: of folios, index and descriptors together.
    pub bytes_max: u64,
    /// Bytes in folios now.
    pub bytes_resident: u64,
    /// The most bytes that were in folios at once.
    pub bytes_resident_max: u64,
    /// Bytes that the device does not have yet.
    pub dirty: DirtyStats,
    /// Bytes in the nodes of the index; they count against the limit, too.
    pub bytes_index: u64,
    /// Folios now, by order.
    pub folios: [u64; ORDER_MAX as usize + 1],
    /// Folios that reclaim has evicted since the cache was made.
    pub folios_reclaimed: u64,
    /// Bytes in those.
    pub bytes_reclaimed: u64,
    /// Folios that uncached reads and writes have made and left behind since the cache was made.
    pub folios_dropped: u64,
    /// Bytes in those.
    pub bytes_dropped: u64,
}

/// How much of a cache the device does not have yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirtyStats {
    /// Bytes in blocks that differ from the device's.
    pub bytes_dirty: u64,
    /// Bytes in blocks that are on their way to the device.
    pub bytes_writeback: u64,
}
