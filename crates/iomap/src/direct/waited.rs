//! Direct reads and overwrites of borrowed memory, which their caller waits for.
//! Not here: writes that need the inode's lock alone (`alone.rs`).

use std::ptr::NonNull;
use std::sync::Arc;

use base::{FileOffset, Result};
use device::Segment;

use super::SplitExtents;
use super::admit::Refused;
use super::batch::DirectBatch;
use super::request::DirectRequest;
use crate::file::WritableFile;
use crate::read::ReadContext;

/// Reads from byte `at` into `buffer`, up to the end of the file. `file` is how it is written to, if it
/// is. The caller holds the inode's lock, which is `lock`: it goes once the read is in flight.
pub fn read_direct<L>(
    context: &ReadContext<'_>,
    file: Option<&Arc<WritableFile>>,
    at: FileOffset,
    buffer: &mut [u8],
    lock: L,
) -> Result<Result<usize>, Refused> {
    let start = NonNull::from(&mut *buffer).cast();
    // SAFETY: the buffer is borrowed until the request has ended, which is waited for.
    let memory = unsafe { Segment::new(start, buffer.len()) };
    let (request, wait) = DirectRequest::waited_for(at, memory);
    let mut batch = DirectBatch::default();
    batch.read(context, file, request, false).map_err(|(refused, _)| refused)?;
    drop(lock);
    Ok(batch.submit_and_wait(&**context.device, wait, file))
}

/// Writes `data` at byte `at` over what the file has. The caller holds the inode's lock, maybe together
/// with others, which is `lock`: it goes once the write is in flight.
pub fn overwrite_direct<L>(
    file: &Arc<WritableFile>,
    at: FileOffset,
    data: &[u8],
    split: SplitExtents,
    lock: L,
) -> Result<Result<usize>, Refused> {
    let start = NonNull::from(data).cast();
    // SAFETY: the data is borrowed until the request has ended, which is waited for, and only read.
    let memory = unsafe { Segment::new(start, data.len()) };
    let (request, wait) = DirectRequest::waited_for(at, memory);
    let mut batch = DirectBatch::default();
    batch.overwrite(file, request, split, false).map_err(|(refused, _)| refused)?;
    drop(lock);
    Ok(batch.submit_and_wait(&*file.device, wait, Some(file)))
}
