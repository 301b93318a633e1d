//! Buffered reads, which copy data to the caller's buffer or lend it from the cache.
//! Not here: cache misses (`fetch.rs`).

pub(crate) mod cluster;
pub(crate) mod context;
pub(crate) mod copy_out;
pub(crate) mod decode;
pub(crate) mod failure;
pub(crate) mod fetch;
pub(crate) mod fill;
pub(crate) mod populate;
pub(crate) mod readahead;
pub(crate) mod uncached;

use std::ops::Deref;
use std::sync::Arc;

use base::{FileOffset, Result};
use pagecache::{Folio, FolioRef, LentFolio, PAGE_SHIFT};

use crate::caching::Caching;
use crate::read::context::ReadContext;
use crate::read::fetch::{Fetched, fetch};
use crate::read::populate::populate;
use crate::read::readahead::Readahead;

/// Reads from byte `at`. Returns the number of bytes: less than the length of the buffer only at
/// the end of the file, zero at or past it. If a part of the range cannot be read, the whole read
/// fails.
///
/// A cached read calls no format, allocates nothing and takes no exclusive lock (docs/design/io.md,
/// invariant 1): it is this loop, without calls of `fetch` and `populate`.
pub fn read(
    context: &ReadContext<'_>,
    readahead: &Readahead,
    at: FileOffset,
    buffer: &mut [u8],
) -> Result<usize> {
    let length = context.length_at(at, buffer.len());
    let mut done = 0;
    while done < length {
        let here = at.0 + done as u64;
        let into = &mut buffer[done..length];
        let cached = context.mapping.get(here >> PAGE_SHIFT);
        let mut copied = cached.map_or(0, |folio| copy(context, readahead, &folio, here, into));
        if copied == 0 {
            copied = match fetch(context, Some(readahead), here, into.len())? {
                Fetched::Folio(folio) => copy(context, readahead, &folio, here, into),
                Fetched::Uncached(bytes) => {
                    let run = bytes.len().min(into.len());
                    into[..run].copy_from_slice(&bytes[..run]);
                    run
                }
            };
        }
        done += copied;
        readahead.set_previous((at.0 + done as u64 - 1) >> PAGE_SHIFT);
    }
    Ok(length)
}

/// Lends at most `length_max` bytes from byte `at` on, from the cache and without a copy. The slice
/// is empty only if `length_max` is zero, or `at` is at or past the end of the file. It may be
/// shorter than `length_max`, since it ends with its folio, or before a part that cannot be read.
pub fn lend(
    context: &ReadContext<'_>,
    readahead: &Readahead,
    at: FileOffset,
    length_max: usize,
) -> Result<FolioSlice> {
    lend_with(context, Some(readahead), at, length_max)
}

/// [`lend`], with a choice: without `readahead`, nothing is read ahead, and the bytes are metadata,
/// whose cached blocks never change.
pub(crate) fn lend_with(
    context: &ReadContext<'_>,
    readahead: Option<&Readahead>,
    at: FileOffset,
    length_max: usize,
) -> Result<FolioSlice> {
    let length = context.length_at(at, length_max);
    if length == 0 {
        return Ok(FolioSlice { memory: Memory::Heap(Arc::from([])), start: 0, length });
    }
    let start = |folio: &FolioRef<'_>| (at.0 - folio.position()) as usize;
    let cached = context.mapping.get(at.0 >> PAGE_SHIFT);
    let folio = match cached.filter(|folio| folio.uptodate_len(start(folio), length) > 0) {
        Some(folio) => folio,
        None => match fetch(context, readahead, at.0, length)? {
            Fetched::Folio(folio) => folio,
            Fetched::Uncached(bytes) => {
                let length = bytes.len().min(length);
                return Ok(FolioSlice { memory: Memory::Heap(bytes.into()), start: 0, length });
            }
        },
    };
    let start = start(&folio);
    let length = folio.uptodate_len(start, length);
    let memory = match readahead {
        Some(readahead) => {
            note_visit(context, readahead, &folio);
            note_copied(context, readahead, &folio, at.0 + length as u64);
            readahead.set_previous((at.0 + length as u64 - 1) >> PAGE_SHIFT);
            Memory::Lent(context.mapping.lend(folio))
        }
        None => {
            folio.visit();
            Memory::Folio(folio.into_owned())
        }
    };
    Ok(FolioSlice { memory, start, length })
}

/// Copies the uptodate bytes of `folio` from byte `at` of the file on. Returns their number.
#[inline]
fn copy(
    context: &ReadContext<'_>,
    readahead: &Readahead,
    folio: &FolioRef<'_>,
    at: u64,
    into: &mut [u8],
) -> usize {
    let start = (at - folio.position()) as usize;
    let length = folio.uptodate_len(start, into.len());
    if length > 0 {
        note_visit(context, readahead, folio);
        folio.copy_to(start, &mut into[..length]);
        note_copied(context, readahead, folio, at + length as u64);
    }
    length
}

/// Removes a dropbehind folio from the cache after an uncached read has copied it up to byte `end`,
/// unless its rest is likely to be read next.
#[inline]
fn note_copied(context: &ReadContext<'_>, readahead: &Readahead, folio: &FolioRef<'_>, end: u64) {
    if context.options.caching == Caching::Dropbehind && folio.is_dropbehind() {
        let folio_end = folio.position() + folio.len() as u64;
        if end >= folio_end.min(context.size()) || !readahead.expects(end >> PAGE_SHIFT) {
            folio.set_done();
        }
    }
}

/// Counts the visit of a read that keeps folios in the cache, and starts the next readahead window
/// if `folio` has the mark for that. Does neither if the previous page of the reader is in the same
/// folio: reads of small parts of a folio are one visit.
#[inline]
pub(crate) fn note_visit(context: &ReadContext<'_>, readahead: &Readahead, folio: &FolioRef<'_>) {
    let is_kept = context.options.caching == Caching::Kept;
    if is_kept {
        folio.keep();
    }
    if readahead.previous().wrapping_sub(folio.index()) >= folio.pages() {
        if is_kept {
            folio.visit();
        }
        if folio.take_readahead() {
            if let Some(window) = readahead.next_window(context, folio.index()) {
                populate(context, &window, None);
            }
        }
    }
}

/// Bytes of a file, lent from the cache. While the slice exists, they stay in memory, and do not
/// change when the file is written to. The cache cannot use the memory for other data.
#[derive(Clone, Debug)]
pub struct FolioSlice {
    memory: Memory,
    start: usize,
    length: usize,
}

#[derive(Clone, Debug)]
enum Memory {
    /// File data, which writers do not change while it is lent.
    Lent(LentFolio),
    /// Metadata.
    Folio(Folio),
    /// A copy, since all of the cache's memory was in use.
    Heap(Arc<[u8]>),
}

impl FolioSlice {
    /// Returns the folio with the bytes, if they are cached metadata.
    pub(crate) fn folio(&self) -> Option<&Folio> {
        match &self.memory {
            Memory::Folio(folio) => Some(folio),
            Memory::Lent(_) | Memory::Heap(_) => None,
        }
    }
}

impl Deref for FolioSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Lent(folio) => folio.bytes(self.start, self.length),
            // SAFETY: the folio has metadata. Its uptodate blocks are never written to (R5 of
            // `pagecache`): a change makes a copy (`metadata/mod.rs`). Its mapping has no windows.
            Memory::Folio(folio) => unsafe { folio.bytes(self.start, self.length) },
            Memory::Heap(bytes) => &bytes[self.start..self.start + self.length],
        }
    }
}
