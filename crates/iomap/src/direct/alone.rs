//! Direct writes that need the inode's lock alone: those that make the file longer, that fill holes, and
//! that write parts of blocks which hold nothing yet.
//! Not here: overwrites (`waited.rs`).

use std::sync::Arc;

use base::{Error, FileOffset, Result};
use device::Segment;

use super::batch::DirectBatch;
use super::request::DirectRequest;
use super::{SplitExtents, clear_cache, wait_for_direct};
use crate::file::WritableFile;
use crate::read::SIZE_MAX;
use crate::truncate::write_back_from;
use crate::write::zero_tail;

/// Writes `data` at byte `at` and waits for it, allocating what is missing. `None`: it has to go through
/// the cache, into which nothing was written. The caller holds the inode's lock alone, and no transaction.
pub fn write_direct_alone(
    file: &Arc<WritableFile>,
    at: FileOffset,
    data: &[u8],
    split: SplitExtents,
) -> Result<Option<usize>> {
    let end = at.0.checked_add(data.len() as u64).filter(|&end| end <= SIZE_MAX);
    let end = end.ok_or(Error::FileTooLarge)?;
    let Some(start) = std::ptr::NonNull::new(data.as_ptr().cast_mut()).filter(|_| end > at.0)
    else {
        return Ok(Some(0));
    };
    wait_for_direct(file);
    let size = file.size();
    if at.0 > size {
        zero_tail(file, at.0)?;
    }
    // Blocks that are written must not lie past the size on the disk: what is before them goes first.
    write_back_from(file, file.size_on_disk());
    let block = u64::from(file.mapping().block_size().bytes());
    let blocks = at.0 / block * block..end.next_multiple_of(block);
    if !file.mapper.allocate(FileOffset(blocks.start)..FileOffset(blocks.end))?
        || !clear_cache(file, &blocks, None)
    {
        return Ok(None);
    }
    // SAFETY: `data` is borrowed until the request has ended, which is waited for; it is only read.
    let memory = unsafe { Segment::new(start, data.len()) };
    let (request, wait) = DirectRequest::waited_for(at, memory);
    let mut batch = DirectBatch::default();
    if batch.write_alone(file, request, split).is_err() {
        return Ok(None);
    }
    file.direct_tail.forget();
    let written = batch.submit_and_wait(&*file.device, wait, Some(file))?;
    if end > size {
        file.direct_tail.set(end, blocks.end);
    }
    Ok(Some(written))
}
