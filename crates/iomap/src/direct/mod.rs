//! Direct I/O between the device and the caller's memory, around the cache, with any number of
//! requests in flight (docs/design/io.md, "A direct read or write"). Here: calls that wait for
//! their request.
//!
//! - `options.rs`: the options of direct writes
//! - `in_flight.rs`: what a file knows of its requests in flight
//! - `cache.rs`: the cache's part
//! - `plan.rs`: the runs of a request on the device, and whether it may be submitted
//! - `submit.rs`: the bios of a batch of requests
//! - `request.rs`: requests, from the caller through flight to the callback
//! - `end.rs`: the end of requests: the format, the cache, the callbacks
//!
//! The caller holds the inode's lock, shared or alone, until its requests are submitted. In flight,
//! they need no lock: operations that free or move blocks, or write to the cache, wait for them
//! ([`WritableFile::wait_for_direct`]). Of direct writes to the same bytes any may win. Not here:
//! which lock a request needs, and permissions.

mod cache;
pub(crate) mod earlier_reads;
pub(crate) mod end;
pub(crate) mod in_flight;
mod options;
mod plan;
mod request;
mod submit;

use std::ptr::NonNull;
use std::sync::Arc;

use base::{Error, FileOffset, Result};
use device::Segment;

use self::cache::clear_cache;
pub use self::end::DirectDone;
pub use self::options::{DIRECT_ALIGNMENT, DirectOptions, SplitExtents};
pub use self::plan::Refused;
pub use self::request::DirectRequest;
pub use self::submit::DirectBatch;
use crate::file::WritableFile;
use crate::read::context::{ReadContext, SIZE_MAX};
use crate::write::zero_tail;
use crate::writeback::write_back_from;

/// Reads from byte `at` into `buffer`, up to the end of the file. `file` is the file's state for
/// writing, if it has one. The caller holds the inode's lock, which is `lock`: it is dropped before
/// the wait for the read.
pub fn read_direct<L>(
    context: &ReadContext<'_>,
    file: Option<&Arc<WritableFile>>,
    at: FileOffset,
    buffer: &mut [u8],
    lock: L,
) -> Result<Result<usize>, Refused> {
    let start = NonNull::from(&mut *buffer).cast();
    // SAFETY: the buffer is borrowed until this function returns, which waits until the request has
    // ended.
    let memory = unsafe { Segment::new(start, buffer.len()) };
    let (request, wait) = DirectRequest::waited_for(at, memory);
    let mut batch = DirectBatch::default();
    batch.read(context, file, request, false).map_err(|(refused, _)| refused)?;
    drop(lock);
    Ok(batch.submit_and_wait(&**context.device, wait, file))
}

/// Writes `data` at byte `at` to existing blocks. The caller holds the inode's lock, shared or
/// alone, which is `lock`: it is dropped before the wait for the write.
pub fn overwrite_direct<L>(
    file: &Arc<WritableFile>,
    at: FileOffset,
    data: &[u8],
    split: SplitExtents,
    lock: L,
) -> Result<Result<usize>, Refused> {
    let start = NonNull::from(data).cast();
    // SAFETY: the data is borrowed until this function returns, which waits until the request has
    // ended. The bios of a write only read it.
    let memory = unsafe { Segment::new(start, data.len()) };
    let (request, wait) = DirectRequest::waited_for(at, memory);
    let mut batch = DirectBatch::default();
    batch.overwrite(file, request, split, false).map_err(|(refused, _)| refused)?;
    drop(lock);
    Ok(batch.submit_and_wait(&*file.device, wait, Some(file)))
}

/// Writes `data` at byte `at` and waits for it: a write that extends the file, fills holes, or
/// covers parts of blocks without data. Allocates missing blocks. Returns `None` if the write has
/// to go through the cache, to which nothing was written. The caller holds the inode's lock alone,
/// and no transaction.
pub fn write_direct_alone(
    file: &Arc<WritableFile>,
    at: FileOffset,
    data: &[u8],
    split: SplitExtents,
) -> Result<Option<usize>> {
    let end = at.0.checked_add(data.len() as u64).filter(|&end| end <= SIZE_MAX);
    let end = end.ok_or(Error::FileTooLarge)?;
    if data.is_empty() {
        return Ok(Some(0));
    }
    file.wait_for_direct();
    let size = file.size();
    if at.0 > size {
        zero_tail(file, at.0)?;
    }
    // Written blocks must not lie past the size on the disk, so the data before them is written
    // first.
    write_back_from(file, file.size_on_disk());
    let block = u64::from(file.mapping().block_size().bytes());
    let blocks = at.0 / block * block..end.next_multiple_of(block);
    if !file.mapper.allocate(FileOffset(blocks.start)..FileOffset(blocks.end))?
        || !clear_cache(file, &blocks)
    {
        return Ok(None);
    }
    let start = NonNull::from(data).cast();
    // SAFETY: as in `overwrite_direct`.
    let memory = unsafe { Segment::new(start, data.len()) };
    let (request, wait) = DirectRequest::waited_for(at, memory);
    let mut batch = DirectBatch::default();
    if batch.write_alone(file, request, split).is_err() {
        return Ok(None);
    }
    file.zeroed_tail.clear();
    let written = batch.submit_and_wait(&*file.device, wait, Some(file))?;
    if end > size {
        file.zeroed_tail.set(end, blocks.end);
    }
    Ok(Some(written))
}
