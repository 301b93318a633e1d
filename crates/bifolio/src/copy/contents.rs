//! Copies of the data of a file to the host. Holes are preserved.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use base::{Error, FileOffset, IoError};

use super::engine::CopyError;

/// Maximum number of bytes that are lent and written at a time.
const SLICE_BYTES_MAX: usize = 1 << 20;

/// Data of a file that is past the end of the image.
pub struct Missing {
    /// Where it begins in the file.
    pub at: FileOffset,
    /// The number of bytes that are missing there and later.
    pub bytes: u64,
    /// The error of the first read.
    pub error: Error,
}

/// Copies `size` bytes of `from` to the empty file `to`. Calls `progress` with the number of bytes
/// after each write; an error of it ends the copy. What is past the end of the image becomes a
/// hole, and is returned.
pub fn copy(
    from: &vfs::File,
    size: u64,
    to: &fs::File,
    mut progress: impl FnMut(u64) -> Result<(), CopyError>,
) -> Result<Option<Missing>, CopyError> {
    let write = |error| CopyError::Host("cannot write the copy", error);
    // First, so that a size that the host does not support fails before data is copied.
    to.set_len(size).map_err(write)?;
    let mut at = 0;
    let mut missing: Option<Missing> = None;
    while at < size {
        let data = match from.seek_data(FileOffset(at)) {
            Ok(data) => data.0,
            Err(base::Error::NoSuchOffset) => break,
            Err(error) => return Err(error.into()),
        };
        let end = match from.seek_hole(FileOffset(data)) {
            Ok(hole) => hole.0.min(size),
            Err(base::Error::NoSuchOffset) => break,
            Err(error) => return Err(error.into()),
        };
        at = data;
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(SLICE_BYTES_MAX);
            let slice = match from.lend(FileOffset(at), length) {
                Err(error) if is_past_end(&error) => {
                    let next = end_of_extent(from, at)?.clamp(at + 1, end);
                    let first = Missing { at: FileOffset(at), bytes: 0, error };
                    missing.get_or_insert(first).bytes += next - at;
                    at = next;
                    continue;
                }
                slice => slice?,
            };
            if slice.is_empty() {
                return Err(CopyError::Other("the data ends before the size of the file"));
            }
            to.write_all_at(&slice, at).map_err(write)?;
            at += slice.len() as u64;
            progress(slice.len() as u64)?;
        }
    }
    Ok(missing)
}

fn is_past_end(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.errno == IoError::PAST_END)
}

/// Returns the end of the extent with byte `at`, which is the end of what is missing if the image
/// ends before `at`'s place.
fn end_of_extent(file: &vfs::File, at: u64) -> Result<u64, Error> {
    let mut end = at;
    file.extents(FileOffset(at)..FileOffset(at.saturating_add(1)), &mut |extent| {
        end = extent.logical.0.saturating_add(extent.length);
        ControlFlow::Break(())
    })?;
    Ok(end)
}
