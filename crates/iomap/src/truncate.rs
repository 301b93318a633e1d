//! Takes ranges of a file out of the cache, before the format takes their blocks away
//! (ARCHITECTURE.md, invariant 8).
//! Not here: the blocks, and the size on the disk.
//!
//! The caller holds the inode's lock alone, and no transaction: all of this may wait for writeback,
//! whose end may start one.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, Result};
use pagecache::{LockedFolio, PAGE_SHIFT};

use crate::direct::wait_for_direct;
use crate::file::WritableFile;
use crate::read::SIZE_MAX;
use crate::write::{unlent, zero_range, zero_tail, zero_uptodate};
use crate::writeback::{wait_for_writeback, write_back, write_back_and_wait};

/// Gives the file the size `size` in memory. Nothing past it is cached, or on its way to the device,
/// afterwards. The caller gives it that size on the disk next, and removes the blocks past it.
///
/// What a shorter size on the disk has not reached yet is written first, so that it does not pass
/// data that is not there (invariants 3 and 4); an error of that is not repeated here.
pub fn truncate_cache(file: &Arc<WritableFile>, size: u64) -> Result<()> {
    if size > SIZE_MAX {
        return Err(Error::FileTooLarge);
    }
    wait_for_direct(file);
    let (old, block) = (file.size(), u64::from(file.mapping.block_size().bytes()));
    let end_of_block = size.next_multiple_of(block);
    if size < old {
        zero_range(file, size..end_of_block)?;
        file.set_size(size);
        // What set out before this would say that the file reaches further.
        wait_for_writeback(file, size..end_of_block);
        discard(file, end_of_block..u64::MAX);
        file.mapping.cut_off_windows();
    } else if size > old {
        zero_tail(file, size)?;
        file.set_size(size);
    }
    let on_disk = file.size_on_disk();
    if size > on_disk {
        write_back_from(file, on_disk);
    }
    file.set_size_on_disk(size);
    Ok(())
}

/// Makes `range`, as far as it lies in the file, zeroes in memory: bytes of blocks that have others,
/// too, in the cache, and whole blocks by taking them out of it. The caller removes those next.
/// Gives them.
pub fn punch_cache(file: &Arc<WritableFile>, range: Range<u64>) -> Result<Range<u64>> {
    let block = u64::from(file.mapping.block_size().bytes());
    wait_for_direct(file);
    let blocks = whole_blocks(&range, file.size(), block);
    zero_range(file, range.start..blocks.start.min(range.end))?;
    zero_range(file, blocks.end.max(range.start)..range.end)?;
    if blocks.is_empty() {
        return Ok(blocks);
    }
    let (size, on_disk) = (file.size(), file.size_on_disk());
    if on_disk < size && on_disk % block > 0 && blocks.contains(&(on_disk / block * block)) {
        // The zeroes that its block ends with would be lost, and the device may have something else there.
        write_back_from(file, on_disk);
    }
    discard(file, blocks.clone());
    if range.end >= size && file.size_on_disk() < size {
        // Nothing is left there whose end of I/O would have the size on the disk grow.
        write_back_from(file, file.size_on_disk());
        file.telling().tell(&[], size)?;
    }
    Ok(blocks)
}

/// Takes all from byte `from` on out of the cache, once all of the file is on the device and the size on
/// the disk is that in memory: the caller then has the format move it. Nothing of the file is on its way
/// to the device meanwhile, whose end would change the map amid that. An error in writing is not
/// repeated here; what could not be written is lost.
pub fn detach_cache(file: &Arc<WritableFile>, from: u64) {
    wait_for_direct(file);
    write_back_from(file, 0);
    for_each_folio(file, from..u64::MAX, |folio| file.mapping.remove(folio));
}

/// Writes back what the cache has of `range`, and waits for all I/O there. The caller then has the format move the data
/// to other blocks. The cache keeps it. Errors of writeback are reported elsewhere.
pub fn quiesce_cache(file: &Arc<WritableFile>, range: Range<u64>) {
    wait_for_direct(file);
    write_back_and_wait(file, range.clone());
    // A folio that is being read is locked.
    for_each_folio(file, range, drop);
}

/// Takes note that the format has given the file this size, on the disk too, with its data moved.
pub fn set_size_moved(file: &Arc<WritableFile>, size: u64) {
    file.set_size(size);
    file.mapping.cut_off_windows();
    file.set_size_on_disk(size);
}

/// The blocks that `range` has all bytes of, as far as they lie in a file of `size` bytes; an empty
/// range, at the end of `range` or after, if there are none.
fn whole_blocks(range: &Range<u64>, size: u64, block: u64) -> Range<u64> {
    let start = range.start.next_multiple_of(block);
    let end =
        if range.end >= size { size.next_multiple_of(block) } else { range.end / block * block };
    start..end.max(start)
}

/// Writes back what is dirty from the block on that holds byte `start`, and waits for it.
pub(crate) fn write_back_from(file: &Arc<WritableFile>, start: u64) {
    let block = u64::from(file.mapping.block_size().bytes());
    let range = start / block * block..file.size();
    write_back(file, range.clone());
    wait_for_writeback(file, range);
}

/// Takes whole blocks out of the cache, or makes them zeroes there, clean ones, once what is on its
/// way to the device has arrived. What was dirty is lost.
fn discard(file: &Arc<WritableFile>, range: Range<u64>) {
    for_each_folio(file, range.clone(), |folio| discard_part(file, folio, &range));
}

/// Calls `take` for each folio that has bytes of `range`, locked and not under writeback.
pub(crate) fn for_each_folio(
    file: &Arc<WritableFile>,
    range: Range<u64>,
    mut take: impl FnMut(LockedFolio),
) {
    let mut pages = range.start >> PAGE_SHIFT..range.end.div_ceil(1 << PAGE_SHIFT);
    while let Some(page) = file.mapping.next_cached(pages.clone()) {
        pages.start = page;
        let Some(folio) = file.mapping.get(page) else { continue };
        let folio = file.mapping.lock(&folio);
        if !file.mapping.holds(&folio) {
            continue;
        }
        folio.wait_writeback();
        let end = folio.folio().index() + folio.folio().pages();
        take(folio);
        pages.start = end;
    }
}

/// Discards the blocks of one folio, locked and not under writeback, that lie in `range`.
fn discard_part(file: &Arc<WritableFile>, folio: LockedFolio, range: &Range<u64>) {
    let (position, length) = (folio.folio().position(), folio.folio().len());
    let within = |at: u64| at.saturating_sub(position).min(length as u64) as usize;
    let part = within(range.start)..within(range.end);
    if part == (0..length) {
        return file.mapping.remove(folio);
    }
    file.mapping.set_clean(&folio, part.clone());
    let Some(mut folio) = unlent(file, folio) else { return };
    zero_uptodate(&mut folio, part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_whole_if_all_of_its_bytes_in_the_file_are() {
        for (range, expected) in [
            (0..4096, 0..4096),
            (1..4096, 1024..4096),
            (1..4095, 1024..3072),
            (1024..2047, 1024..1024),
            (1100..1200, 2048..2048),
            (4000..5000, 4096..5120),
            (4096..9999, 4096..5120),
            (4990..5000, 5120..5120),
            (7000..9999, 7168..7168),
        ] {
            assert_eq!(whole_blocks(&range, 5000, 1024), expected, "{range:?}");
        }
    }
}
