//! A miss: has the wanted part of a file read into the cache, and waits for it.

use std::ops::Range;
use std::sync::Arc;

use base::Result;
use pagecache::{FolioRef, PAGE_SHIFT, PAGE_SIZE};

use crate::fill::{Failure, Fill};
use crate::populate::populate;
use crate::read::ReadContext;
use crate::readahead::{Readahead, exact_window};

/// How often a folio that is evicted before it could be used is read again. In a cache with next to
/// no memory, reading past it gets further.
const ATTEMPTS_MAX: u32 = 4;

/// Where a miss found its data.
#[derive(Debug)]
pub(crate) enum Fetched<'a> {
    /// In a folio. At least the block that was asked for is uptodate.
    Folio(FolioRef<'a>),
    /// Nowhere in the cache, all of whose memory is in use: a copy, from the byte asked for on.
    Uncached(Vec<u8>),
}

/// Gets the data at byte `at` of the file, which lies before its end, and as much of the `length`
/// bytes from there on as is near. An error is about the block of `at`, and this reader's own: what
/// others tried to read ahead has no errors, and nothing remembers this one.
#[cold]
pub(crate) fn fetch<'a>(
    context: &ReadContext<'a>,
    readahead: Option<&Readahead>,
    at: u64,
    length: usize,
) -> Result<Fetched<'a>> {
    let page = at >> PAGE_SHIFT;
    let pages = ((at + length as u64 - 1) >> PAGE_SHIFT) - page + 1;
    for _ in 0..ATTEMPTS_MAX {
        let folio = match context.mapping.get(page) {
            Some(folio) => folio,
            None => {
                let window = match readahead {
                    Some(readahead) => readahead.window(context, page, pages),
                    None => exact_window(context, page, pages),
                };
                let populated = populate(context, &window, Some(page));
                match populated.wanted {
                    Some(folio) => folio,
                    None if populated.out_of_memory => break,
                    None => continue,
                }
            }
        };
        if !has(&folio, at) {
            folio.wait_unlocked();
        }
        if !has(&folio, at) {
            fill_again(context, &folio, at, length)?;
        }
        if has(&folio, at) {
            return Ok(Fetched::Folio(folio));
        }
    }
    read_past_cache(context, at).map(Fetched::Uncached)
}

/// Whether byte `at` of the file can be read from `folio`.
fn has(folio: &FolioRef<'_>, at: u64) -> bool {
    folio.uptodate_len((at - folio.position()) as usize, 1) > 0
}

/// Reads the blocks of `folio` that have bytes in `at..at + length` and are not uptodate, for this
/// reader alone, and waits for them. An error if the first one cannot be read.
fn fill_again(
    context: &ReadContext<'_>,
    folio: &FolioRef<'_>,
    at: u64,
    length: usize,
) -> Result<()> {
    let block = context.mapping.block_size().len();
    let within = (at - folio.position()) as usize;
    let start = within / block * block;
    let end = folio.len().min(within + length).next_multiple_of(block);
    match fill_blocks(context, folio, at, start..end) {
        // They were asked for together; what cannot be read may lie further on.
        Err(_) if end - start > block => fill_blocks(context, folio, at, start..start + block),
        filled => filled,
    }
}

/// Reads those of the blocks in `range` of `folio` that are not uptodate, and waits for them. An
/// error if that does not give byte `at` of the file.
pub(crate) fn fill_blocks(
    context: &ReadContext<'_>,
    folio: &FolioRef<'_>,
    at: u64,
    range: Range<usize>,
) -> Result<()> {
    let failure = Arc::new(Failure::default());
    let mut fill = Fill::new(context, folio.index() + folio.pages(), Some(Arc::clone(&failure)));
    let mut locked = context.mapping.lock(folio);
    if range.start > 0 {
        locked.skip(range.start);
    }
    let filled = fill.add(&mut locked, range.end);
    drop(locked);
    fill.submit();
    folio.wait_unlocked();
    if has(folio, at) {
        return Ok(());
    }
    filled?;
    failure.take().map_or(Ok(()), Err)
}

/// Reads the smallest folio's worth of bytes around `at` without the cache; gives those from `at`
/// on.
fn read_past_cache(context: &ReadContext<'_>, at: u64) -> Result<Vec<u8>> {
    let length = PAGE_SIZE << context.mapping.order_min();
    let start = at / length as u64 * length as u64;
    let mut bytes = vec![0; length];
    crate::uncached::read(context, start, &mut bytes)?;
    bytes.drain(..(at - start) as usize);
    Ok(bytes)
}
