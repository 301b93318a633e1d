//! SEEK_DATA and SEEK_HOLE, from a file's mapping and from cached data in unwritten blocks.

use base::{Error, FileOffset, Result};
use pagecache::{Mapping, PAGE_SHIFT};

use crate::mapping::{IomapKind, map_at};
use crate::read::context::ReadContext;

/// How often a range is examined again because the generation has changed.
const ATTEMPTS_MAX: u32 = 8;

/// Returns the first byte of data at or after `at`. Unwritten blocks without cached data are a
/// hole. Errors: `NoSuchOffset` if there is no data, or `at` is at or past the end.
pub fn seek_data(context: &ReadContext<'_>, at: FileOffset) -> Result<FileOffset> {
    first(context, at, true)?.ok_or(Error::NoSuchOffset)
}

/// Returns the first byte of a hole at or after `at`. The end of the file counts as a hole. Errors:
/// `NoSuchOffset` if `at` is at or past the end.
pub fn seek_hole(context: &ReadContext<'_>, at: FileOffset) -> Result<FileOffset> {
    if at.0 >= context.size() {
        return Err(Error::NoSuchOffset);
    }
    Ok(first(context, at, false)?.unwrap_or(FileOffset(context.size())))
}

/// Returns the first byte at or after `at` that is data, or that is in a hole, as `wants_data`
/// says.
fn first(
    context: &ReadContext<'_>,
    at: FileOffset,
    wants_data: bool,
) -> Result<Option<FileOffset>> {
    let mut here = at.0;
    while here < context.size() {
        let (is_data, end) = run_at(context, here)?;
        if is_data == wants_data {
            return Ok(Some(FileOffset(here)));
        }
        here = end;
    }
    Ok(None)
}

/// Returns whether the bytes from `here` on are data, and the byte up to which this is known.
fn run_at(context: &ReadContext<'_>, here: u64) -> Result<(bool, u64)> {
    let mapper = context.mapper;
    for _ in 0..ATTEMPTS_MAX {
        let generation = mapper.generation();
        let map = map_at(mapper, FileOffset(here), context.size() - here)?;
        match map.kind {
            IomapKind::Hole => return Ok((false, map.end())),
            IomapKind::Delalloc | IomapKind::Mapped | IomapKind::Inline | IomapKind::Encoded => {
                return Ok((true, map.end()));
            }
            IomapKind::Unwritten => {
                let run = cached_run(context.mapping, here, map.end().min(context.size()));
                // Otherwise dirty data may have become clean since the mapping was returned, and
                // the blocks written.
                if mapper.generation() == generation {
                    return Ok(run);
                }
            }
        }
    }
    // Writeback around `here` does not stop, so there is data. Zeroes that are reported as data do
    // no harm.
    Ok((true, here + 1))
}

/// Returns whether the cache has data at `here` for unwritten blocks, and the byte, at most `end`,
/// up to which this holds.
fn cached_run(mapping: &Mapping, here: u64, end: u64) -> (bool, u64) {
    let pages = here >> PAGE_SHIFT..end.div_ceil(1 << PAGE_SHIFT);
    let Some(folio) = mapping.get_locked(pages.start) else {
        let next = mapping.next_cached(pages.start + 1..pages.end);
        return (false, next.map_or(end, |page| (page << PAGE_SHIFT).min(end)));
    };
    // While the folio is locked, its state does not change from dirty to under writeback.
    let folio = folio.folio();
    let within = (here - folio.position()) as usize;
    let length = (end - here).min((folio.len() - within) as u64) as usize;
    let run = |is_data| {
        if folio.is_under_writeback() {
            // The blocks under writeback are not recorded, but they are uptodate.
            folio.uptodate_run(within, length, is_data)
        } else {
            folio.dirty_run(within, length, is_data)
        }
    };
    match run(true) {
        0 => (false, here + run(false) as u64),
        data => (true, here + data as u64),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::BlockSize;
    use device::{MemoryDevice, SharedDevice};
    use pagecache::{CacheOptions, PageCache};

    use super::*;
    use crate::mapping::{Iomap, MapFlags, MapRead};
    use crate::read::context::ReadOptions;

    /// Calls `seek` for a file of `size` bytes without cached data.
    fn with_context<R>(mapper: &dyn MapRead, size: u64, seek: impl Fn(&ReadContext<'_>) -> R) -> R {
        let cache = PageCache::new(CacheOptions { bytes_max: 1 << 20, folio_order_max: 0 });
        let mapping = cache.unwrap().new_mapping(BlockSize::from_bytes(4096).unwrap());
        let device: SharedDevice = Arc::new(MemoryDevice::new(Vec::new()));
        let options = ReadOptions::default();
        seek(&ReadContext { mapping: &mapping, mapper, device: &device, size, options })
    }

    fn data(mapper: &dyn MapRead, size: u64, at: FileOffset) -> Result<FileOffset> {
        with_context(mapper, size, |context| seek_data(context, at))
    }

    fn hole(mapper: &dyn MapRead, size: u64, at: FileOffset) -> Result<FileOffset> {
        with_context(mapper, size, |context| seek_hole(context, at))
    }

    /// A file of adjacent ranges.
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
        for (from, first_data, first_hole) in
            [(0, 10, 0), (9, 10, 9), (15, 15, 30), (35, 40, 35), (44, 44, 45)]
        {
            assert_eq!(
                data(&file, 45, FileOffset(from)),
                Ok(FileOffset(first_data)),
                "from {from}"
            );
            assert_eq!(
                hole(&file, 45, FileOffset(from)),
                Ok(FileOffset(first_hole)),
                "from {from}"
            );
        }
        for from in [45, 46, u64::MAX] {
            assert_eq!(data(&file, 45, FileOffset(from)), Err(Error::NoSuchOffset));
            assert_eq!(hole(&file, 45, FileOffset(from)), Err(Error::NoSuchOffset));
        }
        assert_eq!(data(&file, 40, FileOffset(31)), Err(Error::NoSuchOffset));
        let file = File(vec![(Hole, 10), (Delalloc, 10)]);
        assert_eq!(data(&file, 20, FileOffset(0)), Ok(FileOffset(10)));
        assert_eq!(hole(&File(vec![(Inline, 60)]), 50, FileOffset(3)), Ok(FileOffset(50)));
    }

    #[test]
    fn a_range_that_is_empty_or_does_not_contain_the_byte_is_an_error() {
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
            assert!(matches!(data(&liar, 99, FileOffset(5)), Err(Error::Corrupt(_))));
        }
    }
}
