//! Removal of ranges of a file from the cache, before the format frees their blocks
//! (docs/design/io.md, invariant 8). Not here: the blocks, and the size on the disk.
//!
//! The caller holds the inode's lock alone, and no transaction: the removal may wait for writeback,
//! whose end of I/O may start one.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, Result};
use pagecache::LockedFolio;

use crate::file::WritableFile;
use crate::folios::for_each_folio;
use crate::read::context::SIZE_MAX;
use crate::write::{unlent, zero_range, zero_tail, zero_uptodate};
use crate::writeback::{wait_for_writeback, write_back_and_wait, write_back_from};

/// Sets the file's size in memory to `size`. Afterwards nothing past it is cached or under
/// writeback. The caller sets the size on the disk next, frees the blocks past it, and calls
/// [`note_size_on_disk`].
///
/// If the size on the disk is to grow, the data before the new size is written first, so that the
/// size on the disk passes no missing data (invariants 3 and 4). The file's errors have the errors
/// of that.
pub fn truncate_cache(file: &Arc<WritableFile>, size: u64) -> Result<()> {
    if size > SIZE_MAX {
        return Err(Error::FileTooLarge);
    }
    file.wait_for_direct();
    let old = file.size();
    let block = u64::from(file.mapping.block_size().bytes());
    let end_of_block = size.next_multiple_of(block);
    if size < old {
        zero_range(file, size..end_of_block)?;
        file.set_size(size);
        // Otherwise the end of earlier I/O would set a larger size on the disk.
        wait_for_writeback(file, size..end_of_block);
        discard(file, end_of_block..u64::MAX);
        file.mapping.truncate_windows();
    } else if size > old {
        zero_tail(file, size)?;
    }
    let on_disk = file.size_on_disk();
    if size > on_disk {
        // The size on the disk grows only when the caller sets it. Until then, an end of I/O must
        // not set one that the file has not had.
        write_back_from(file, on_disk);
    } else {
        file.set_size_on_disk(size);
    }
    if size > old {
        file.set_size(size);
    }
    Ok(())
}

/// Records that the caller has set the size on the disk to the file's size, after
/// [`truncate_cache`]. The caller still holds the inode's lock.
pub fn note_size_on_disk(file: &Arc<WritableFile>) {
    file.set_size_on_disk(file.size());
}

/// Makes `range`, as far as it is in the file, read as zeroes in memory: zeroes parts of blocks in
/// the cache, and removes whole blocks from the cache. Returns the whole blocks, which the caller
/// frees next.
pub fn punch_cache(file: &Arc<WritableFile>, range: Range<u64>) -> Result<Range<u64>> {
    let block = u64::from(file.mapping.block_size().bytes());
    file.wait_for_direct();
    let blocks = whole_blocks(&range, file.size(), block);
    zero_range(file, range.start..blocks.start.min(range.end))?;
    zero_range(file, blocks.end.max(range.start)..range.end)?;
    if blocks.is_empty() {
        return Ok(blocks);
    }
    let size = file.size();
    let on_disk = file.size_on_disk();
    if on_disk < size && on_disk % block > 0 && blocks.contains(&(on_disk / block * block)) {
        // The zeroes at the end of this block would be lost, and the device may have other data
        // there.
        write_back_from(file, on_disk);
    }
    discard(file, blocks.clone());
    if range.end >= size && file.size_on_disk() < size {
        // No data is left there whose end of I/O would make the size on the disk grow.
        write_back_from(file, file.size_on_disk());
        let ended = file.lock_end_io().end_io(&[], size);
        ended.inspect_err(|error| file.record_error(error.clone()))?;
    }
    Ok(blocks)
}

/// Writes back the file, waits for all of its I/O, and removes all data from byte `from` on from
/// the cache, so that the caller can have the format move it. No end of I/O changes the map during
/// the move. The file's errors have the errors of writeback; data that could not be written is
/// lost.
pub fn detach_cache(file: &Arc<WritableFile>, from: u64) {
    file.wait_for_direct();
    write_back_from(file, 0);
    for_each_folio(file, from..u64::MAX, |folio| file.mapping.remove(folio));
}

/// Removes all data from the cache, after all of its I/O has ended. Dirty data is lost, so that the
/// caller can have the format restore the file.
pub fn drop_cache(file: &Arc<WritableFile>) {
    file.wait_for_direct();
    discard(file, 0..u64::MAX);
}

/// Writes back dirty data in `range`, and waits for all I/O there, so that the caller can have the
/// format move the data to other blocks. The cache keeps the data. The file's errors have the
/// errors of writeback.
pub fn quiesce_cache(file: &Arc<WritableFile>, range: Range<u64>) {
    file.wait_for_direct();
    write_back_and_wait(file, range.clone());
    // Locks each folio once: folios that are being read are locked.
    for_each_folio(file, range, drop);
}

/// Records the new size of a file whose data the format has moved. The size on the disk is the
/// same.
pub fn set_size_after_move(file: &Arc<WritableFile>, size: u64) {
    file.set_size(size);
    file.mapping.truncate_windows();
    file.set_size_on_disk(size);
}

/// Returns the blocks that `range` covers as a whole, as far as they are in a file of `size` bytes.
/// If there are none, returns an empty range at or after the end of `range`.
fn whole_blocks(range: &Range<u64>, size: u64, block: u64) -> Range<u64> {
    let start = range.start.next_multiple_of(block);
    let end =
        if range.end >= size { size.next_multiple_of(block) } else { range.end / block * block };
    start..end.max(start)
}

/// Removes whole blocks from the cache, or zeroes them there as clean ones, after their writeback
/// has ended. Dirty data in them is lost.
fn discard(file: &Arc<WritableFile>, range: Range<u64>) {
    for_each_folio(file, range.clone(), |folio| discard_part(file, folio, &range));
}

/// Discards the blocks of one folio, locked and not under writeback, that lie in `range`.
fn discard_part(file: &Arc<WritableFile>, folio: LockedFolio, range: &Range<u64>) {
    let position = folio.folio().position();
    let length = folio.folio().len();
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
    fn a_block_is_whole_if_the_range_has_all_of_its_bytes_in_the_file() {
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
