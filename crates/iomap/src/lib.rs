//! The file I/O path over folios, for any format that maps ranges of files to the device.
//! Not here: the formats and their maps.

mod behind;
mod caching;
mod changed;
mod cluster;
mod cluster_write;
mod context;
mod copy_out;
mod decode;
mod direct;
mod earlier_reads;
mod end_io;
mod errors;
mod failure;
mod fetch;
mod fiemap;
mod file;
mod fill;
mod folios;
mod limits;
mod mapping;
mod metadata;
mod mmap;
mod populate;
mod progress;
mod read;
mod readahead;
mod seek;
mod transform;
mod truncate;
mod uncached;
mod write;
mod writeback;

pub use behind::WriteBehind;
pub use caching::Caching;
pub use changed::BlockContents;
pub use context::{ReadContext, ReadOptions};
pub use copy_out::copy_out;
pub use decode::{Decode, DecodePool, Encoding};
pub use direct::{
    DIRECT_ALIGNMENT, DirectBatch, DirectDone, DirectOptions, DirectRequest, Refused, SplitExtents,
    overwrite_direct, read_direct, write_direct_alone,
};
pub use earlier_reads::EarlierReads;
pub use end_io::EndIo;
pub use errors::{ErrorCount, ErrorCursor, WritebackErrors};
pub use fiemap::{FiemapExtent, FiemapFlags, fiemap};
pub use file::WritableFile;
pub use limits::DirtyLimits;
pub use mapping::{
    CLUSTER_BYTES_MAX, Cluster, ClusterPlacement, ClusterWrite, FinishedRange, Iomap, IomapKind,
    MapFlags, MapRead, MapWrite, Placement, StoredRun, Token, WritePolicy,
};
pub use metadata::{MetadataBuffer, MetadataCache};
pub use mmap::{fault_for_load, fault_for_store};
pub use pagecache::{CacheOptions, CacheStats, DirtyStats, FOLIO_BYTES_MAX, Mapping, PageCache};
pub use read::{FolioSlice, lend, read};
pub use readahead::Readahead;
pub use seek::{seek_data, seek_hole};
pub use transform::Transform;
pub use truncate::{
    detach_cache, drop_cache, note_size_on_disk, punch_cache, quiesce_cache, set_size_after_move,
    truncate_cache,
};
pub use write::{write, write_as, zero_range};
pub use writeback::{
    wait_for_writeback, wait_for_writeback_cancellable, write_back, write_back_and_wait,
    write_back_and_wait_cancellable,
};
