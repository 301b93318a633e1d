//! The data of one file: what is allocated is written, what is not stays a hole.

use std::fs;
use std::os::unix::fs::FileExt;

use base::FileOffset;

use super::engine::Trouble;

/// The most that is lent and written at once.
const SLICE_BYTES_MAX: usize = 1 << 20;

/// Copies `size` bytes of `from` to the empty file `to`. `go_on` is told of each number of bytes
/// written and can stop the copy.
pub fn copy(
    from: &vfs::File,
    size: u64,
    to: &fs::File,
    mut go_on: impl FnMut(u64) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let write = |error| Trouble::Host("cannot write the copy", error);
    // First of all: a size that the host cannot hold fails before any work.
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
                return Err(Trouble::Other("the data ends before the size of the file"));
            }
            to.write_all_at(&slice, at).map_err(write)?;
            at += slice.len() as u64;
            go_on(slice.len() as u64)?;
        }
    }
    Ok(())
}
