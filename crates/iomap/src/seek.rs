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
        if !matches!(map.kind, IomapKind::Hole | IomapKind::Unwritten) == wanted {
            return Ok(Some(here));
        }
        here = FileOffset(map.end());
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Iomap, MapFlags};

    /// A file of ranges, one after the other.
    #[derive(Debug)]
    struct File(Vec<(IomapKind, u64)>);

    impl MapRead for File {
        fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap> {
            let mut offset = 0;
            for &(kind, length) in &self.0 {
                if at.0 < offset + length {
                    let (address, flags) = (None, MapFlags::default());
                    return Ok(Iomap { offset: FileOffset(offset), length, kind, address, flags });
                }
                offset += length;
            }
            Err(Error::InvalidArgument("past the end"))
        }

        fn inline_data(&self) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }
    }

    use IomapKind::{Delalloc, Hole, Inline, Mapped, Unwritten};

    #[test]
    fn seeking_finds_data_and_holes() {
        let file =
            File(vec![(Hole, 10), (Mapped, 10), (Mapped, 10), (Unwritten, 10), (Mapped, 10)]);
        // (from, data, hole), in a file that ends within the last range.
        for (from, data, hole) in [(0, 10, 0), (9, 10, 9), (15, 15, 30), (35, 40, 35), (44, 44, 45)]
        {
            assert_eq!(seek_data(&file, 45, FileOffset(from)), Ok(FileOffset(data)), "from {from}");
            assert_eq!(seek_hole(&file, 45, FileOffset(from)), Ok(FileOffset(hole)), "from {from}");
        }
        for from in [45, 46, u64::MAX] {
            assert_eq!(seek_data(&file, 45, FileOffset(from)), Err(Error::NoSuchOffset));
            assert_eq!(seek_hole(&file, 45, FileOffset(from)), Err(Error::NoSuchOffset));
        }
        assert_eq!(seek_data(&file, 40, FileOffset(31)), Err(Error::NoSuchOffset));
        let file = File(vec![(Hole, 10), (Delalloc, 10)]);
        assert_eq!(seek_data(&file, 20, FileOffset(0)), Ok(FileOffset(10)));
        assert_eq!(seek_hole(&File(vec![(Inline, 60)]), 50, FileOffset(3)), Ok(FileOffset(50)));
    }

    #[test]
    fn a_format_that_gives_an_empty_or_distant_range_is_an_error_not_a_hang() {
        #[derive(Debug)]
        struct Liar(Iomap);
        impl MapRead for Liar {
            fn map_read(&self, _at: FileOffset, _length: u64) -> Result<Iomap> {
                Ok(self.0)
            }
            fn inline_data(&self) -> Result<Vec<u8>> {
                Ok(Vec::new())
            }
        }
        for (offset, length) in [(0, 0), (5, 0), (6, 10), (0, 5), (u64::MAX, 9)] {
            let (address, flags) = (None, MapFlags::default());
            let liar =
                Liar(Iomap { offset: FileOffset(offset), length, kind: Hole, address, flags });
            assert!(matches!(seek_data(&liar, 99, FileOffset(5)), Err(Error::Corrupt(_))));
        }
    }
}
