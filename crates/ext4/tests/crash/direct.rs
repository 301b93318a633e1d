//! Random direct writes, and random appends of all kinds.
//! Not here: the choice of files.

use base::Result;
use iomap::{Caching, SplitExtents};
use testkit::Random;

use crate::common::cached_file::CachedFile;
use testkit::crash::FileHistory;

/// Bytes that the device writes atomically.
pub const SECTOR: usize = 512;

fn split(random: &mut Random) -> SplitExtents {
    match random.below(2) {
        0 => SplitExtents::AtEnd,
        _ => SplitExtents::Before,
    }
}

/// Writes sectors or whole blocks directly, usually in the middle of a file, otherwise at the end
/// or past it. All bytes are before `size_max`, rounded up to a sector. Returns whether all new
/// data is on the device, if no data was dirty before.
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
    // Zeroing of the rest of the previous last block goes through the cache.
    Ok(around && written.start <= size)
}

/// Appends to a file, cached or directly.
pub fn append(file: &CachedFile, history: &mut FileHistory, random: &mut Random) -> Result<()> {
    let at = history.now().len();
    let end = at + 1 + random.below(1800) as usize;
    // Data that begins and ends at sectors can be written directly.
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
