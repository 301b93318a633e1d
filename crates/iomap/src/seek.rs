//! SEEK_DATA and SEEK_HOLE from a file's mapping.

use base::{Error, FileOffset, Result};

use crate::mapping::{IomapKind, MapRead, map_at};

/// The first byte of data at or after `at` in a file of `size` bytes; unwritten blocks are a hole.
/// `NoSuchOffset` when there is none, or `at` lies at or past the end.
pub fn seek_data(mapper: &dyn MapRead, size: u64, at: FileOffset) -> Result<FileOffset> {
    first(mapper, size, at, true)?.ok_or(Error::NoSuchOffset)
}

/// The first byte of a hole at or after `at` in a file of `size` bytes; there is one at its end.
/// `NoSuchOffset` when `at` lies at or past the end.
pub fn seek_hole(mapper: &dyn MapRead, size: u64, at: FileOffset) -> Result<FileOffset> {
    if at.0 >= size {
        return Err(Error::NoSuchOffset);
    }
    Ok(first(mapper, size, at, false)?.unwrap_or(FileOffset(size)))
}

/// The first byte at or after `at` that is data, or is not.
fn first(
    mapper: &dyn MapRead,
    size: u64,
    at: FileOffset,
    wanted: bool,
) -> Result<Option<FileOffset>> {
    let mut here = at;
    while here.0 < size {
        let map = map_at(mapper, here, size - here.0)?;
        if matches!(map.kind, IomapKind::Mapped | IomapKind::Inline) == wanted {
            return Ok(Some(here));
        }
        here = FileOffset(map.end());
    }
    Ok(None)
}
