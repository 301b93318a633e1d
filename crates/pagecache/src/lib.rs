//! The folio cache: folios from a pooled arena, one mapping per inode, reclaim under a byte limit.
//! Not here: devices, formats.

mod limit;
mod mapping;
mod options;

pub use mapping::{Mapping, PageCache};
pub use options::{CacheOptions, CacheStats};
