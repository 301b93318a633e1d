//! Copies of a file's data in new blocks of the device, for formats that move files.
//! Not here: the allocation of the blocks.

use std::ops::Range;

use base::{DeviceOffset, Error, FileOffset, Result};

use crate::caching::Caching;
use crate::file::WritableFile;
use crate::read::read;
use crate::read::readahead::Readahead;

/// The number of bytes that are copied at once.
const PART_BYTES: u64 = 1 << 20;

/// Writes the file's data in `range`, and zeroes after the file's end, to the device from byte `to`
/// on. Cached data is copied from the cache; other data does not stay in the cache. The copy is not
/// durable before the next flush. The caller holds the inode's lock.
pub fn copy_out(file: &WritableFile, range: Range<FileOffset>, to: DeviceOffset) -> Result<()> {
    let readahead = Readahead::default();
    let mut context = file.read_context();
    context.options.caching = Caching::Dropbehind;
    let mut buffer = Vec::new();
    let mut at = range.start.0;
    while at < range.end.0 {
        let length = (range.end.0 - at).min(PART_BYTES);
        buffer.clear();
        buffer.resize(length as usize, 0);
        read(&context, &readahead, FileOffset(at), &mut buffer)?;
        let to = to.checked_add(at - range.start.0).ok_or(Error::FileTooLarge)?;
        file.device.write_at(to, &buffer)?;
        at += length;
    }
    Ok(())
}
