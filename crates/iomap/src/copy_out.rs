//! Puts a copy of a file's data into blocks of the device that are none of the file's yet.
//! Not here: whose they are.

use std::ops::Range;

use base::{DeviceOffset, Error, FileOffset, Result};

use crate::caching::Caching;
use crate::file::WritableFile;
use crate::read::read;
use crate::readahead::Readahead;

/// What is copied at once, in bytes.
const PART_BYTES: u64 = 1 << 20;

/// Writes what the file has in `range`, and zeroes past its end, to the device from byte `to` on. What is
/// cached is taken from there, and what is not does not stay in the cache. Not durable when it returns.
/// The caller holds the inode's lock.
pub fn copy_out(file: &WritableFile, range: Range<FileOffset>, to: DeviceOffset) -> Result<()> {
    let (mut context, readahead) = (file.read_context(), Readahead::default());
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
