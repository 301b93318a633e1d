//! Buffered reads: copied into the caller's buffer, or lent.

use std::ops::Deref;
use std::sync::Arc;

use base::{Error, FileOffset, Place, Problem, Result};
use device::SharedDevice;
use pagecache::Mapping;

use crate::mapping::{IomapKind, MapRead, map_at};

/// The greatest size of a file, in bytes: what a signed 64-bit offset can name.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Switches and bounds of the read path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOptions {
    /// Bytes of a read in flight are added to the folio's count once per mapped run, not once per
    /// block.
    pub batch_pending_accounting: bool,
    /// A folio that one mapping in one request covers gets no per-block state.
    pub skip_folio_state: bool,
    /// The most bytes that are read ahead at a time.
    pub readahead_bytes_max: u32,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            batch_pending_accounting: true,
            skip_folio_state: true,
            readahead_bytes_max: 4 << 20,
        }
    }
}

/// What a read needs to know of its file.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    /// The cached folios.
    pub mapping: &'a Mapping,
    /// Where the file's ranges lie.
    pub mapper: &'a dyn MapRead,
    /// The device they lie on.
    pub device: &'a SharedDevice,
    /// The size in bytes.
    pub size: u64,
    /// Switches and bounds.
    pub options: ReadOptions,
}

/// How one open file has been read so far, and so what to read ahead. Shared by the threads that
/// read through the same open file.
#[derive(Debug, Default)]
pub struct Readahead {}

/// Reads from byte `at`. Gives the number of bytes: less than the buffer's only at the end of the
/// file, zero at or past it. When part of the range cannot be read, all of it fails.
pub fn read(
    context: &ReadContext<'_>,
    _readahead: &Readahead,
    at: FileOffset,
    buffer: &mut [u8],
) -> Result<usize> {
    let left = context.size.min(SIZE_MAX).saturating_sub(at.0);
    let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
    let mut done = 0;
    while done < length {
        let here = FileOffset(at.0 + done as u64);
        let map = map_at(context.mapper, here, (length - done) as u64)?;
        let run = usize::try_from(map.end() - here.0).unwrap_or(usize::MAX).min(length - done);
        let into = &mut buffer[done..done + run];
        match (map.kind, map.address) {
            (IomapKind::Mapped, Some(address)) => {
                let from = address.checked_add(here.0 - map.offset.0).ok_or_else(|| {
                    let problem = Problem::Invalid { field: "address", found: address.0 };
                    Error::corrupt("file mapping", Place::default(), problem)
                })?;
                context.device.read_at(from, into)?;
            }
            (IomapKind::Inline, _) => {
                let data = context.mapper.inline_data()?;
                let start = usize::try_from(here.0).unwrap_or(usize::MAX).min(data.len());
                let here = &data[start..data.len().min(start.saturating_add(run))];
                into[..here.len()].copy_from_slice(here);
                into[here.len()..].fill(0);
            }
            _ => into.fill(0),
        }
        done += run;
    }
    Ok(length)
}

/// Lends at most `length_max` cached bytes from byte `at`, without a copy. The slice is not empty
/// unless `at` lies at or past the end of the file; it can be shorter than asked for, since it ends
/// with its folio.
pub fn lend(
    context: &ReadContext<'_>,
    readahead: &Readahead,
    at: FileOffset,
    length_max: usize,
) -> Result<FolioSlice> {
    let folio_end = (at.0 | (64 << 10) - 1).saturating_add(1);
    let length = usize::try_from(folio_end - at.0).unwrap_or(usize::MAX).min(length_max);
    let mut bytes = vec![0; length];
    let length = read(context, readahead, at, &mut bytes)?;
    bytes.truncate(length);
    Ok(FolioSlice { bytes: bytes.into() })
}

/// Bytes of a file, lent from the cache; they stay in memory while it is held.
#[derive(Clone, Debug)]
pub struct FolioSlice {
    bytes: Arc<[u8]>,
}

impl Deref for FolioSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
