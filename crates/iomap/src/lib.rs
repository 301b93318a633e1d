//! The file I/O path over folios, for any format that maps ranges of files to the device.
//! Not here: the formats and their maps.

mod caching;
mod direct;
mod file;
mod folios;
mod mapping;
mod metadata;
mod mmap;
mod query;
mod read;
mod write;
mod writeback;

pub use caching::Caching;
pub use direct::earlier_reads::EarlierReads;
pub use direct::{
    DIRECT_ALIGNMENT, DirectBatch, DirectDone, DirectOptions, DirectRequest, Refused, SplitExtents,
    overwrite_direct, read_direct, write_direct_alone,
};
pub use file::WritableFile;
pub use mapping::transform::Transform;
pub use mapping::{
    CLUSTER_BYTES_MAX, Cluster, ClusterPlacement, ClusterWrite, FinishedRange, Iomap, IomapKind,
    MapFlags, MapRead, MapWrite, Placement, StoredRun, Token, WritePolicy,
};
pub use metadata::changed::BlockContents;
pub use metadata::{MetadataBuffer, MetadataCache};
pub use mmap::{fault_for_load, fault_for_store};
pub use pagecache::{CacheOptions, CacheStats, DirtyStats, FOLIO_BYTES_MAX, Mapping, PageCache};
pub use query::fiemap::{FiemapExtent, FiemapFlags, fiemap};
pub use query::seek::{seek_data, seek_hole};
pub use read::context::{ReadContext, ReadOptions};
pub use read::copy_out::copy_out;
pub use read::decode::{Decode, DecodePool, Encoding};
pub use read::readahead::Readahead;
pub use read::{FolioSlice, lend, read};
pub use write::truncate::{
    detach_cache, drop_cache, note_size_on_disk, punch_cache, quiesce_cache, set_size_after_move,
    truncate_cache,
};
pub use write::{write, write_as, zero_range};
pub use writeback::behind::WriteBehind;
pub use writeback::end_io::EndIo;
pub use writeback::errors::{ErrorCount, ErrorCursor, WritebackErrors};
pub use writeback::limits::DirtyLimits;
pub use writeback::{
    wait_for_writeback, wait_for_writeback_cancellable, write_back, write_back_and_wait,
    write_back_and_wait_cancellable,
};
