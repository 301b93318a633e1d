//! Cache misses: a part of a file is read into the cache, and waited for.

use std::ops::Range;
use std::sync::Arc;

use base::{FileOffset, Result};
use pagecache::{Folio, FolioRef, PAGE_SHIFT, PAGE_SIZE};

use crate::mapping::{IomapKind, map_at};
use crate::read::cluster::clusters_at_ends;
use crate::read::context::ReadContext;
use crate::read::failure::Failure;
use crate::read::fill::Fill;
use crate::read::populate::populate;
use crate::read::readahead::{Readahead, exact_window};

/// The maximum number of attempts to read a folio that is evicted before it is used. In a cache
/// with almost no memory, a read without the cache is better.
const ATTEMPTS_MAX: u32 = 4;

/// The data of a miss.
#[derive(Debug)]
pub(crate) enum Fetched<'a> {
    /// A folio. At least the requested block is uptodate.
    Folio(FolioRef<'a>),
    /// A copy from the requested byte on, since all of the cache's memory is in use.
    Uncached(Vec<u8>),
}

/// Returns the data at byte `at` of the file, which is before its end. Reads as much of the
/// `length` bytes from there on as is cheap. Errors: those of the block with `at`, for this reader
/// only. Errors of readahead are not reported, and no error is kept.
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
        if !is_uptodate(&folio, at) {
            folio.wait_unlocked();
        }
        if !is_uptodate(&folio, at) {
            fill_again(context, &folio, at, length)?;
        }
        if is_uptodate(&folio, at) {
            return Ok(Fetched::Folio(folio));
        }
    }
    read_without_cache(context, at).map(Fetched::Uncached)
}

/// Returns whether byte `at` of the file is uptodate in `folio`.
fn is_uptodate(folio: &FolioRef<'_>, at: u64) -> bool {
    folio.uptodate_len((at - folio.position()) as usize, 1) > 0
}

/// Reads the blocks of `folio` that have bytes in `at..at + length` and are not uptodate, and waits
/// for them. Errors: those of the first block.
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
        // The block that cannot be read may be a later one.
        Err(_) if end - start > block => fill_blocks(context, folio, at, start..start + block),
        filled => filled,
    }
}

/// Reads the blocks in `range` of `folio` that are not uptodate, and those of the same clusters,
/// and waits for them. Errors: those of the reads, if byte `at` of the file is not uptodate
/// afterwards.
pub(crate) fn fill_blocks(
    context: &ReadContext<'_>,
    folio: &FolioRef<'_>,
    at: u64,
    range: Range<usize>,
) -> Result<()> {
    let range = whole_clusters(context, folio, range);
    let failure = Arc::new(Failure::default());
    let mut fill = Fill::new(context, folio.index() + folio.pages(), Some(Arc::clone(&failure)));
    let mut locked = context.mapping.lock(folio);
    if !context.mapping.holds(&locked) {
        // Only a folio in the mapping shows a format that moves the block that it is being read
        // (`EarlierReads`).
        return Ok(());
    }
    if range.start > 0 {
        locked.skip(range.start);
    }
    let filled = fill.add(&mut locked, range.end);
    drop(locked);
    fill.submit();
    folio.wait_unlocked();
    if is_uptodate(folio, at) {
        return Ok(());
    }
    filled?;
    failure.take().map_or(Ok(()), Err)
}

/// Returns a block of `folio` that must be read before a part of `range` becomes dirty: one of a
/// cluster that the device has in another form, and that `range` covers in part. Such a cluster is
/// written as a whole.
pub(crate) fn absent_in_cluster(
    context: &ReadContext<'_>,
    folio: &Folio,
    range: &Range<usize>,
) -> Result<Option<usize>> {
    let Some(cluster) = context.mapper.cluster_bytes() else { return Ok(None) };
    let block = u64::from(context.mapping.block_size().bytes());
    let cluster = cluster as usize;
    let first = range.start / cluster * cluster;
    let last = range.end.saturating_sub(1) / cluster * cluster;
    let end_of_file = context.size().next_multiple_of(block).saturating_sub(folio.position());
    let end_of_file = usize::try_from(end_of_file).unwrap_or(usize::MAX).min(folio.len());
    for start in [first, last] {
        let end = (start + cluster).min(end_of_file);
        if start >= end || range.start <= start && end <= range.end {
            continue;
        }
        let uptodate = folio.uptodate_run(start, end - start, true);
        if uptodate == end - start {
            continue;
        }
        let at = folio.position() + start as u64;
        if map_at(context.mapper, FileOffset(at), cluster as u64)?.kind == IomapKind::Encoded {
            return Ok(Some(start + uptodate));
        }
    }
    Ok(None)
}

/// Returns the bytes of `folio` that are in `range`, or in the clusters at its ends.
fn whole_clusters(
    context: &ReadContext<'_>,
    folio: &FolioRef<'_>,
    range: Range<usize>,
) -> Range<usize> {
    let position = folio.position();
    let bytes = position + range.start as u64..position + range.end as u64;
    let [first, last] = clusters_at_ends(context, bytes);
    let start = first.map_or(range.start, |first| first.start.saturating_sub(position) as usize);
    let end = last.map_or(range.end, |last| (last.end - position).min(folio.len() as u64) as usize);
    start..end.max(range.end)
}

/// Reads as many bytes around `at` as the smallest folio has, or one block of a file that is
/// verified, without the cache. Returns those from `at` on.
fn read_without_cache(context: &ReadContext<'_>, at: u64) -> Result<Vec<u8>> {
    let length = match context.mapper.is_verified() {
        true => context.mapping.block_size().len(),
        false => PAGE_SIZE << context.mapping.order_min(),
    };
    let start = at / length as u64 * length as u64;
    let mut bytes = vec![0; length];
    crate::read::uncached::read(context, start, &mut bytes)?;
    bytes.drain(..(at - start) as usize);
    Ok(bytes)
}
