//! Writes around the cache at random, and appending to a file by all ways. Not here: who does that when.

use base::Result;
use iomap::{Caching, SplitExtents};
use testkit::Random;

use crate::common::cached_file::CachedFile;
use testkit::crash::FileHistory;

/// The bytes of what the device writes as a whole.
pub const SECTOR: usize = 512;

fn split(random: &mut Random) -> SplitExtents {
    match random.below(2) {
        0 => SplitExtents::AtEnd,
        _ => SplitExtents::Before,
    }
}

/// Writes some sectors, or whole blocks, in the middle of a file as a rule, else at the end or beyond it;
/// no byte at `size_max`, or the next sector, or after. Whether all that is new is on the device then, if
/// nothing was in the cache only.
pub fn write_somewhere(
    file: &CachedFile,
    history: &mut FileHistory,
    random: &mut Random,
    size_max: u64,
) -> Result<bool> {
    let (size, size_max) = (history.now().len(), (size_max as usize).next_multiple_of(SECTOR));
    let at = match random.below(6) {
        0 => random.below(size_max as u64 / 2) as usize,
        1..=2 => size.next_multiple_of(SECTOR),
        _ => random.below(size as u64 + 1) as usize,
    };
    let at = at.min(size_max - SECTOR) / SECTOR * SECTOR;
    let bits = random.below(6);
    let end = (at + (1 + random.below(1 << bits) as usize) * SECTOR).min(size_max);
    let block = file.inode.volume().geometry().block_size.bytes() as usize;
    let whole = at / block * block..end.next_multiple_of(block);
    let written = if random.below(2) == 0 && whole.end <= size_max { whole } else { at..end };
    let data = history.bytes(written.start, written.len());
    let (split, alone) = (split(random), random.below(4) == 0);
    let around = file.write_direct(written.start, &data, split, alone)?;
    history.write(written.start, &data);
    // What zeroes the end of what was the last block goes through the cache.
    Ok(around && written.start <= size)
}

/// Appends to a file, through the cache or around it.
pub fn append(file: &CachedFile, history: &mut FileHistory, random: &mut Random) -> Result<()> {
    let at = history.now().len();
    let end = at + 1 + random.below(1800) as usize;
    // What follows whole sectors can go around the cache.
    let end = if random.below(4) > 0 { end.next_multiple_of(SECTOR) } else { end };
    let data = history.bytes(at, end - at);
    let is_whole = at % SECTOR == 0 && end % SECTOR == 0;
    match random.below(4) {
        0..=1 if is_whole => {
            file.write_direct(at, &data, split(random), false)?;
        }
        2 => file.write_as(at, &data, Caching::Dropbehind)?,
        _ => file.write(at, &data)?,
    }
    history.write(at, &data);
    Ok(())
}
