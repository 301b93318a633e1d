//! Copies from one file to another through the cache. Not here: shared blocks, which no format
//! supports.

use std::sync::Arc;

use base::{Error, FileOffset, Result};

use crate::file::File;
use crate::file::rw_flags::{RwFlags, WriteAt, WriteSync};
use crate::node::rights::Privileges;

/// The maximum number of bytes that are copied at once.
const PART_BYTES: usize = 1 << 20;
/// Zeroes that replace data of the target where the source has a hole.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

impl File {
    /// Copies `length` bytes from byte `from` to byte `at` of `target`, or fewer if this file ends
    /// earlier. Returns the number of bytes copied. A hole stays a hole where the target has no
    /// data.
    ///
    /// The files are not locked between parts: a concurrent write may be copied in part. If an
    /// error occurs after some bytes were copied, the next call reports it. The copy is as durable
    /// as writes to `target`.
    pub fn copy_to(
        &self,
        from: FileOffset,
        target: &Self,
        at: FileOffset,
        length: u64,
        privileges: Privileges,
    ) -> Result<u64> {
        self.require_reading()?;
        target.require_writing()?;
        let bytes = self.node().attributes().size.saturating_sub(from.0).min(length);
        let is_target = Arc::ptr_eq(self.node(), target.node());
        if is_target && from.0.abs_diff(at.0) < bytes {
            return Err(Error::InvalidArgument("the source and the destination overlap"));
        }
        if target.mode().append {
            return Err(Error::InvalidArgument("the destination was opened to append"));
        }
        at.checked_add(bytes).ok_or(Error::FileTooLarge)?;
        let mut done = 0;
        while done < bytes {
            let (here, there) = (FileOffset(from.0 + done), FileOffset(at.0 + done));
            match self.copy_part(here, target, there, bytes - done, privileges) {
                // Another thread has truncated the source.
                Ok(0) => break,
                Ok(part) => done += part,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        target.make_durable(at.0..at.0 + done, WriteSync::None)?;
        Ok(done)
    }

    /// Copies up to `length` bytes: a part of a hole, or of data. Returns their number.
    fn copy_part(
        &self,
        here: FileOffset,
        target: &Self,
        there: FileOffset,
        length: u64,
        privileges: Privileges,
    ) -> Result<u64> {
        let hole = match self.seek_data(here) {
            Ok(data) => data.0 - here.0,
            Err(Error::NoSuchOffset) => self.node().attributes().size.saturating_sub(here.0),
            Err(error) => return Err(error),
        };
        if hole > 0 {
            return target.clear(there, hole.min(length), privileges);
        }
        let data = self.lend(here, length.min(PART_BYTES as u64) as usize)?;
        if data.is_empty() {
            return Ok(0);
        }
        let (there, flags) = (WriteAt::Offset(there), RwFlags::default());
        let written = target.write_cached(there, &data, privileges, flags)?;
        Ok(written.end - written.start)
    }

    /// Makes up to `length` bytes from `at` on read as zeroes. Extends the file if it ends before.
    /// Returns the number of bytes.
    fn clear(&self, at: FileOffset, length: u64, privileges: Privileges) -> Result<u64> {
        let data = match self.seek_data(at) {
            Ok(data) => data.0 - at.0,
            // Only a hole, or the end of the file.
            Err(Error::NoSuchOffset) => length,
            Err(error) => return Err(error),
        };
        if data > 0 {
            let length = length.min(data);
            self.node().grow(at.0 + length, privileges)?;
            return Ok(length);
        }
        let length = length.min(ZEROES.len() as u64) as usize;
        let (at, flags) = (WriteAt::Offset(at), RwFlags::default());
        let written = self.write_cached(at, &ZEROES[..length], privileges, flags)?;
        Ok(written.end - written.start)
    }
}
