//! The folio cache: folios from a pooled arena, one mapping per inode, reclaim under a byte limit.
//! Not here: devices, formats, and the choice of what to read.
//!
//! A cached read: [`Mapping::get`] walks the mapping's tree without a lock and takes a reference to
//! the folio that it finds. [`FolioHandle::copy_to`] copies the data. Dropping the handle drops the
//! reference. Folios are inserted, filled and evicted only on misses.
//!
//! A write: the writer locks a folio, waits for its writeback to end, changes it and marks blocks
//! dirty. The flusher finds the folio in the mapping's ordered set of dirty folios.
//!
//! Numbered invariants are kept in `frame.rs` (R: references), `tree.rs` (T: the index) and
//! `mmap/mod.rs` (W: files as memory).

mod block;
mod buddy;
mod cache;
mod dirty;
mod fill;
mod folio;
mod frame;
mod limit;
mod mapping;
mod mmap;
mod node;
mod options;
mod pool;
mod reclaim;
mod region;
mod state;
#[cfg(all(not(miri), target_arch = "x86_64"))]
mod stores;
mod streaming;
mod tree;
mod write;

pub use self::{
    block::PoolBlock,
    cache::PageCache,
    dirty::{DirtyRanges, WritebackFolio},
    fill::{FillPiece, LockedFolio},
    folio::{Folio, FolioHandle, FolioRef, LentFolio},
    limit::{address_space_limit, machine_memory},
    mapping::{Insertion, Mapping},
    mmap::{FaultHandler, MapWindow, is_mapped},
    options::{CacheOptions, CacheStats, DirtyStats, ORDER_MAX},
};

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// The size of a folio of order 0, in bytes. It does not depend on the host's page size.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// The number of bytes in the largest folio.
pub const FOLIO_BYTES_MAX: u64 = (PAGE_SIZE as u64) << ORDER_MAX;
