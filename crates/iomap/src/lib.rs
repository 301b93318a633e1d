//! The file I/O path over folios, for any format that can map a file range to the device.
//! Not here: which format that is, and how it maps.

mod changed;
mod fetch;
mod fiemap;
mod fill;
mod mapping;
mod metadata;
mod populate;
mod read;
mod readahead;
mod seek;
mod uncached;

pub use fiemap::{FiemapExtent, FiemapFlags, fiemap};
pub use mapping::{Iomap, IomapKind, MapFlags, MapRead};
pub use metadata::{MetadataBuffer, MetadataCache};
pub use pagecache::{CacheOptions, CacheStats, Mapping, PageCache};
pub use read::{FolioSlice, ReadContext, ReadOptions, lend, read};
pub use readahead::Readahead;
pub use seek::{seek_data, seek_hole};
