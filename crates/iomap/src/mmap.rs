//! Touched pages of files that are mapped: read into the cache if they are not there, and shown; before
//! they are stored to, space is reserved for them and they are dirty.
//! Not here: windows themselves (`pagecache`), and who touched them.
//!
//! The caller holds the inode's lock: together with others to show pages, alone to have them stored to.
//! So nothing is shown of a range while it is truncated, or moves.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, FileOffset, Result};
use pagecache::{LockedFolio, PAGE_SHIFT, PAGE_SIZE, Window};

use crate::direct::wait_for_direct;
use crate::fetch::{Fetched, fetch, fill_blocks};
use crate::file::WritableFile;
use crate::read::{ReadContext, note_visit};
use crate::readahead::Readahead;
use crate::write::{cancel_reservation, unlent};

/// How often a folio that changes under who wants to show it is looked up again.
const ATTEMPTS_MAX: u32 = 64;

/// What is read at once for a page that was touched without any order, in bytes.
const READ_AROUND: usize = 64 << 10;

/// Shows `page` of a file, and what lies behind it in the same folio. If it is not cached, it is read:
/// alone unless there is a `readahead`. Gives the page after the last one shown. `NoSuchOffset` past the end of the
/// file; `OutOfMemory` if all of the cache is in use.
pub fn show(
    context: &ReadContext<'_>,
    readahead: Option<&Readahead>,
    window: &Window,
    page: u64,
) -> Result<u64> {
    for _ in 0..ATTEMPTS_MAX {
        let Some(folio) = lock_page(context, readahead, page)? else { continue };
        context.mapping.place(&folio)?;
        let pages = page..shown_end(context, window, &folio, page);
        window.show(&folio, &pages, &(page..page))?;
        return Ok(pages.end);
    }
    Err(Error::OutOfMemory)
}

/// Shows `page` of a file so that it can be stored to, and of the `pages` from it on those that lie in
/// the same folio: reserves space and makes their blocks dirty, as they will be. Gives the page after
/// the last one that can be stored to. Errors as for [`show`], and those of reserving.
///
/// `dirtied` is called when the blocks are dirty and before anything can be stored to the page, with the folio
/// locked: a sync that begins after the store must find the file.
pub fn show_for_stores(
    file: &Arc<WritableFile>,
    readahead: Option<&Readahead>,
    window: &Window,
    page: u64,
    pages: u64,
    dirtied: impl Fn(),
) -> Result<u64> {
    // As for any writer (`write_as`).
    wait_for_direct(file);
    let context = file.read_context();
    let block = u64::from(file.mapping.block_size().bytes());
    let start = (page << PAGE_SHIFT) / block * block;
    let mut reserved = Reserved { range: start..start, unplaced: file.unplaced() };
    let shown = (0..ATTEMPTS_MAX).find_map(|_| {
        let shown = store_page(
            &context,
            file,
            readahead,
            window,
            page..page + pages,
            &mut reserved,
            &dirtied,
        );
        shown.transpose()
    });
    let shown = shown.unwrap_or(Err(Error::OutOfMemory));
    let used = shown.as_ref().map_or(0, |end| end << PAGE_SHIFT);
    if used < reserved.range.end {
        cancel_reservation(file, reserved.range);
    }
    shown
}

/// The reserved range, and [`WritableFile::unplaced`] before the reservation.
struct Reserved {
    range: Range<u64>,
    unplaced: u64,
}

