//! Copies of the data of a file to the host. Holes are preserved.

use std::fs;
use std::os::unix::fs::FileExt;

use base::FileOffset;

use super::engine::CopyError;

/// Maximum number of bytes that are lent and written at a time.
const SLICE_BYTES_MAX: usize = 1 << 20;

/// Copies `size` bytes of `from` to the empty file `to`. Calls `progress` with the number of bytes after each write;
/// an error of it ends the copy.
pub fn copy(
    from: &vfs::File,
    size: u64,
    to: &fs::File,
    mut progress: impl FnMut(u64) -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let write = |error| CopyError::Host("cannot write the copy", error);
    // First, so that a size that the host does not support fails before data is copied.
    to.set_len(size).map_err(write)?;
    let mut at = 0;
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
            let slice = from.lend(FileOffset(at), length)?;
            if slice.is_empty() {
                return Err(CopyError::Other("the data ends before the size of the file"));
            }
            to.write_all_at(&slice, at).map_err(write)?;
            at += slice.len() as u64;
            progress(slice.len() as u64)?;
        }
    }
    Ok(())
}
