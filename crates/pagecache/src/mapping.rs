//! The cache and its mappings: the interface, before there are folios behind it.

use std::sync::Arc;

use base::{BlockSize, Error, Result};

use crate::options::{CacheOptions, CacheStats, ORDER_MAX};

/// A cache of folios under one byte limit, shared by any number of mappings.
#[derive(Debug)]
pub struct PageCache {
    options: CacheOptions,
}

impl PageCache {
    /// An empty cache.
    pub fn new(options: CacheOptions) -> Result<Arc<Self>> {
        if options.folio_order_max > ORDER_MAX {
            return Err(Error::InvalidArgument("the folio order is greater than 9"));
        }
        Ok(Arc::new(Self { options }))
    }

    /// A mapping without folios, for one file whose blocks have `block_size` bytes. Its folios are
    /// at least as large as a block.
    pub fn new_mapping(self: &Arc<Self>, block_size: BlockSize) -> Arc<Mapping> {
        Arc::new(Mapping { cache: Arc::clone(self), block_size })
    }

    /// The counters.
    pub fn stats(&self) -> CacheStats {
        CacheStats { bytes_max: self.options.bytes_max, ..CacheStats::default() }
    }
}

/// The cached folios of one file. Dropping it frees them.
#[derive(Debug)]
pub struct Mapping {
    cache: Arc<PageCache>,
    block_size: BlockSize,
}

impl Mapping {
    /// The cache that the folios are from.
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// The size of the file's blocks.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }
}