/// One attempt at [`show_for_stores`]; `None` when something had to be done first, or others were in
/// between. Adds to `reserved` what it reserves.
fn store_page(
    context: &ReadContext<'_>,
    file: &Arc<WritableFile>,
    readahead: Option<&Readahead>,
    window: &Window,
    pages: Range<u64>,
    reserved: &mut Reserved,
    dirtied: &impl Fn(),
) -> Result<Option<u64>> {
    let mapping = &file.mapping;
    let page = pages.start;
    let Some(folio) = lock_page(context, readahead, page)? else { return Ok(None) };
    let position = folio.folio().position();
    let block = mapping.block_size().len();
    let shown = page..shown_end(context, window, &folio, page);
    let stored = page..pages.end.min(shown.end);
    // Whole blocks, but none past the end of the file, where pages may have some.
    let start = ((page << PAGE_SHIFT) - position) as usize / block * block;
    let end = (stored.end << PAGE_SHIFT).min(context.size()) - position;
    let blocks = start..(end as usize).next_multiple_of(block);
    let is_dirty = folio.folio().dirty_run(start, blocks.len(), true) == blocks.len();
    let bytes = position + start as u64..position + blocks.end as u64;
    // Blocks that were dirty, and not reserved again, may have lost their reservation since.
    let has_space = bytes.end <= reserved.range.end && file.unplaced() == reserved.unplaced;
    if !is_dirty && !has_space {
        // Without the lock: the format may have to wait for a transaction.
        drop(folio);
        reserved.unplaced = file.unplaced();
        file.mapper.map_write(FileOffset(bytes.start), bytes.end - bytes.start)?;
        reserved.range.end = reserved.range.end.max(bytes.end);
        return Ok(None);
    }
    folio.wait_writeback();
    let Some(folio) = unlent(file, folio) else { return Ok(None) };
    mapping.place(&folio)?;
    mapping.set_dirty(&folio, blocks);
    dirtied();
    mapping.allow_stores(&folio);
    // All of a block that is dirty can be stored to.
    let stored = page..stored.end.max(bytes.end >> PAGE_SHIFT).min(shown.end);
    window.show(&folio, &shown, &stored)?;
    Ok(Some(stored.end))
}

/// The folio with `page`, all of which is uptodate, locked. `None`: look again.
fn lock_page(
    context: &ReadContext<'_>,
    readahead: Option<&Readahead>,
    page: u64,
) -> Result<Option<LockedFolio>> {
    let at = page << PAGE_SHIFT;
    let left = context.size().saturating_sub(at);
    if left == 0 {
        return Err(Error::NoSuchOffset);
    }
    let wanted = if readahead.is_some() { READ_AROUND } else { PAGE_SIZE };
    let length = usize::try_from(left).unwrap_or(usize::MAX).min(wanted);
    let folio = match fetch(context, readahead, at, length)? {
        Fetched::Folio(folio) => folio,
        Fetched::Uncached(_) => return Err(Error::OutOfMemory),
    };
    match readahead {
        Some(readahead) => {
            note_visit(context, readahead, &folio);
            readahead.set_previous(page);
        }
        None => {
            folio.keep();
            folio.visit();
        }
    }
    let start = (at - folio.position()) as usize;
    let uptodate = folio.uptodate_run(start, PAGE_SIZE, true);
    if uptodate < PAGE_SIZE {
        let end = start + PAGE_SIZE;
        fill_blocks(context, &folio, at + uptodate as u64, start..end)?;
        return Ok(None);
    }
    let locked = context.mapping.lock(&folio);
    let is_whole = locked.folio().uptodate_run(start, PAGE_SIZE, true) == PAGE_SIZE;
    Ok(Some(locked).filter(|locked| is_whole && context.mapping.holds(locked)))
}

/// The page after the last one, from `page` on, that is uptodate in a folio, in the file and in the
/// window.
fn shown_end(context: &ReadContext<'_>, window: &Window, folio: &LockedFolio, page: u64) -> u64 {
    let folio = folio.folio();
    let start = ((page << PAGE_SHIFT) - folio.position()) as usize;
    let uptodate = folio.uptodate_run(start, folio.len() - start, true) as u64;
    let end = page + (uptodate >> PAGE_SHIFT);
    end.min(context.size().div_ceil(1 << PAGE_SHIFT)).min(window.pages().end)
}
