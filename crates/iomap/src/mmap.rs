//! Faults in mapped files. A page is read into the cache if necessary, and mapped into the window.
//! Before a store, space is reserved for the page, and it becomes dirty. Not here: the windows
//! (`pagecache`), and the reception of faults (`vfs`).
//!
//! The caller holds the inode's lock: shared to show pages, alone for stores. So no page of a range
//! is shown while the range is truncated or moved.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, FileOffset, Result};
use pagecache::{LockedFolio, MapWindow, PAGE_SHIFT, PAGE_SIZE};

use crate::file::WritableFile;
use crate::read::context::ReadContext;
use crate::read::fetch::{Fetched, absent_in_cluster, fetch, fill_blocks};
use crate::read::note_visit;
use crate::read::readahead::Readahead;
use crate::write::{cancel_reservation, unlent};

/// The maximum number of attempts of a fault because its folio has changed.
const ATTEMPTS_MAX: u32 = 64;

/// The number of bytes that a fault with readahead wants.
const READ_AROUND: usize = 64 << 10;

/// Shows `page` of a file, and the pages behind it in the same folio. If the page is not cached, it
/// is read, with other pages if there is a `readahead`. Returns the page after the last one shown.
/// Errors: `NoSuchOffset` past the end of the file, `OutOfMemory` if all of the cache is in use.
pub fn fault_for_load(
    context: &ReadContext<'_>,
    readahead: Option<&Readahead>,
    window: &MapWindow,
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

/// Shows `page` of a file for stores, and the pages behind it in the same folio, at most `pages` in
/// all: reserves space and makes their blocks dirty. Returns the page after the last one that can
/// be stored to. Errors: those of [`fault_for_load`], and of the reservation.
///
/// `dirtied` is called when the blocks are dirty and before anything can be stored to the page,
/// with the folio locked: a sync that begins after the store must find the file.
pub fn fault_for_store(
    file: &Arc<WritableFile>,
    readahead: Option<&Readahead>,
    window: &MapWindow,
    page: u64,
    pages: u64,
    dirtied: impl Fn(),
) -> Result<u64> {
    // As every writer (`write_as`).
    file.wait_for_direct();
    let context = file.read_context();
    let block = u64::from(file.mapping.block_size().bytes());
    let start = (page << PAGE_SHIFT) / block * block;
    let mut reserved =
        Reserved { range: start..start, cancelled_reservations: file.cancelled_reservations() };
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

/// The reserved range, and [`WritableFile::cancelled_reservations`] before the reservation.
struct Reserved {
    range: Range<u64>,
    cancelled_reservations: u64,
}

/// Tries [`fault_for_store`] once. Returns `None` if the folio has changed, or space was reserved
/// first, which is added to `reserved`.
fn store_page(
    context: &ReadContext<'_>,
    file: &Arc<WritableFile>,
    readahead: Option<&Readahead>,
    window: &MapWindow,
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
    // Whole blocks, but none past the end of the file, where the page may have some.
    let start = ((page << PAGE_SHIFT) - position) as usize / block * block;
    let end = (stored.end << PAGE_SHIFT).min(context.size()) - position;
    let blocks = start..(end as usize).next_multiple_of(block);
    let is_dirty = folio.folio().dirty_run(start, blocks.len(), true) == blocks.len();
    let bytes = position + start as u64..position + blocks.end as u64;
    // Blocks that were dirty, and not reserved again, may have lost their reservation since.
    let has_space = bytes.end <= reserved.range.end
        && file.cancelled_reservations() == reserved.cancelled_reservations;
    if !is_dirty && !has_space {
        // Without the lock: the format may have to wait for a transaction.
        drop(folio);
        reserved.cancelled_reservations = file.cancelled_reservations();
        file.mapper.map_write(FileOffset(bytes.start), bytes.end - bytes.start)?;
        reserved.range.end = reserved.range.end.max(bytes.end);
        return Ok(None);
    }
    if let Some(block) = absent_in_cluster(context, folio.folio(), &blocks)? {
        let owned = folio.folio().clone();
        drop(folio);
        let at = position + block as u64;
        fill_blocks(context, &mapping.borrow(&owned), at, block..block + 1)?;
        return Ok(None);
    }
    folio.wait_writeback();
    let Some(folio) = unlent(file, folio) else { return Ok(None) };
    mapping.place(&folio)?;
    mapping.set_dirty(&folio, blocks);
    dirtied();
    mapping.allow_stores(&folio);
    // Pages of a block that is dirty can be stored to.
    let stored = page..stored.end.max(bytes.end >> PAGE_SHIFT).min(shown.end);
    window.show(&folio, &shown, &stored)?;
    Ok(Some(stored.end))
}

/// Returns the locked folio with `page`, if all of the page is uptodate. Returns `None` if the
/// caller has to try again.
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

/// Returns the page after the last one, from `page` on, that is uptodate in a folio, in the file
/// and in the window.
fn shown_end(context: &ReadContext<'_>, window: &MapWindow, folio: &LockedFolio, page: u64) -> u64 {
    let folio = folio.folio();
    let start = ((page << PAGE_SHIFT) - folio.position()) as usize;
    let uptodate = folio.uptodate_run(start, folio.len() - start, true) as u64;
    let end = page + (uptodate >> PAGE_SHIFT);
    end.min(context.size().div_ceil(1 << PAGE_SHIFT)).min(window.pages().end)
}
