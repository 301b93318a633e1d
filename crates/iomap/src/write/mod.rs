//! Buffered writes into the cache. Space is reserved for the whole write at once, and no block is
//! allocated (docs/design/io.md, invariant 2). Not here: writeback (`writeback/mod.rs`).

pub(crate) mod truncate;

use std::ops::Range;
use std::sync::Arc;

use base::{Error, FileOffset, Location, Problem, Result};
use pagecache::{Folio, Insertion, LockedFolio, ORDER_MAX, PAGE_SHIFT};
use smallvec::SmallVec;

use crate::caching::{Caching, drop_behind};
use crate::file::WritableFile;
use crate::folios::for_each_folio;
use crate::mapping::{IomapKind, LastMap, map_at};
use crate::read::context::{ReadContext, SIZE_MAX};
use crate::read::fetch::{absent_in_cluster, fill_blocks};
use crate::writeback::{wait_for_writeback, write_back};

/// The maximum number of attempts of a write because its folio has changed.
const ATTEMPTS_MAX: u32 = 64;
/// The byte of a file from which on data is written with non-temporal stores. Small files are often
/// read as soon as they are written.
const STREAMED_FROM: u64 = 1 << 20;

/// Writes `data` at byte `at`, in memory. Returns the number of bytes written. It is less than the
/// length of `data` if there was an error; the next write reports that. The caller holds the
/// inode's lock alone, and no transaction. Errors: `OutOfMemory` if dirty and lent folios fill the
/// cache; callers throttle by [`DirtyLimits`](crate::DirtyLimits) before.
pub fn write(file: &Arc<WritableFile>, at: FileOffset, data: &[u8]) -> Result<usize> {
    write_as(file, at, data, Caching::Kept)
}

/// [`write`](fn@write), with a choice for the folios that it adds: dropbehind ones leave the cache
/// after their writeback; see [`WriteBehind`](crate::WriteBehind).
pub fn write_as(
    file: &Arc<WritableFile>,
    at: FileOffset,
    data: &[u8],
    caching: Caching,
) -> Result<usize> {
    let end = at.0.checked_add(data.len() as u64).filter(|&end| end <= SIZE_MAX);
    let end = end.ok_or(Error::FileTooLarge)?;
    if data.is_empty() {
        return Ok(0);
    }
    // Dirty blocks are written back as a whole, and would overwrite parts that are being written
    // around the cache with older data.
    file.wait_for_direct();
    if at.0 > file.size() {
        zero_tail(file, at.0)?;
    }
    let mut writer = Writer::new(file);
    writer.caching = caching;
    writer.extends = true;
    let mut done = 0;
    while done < data.len() {
        let here = at.0 + done as u64;
        match writer.write_folio(here, Source::Data(&data[done..])) {
            Ok(written) => done += written,
            Err(error) => {
                if writer.reserved {
                    cancel_reservation(file, here..end);
                }
                drop_behind(&file.mapping, here >> PAGE_SHIFT..end.div_ceil(1 << PAGE_SHIFT));
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
    }
    Ok(done)
}

/// Zeroes the bytes of `range` within the file in memory, if the device or the cache may have other
/// data. Reserves and allocates nothing. Inline data is only removed from the cache, since the
/// format changes it itself. The caller holds the inode's lock alone.
pub fn zero_range(file: &Arc<WritableFile>, range: Range<u64>) -> Result<()> {
    let end = range.end.min(file.size());
    Writer::new(file).zero(range.start..end)
}

/// Zeroes the bytes after the end of the file in its last block, up to byte `end`, to which the
/// file is about to grow.
pub(crate) fn zero_tail(file: &Arc<WritableFile>, end: u64) -> Result<()> {
    let size = file.size();
    let block = u64::from(file.mapping.block_size().bytes());
    if let Some(folio) = file.mapping.get(size >> PAGE_SHIFT).filter(|_| file.mapping.is_mapped()) {
        // The next store to the page is a fault again, which makes the page dirty: bytes that
        // programs stored past the end are zeroed here, but later stores may be in the file.
        file.mapping.protect(&file.mapping.lock(&folio));
    }
    Writer::new(file).zero(size..end.min(size.next_multiple_of(block)))
}

/// The data of a write.
#[derive(Clone, Copy)]
enum Source<'d> {
    Data(&'d [u8]),
    Zeroes(u64),
}

impl Source<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zeroes(length) => *length,
        }
    }
}

/// One write.
struct Writer<'f> {
    file: &'f Arc<WritableFile>,
    /// The file when the write began: data past that size is new.
    context: ReadContext<'f>,
    caching: Caching,
    block: usize,
    map: LastMap,
    /// Whether space is reserved for the rest of the write.
    reserved: bool,
    /// [`WritableFile::cancelled_reservations`] before the writer looked for dirty blocks or
    /// reserved space.
    cancelled_reservations: u64,
    /// Whether the write extends the file.
    extends: bool,
}

impl<'f> Writer<'f> {
    fn new(file: &'f Arc<WritableFile>) -> Self {
        let context = file.read_context();
        Self {
            file,
            context,
            caching: context.options.caching,
            block: file.mapping.block_size().len(),
            map: LastMap::default(),
            reserved: false,
            cancelled_reservations: file.cancelled_reservations(),
            extends: false,
        }
    }

    /// Writes to one folio from byte `here` on. Returns the number of bytes. Zeroes are written
    /// only to blocks with space: returns 0 if that has changed since [`next_run`](Self::next_run).
    fn write_folio(&mut self, here: u64, source: Source<'_>) -> Result<usize> {
        let end = here + source.len();
        for _ in 0..ATTEMPTS_MAX {
            self.reserve(here, end, source)?;
            let Some(mut folio) = self.lock_folio(here, end)? else { continue };
            let position = folio.folio().position();
            let within = (here - position) as usize;
            let length = (end - here).min((folio.folio().len() - within) as u64) as usize;
            let range = within..within + length;
            if !self.has_space(&folio, &range)? {
                if let Source::Zeroes(_) = source {
                    return Ok(0);
                }
                self.reserved = false;
                continue;
            }
            if let Some(block) = absent_in_cluster(&self.context, folio.folio(), &range)? {
                let owned = folio.folio().clone();
                drop(folio);
                self.fetch(&owned, block)?;
                continue;
            }
            let mut edges = edges(range.clone(), self.block);
            edges.retain(|edge| folio.folio().uptodate_run(*edge, self.block, true) == 0);
            if let Some(edge) = self.first_on_device(position, &edges)? {
                let owned = folio.folio().clone();
                drop(folio);
                self.fetch(&owned, edge)?;
                continue;
            }
            for edge in edges {
                let [before, after] = around(range.clone(), edge..edge + self.block);
                // SAFETY: the caller of `write` or `zero_range` holds the inode's lock alone.
                unsafe {
                    folio.zero(before);
                    folio.zero(after);
                }
            }
            self.fill(folio, range, source);
            return Ok(length);
        }
        Err(Error::OutOfMemory)
    }

    /// Reserves space for the rest of a write of data, unless the blocks of its first folio are
    /// dirty: then they have space. They may be written back before they are locked; then they have
    /// blocks, or [`has_space`](Self::has_space) finds that none were allocated.
    fn reserve(&mut self, here: u64, end: u64, source: Source<'_>) -> Result<()> {
        if self.reserved || matches!(source, Source::Zeroes(_)) {
            return Ok(());
        }
        self.cancelled_reservations = self.file.cancelled_reservations();
        if let Some(folio) = self.file.mapping.get(here >> PAGE_SHIFT) {
            let within = (here - folio.position()) as usize;
            let length = (end - here).min((folio.len() - within) as u64) as usize;
            if folio.dirty_run(within, length, true) == length {
                return Ok(());
            }
        }
        let mapper = &*self.file.mapper;
        // The folio is not locked: the mapping counts only if nothing has changed by then.
        self.map = LastMap::default();
        self.map
            .at(self.context.mapper, here, || mapper.map_write(FileOffset(here), end - here))?;
        self.reserved = true;
        Ok(())
    }

    /// Returns whether the blocks of `range` in a locked folio still have the space that they had
    /// when the writer reserved it or found them dirty. Writeback that finds no blocks for data
    /// cancels its reservation, also for dirty blocks behind the first folio of a write, which the
    /// reservation did not include:
    ///
    /// ```text
    /// writer     sees that a block is dirty ──────────────── locks its folio, writes
    /// writeback               locks the folio, finds no blocks
    /// ```
    fn has_space(&self, folio: &LockedFolio, range: &Range<usize>) -> Result<bool> {
        if self.file.cancelled_reservations() == self.cancelled_reservations {
            return Ok(true);
        }
        let position = folio.folio().position();
        let end = position + range.end as u64;
        let mut at = (position + range.start as u64) / self.block as u64 * self.block as u64;
        while at < end {
            let map = map_at(self.context.mapper, FileOffset(at), end - at)?;
            if map.kind == IomapKind::Hole {
                return Ok(false);
            }
            at = map.end();
        }
        Ok(true)
    }

    /// Returns the folio with byte `here`, locked, not under writeback, and not lent; a new one if
    /// there is none. Returns `None` if the caller has to try again.
    fn lock_folio(&self, here: u64, end: u64) -> Result<Option<LockedFolio>> {
        let (mapping, page) = (&self.file.mapping, here >> PAGE_SHIFT);
        let Some(folio) = mapping.get(page) else {
            let index = page >> mapping.order_min() << mapping.order_min();
            return match mapping.insert(index, folio_order(index, end)) {
                Insertion::New(folio) => {
                    if self.caching == Caching::Dropbehind {
                        folio.set_dropbehind();
                    }
                    Ok(Some(folio))
                }
                Insertion::Exists { .. } => Ok(None),
                Insertion::NoMemory => self.make_room().map(|()| None),
            };
        };
        let folio = mapping.lock(&folio);
        if !mapping.holds(&folio) {
            return Ok(None);
        }
        folio.wait_writeback();
        Ok(unlent(self.file, folio))
    }

    /// Writes back dirty folios of this file, so that reclaim can take them.
    fn make_room(&self) -> Result<()> {
        if self.file.mapping.bytes_dirty() == 0
            && self.file.mapping.next_under_writeback(0..u64::MAX).is_none()
        {
            return Err(Error::OutOfMemory);
        }
        write_back(self.file, 0..u64::MAX);
        wait_for_writeback(self.file, 0..u64::MAX);
        Ok(())
    }

    /// Returns the first of these blocks of a locked folio at `position` that has data on the
    /// device.
    fn first_on_device(&mut self, position: u64, blocks: &[usize]) -> Result<Option<usize>> {
        for &block in blocks {
            let at = position + block as u64;
            if at >= self.context.size {
                continue;
            }
            let mapper = self.context.mapper;
            let map = || mapper.map_read(FileOffset(at), self.block as u64);
            match self.map.at(mapper, at, map)?.kind {
                IomapKind::Hole | IomapKind::Delalloc | IomapKind::Unwritten => {}
                IomapKind::Mapped | IomapKind::Encoded => return Ok(Some(block)),
                IomapKind::Inline => {
                    let problem = Problem::Invalid { field: "inline data at", found: at };
                    return Err(Error::corrupt("file mapping", Location::default(), problem));
                }
            }
        }
        Ok(None)
    }

    /// Reads a block of a folio that is written in part.
    fn fetch(&self, folio: &Folio, block: usize) -> Result<()> {
        let folio = self.file.mapping.borrow(folio);
        let at = folio.position() + block as u64;
        fill_blocks(&self.context, &folio, at, block..block + self.block)
    }

    /// Copies `source` into a folio, and makes its blocks in `range` uptodate and dirty.
    fn fill(&mut self, mut folio: LockedFolio, range: Range<usize>, source: Source<'_>) {
        match source {
            // SAFETY: the caller of `write` holds the inode's lock alone.
            Source::Data(data) => unsafe {
                let streamed = folio.folio().position() >= STREAMED_FROM;
                folio.copy_in(range.start, &data[..range.len()], streamed);
            },
            // SAFETY: the caller of `write` or `zero_range` holds the inode's lock alone.
            Source::Zeroes(_) => unsafe { folio.zero(range.clone()) },
        }
        let blocks = range.start / self.block * self.block..range.end.next_multiple_of(self.block);
        folio.set_uptodate(blocks.clone());
        let position = folio.folio().position();
        let end = position + range.end as u64;
        if self.extends && end > self.file.size() {
            // Before the folio is dirty: writeback skips data past the end.
            self.file.set_size(end);
        }
        self.file.mapping.set_dirty(&folio, blocks.clone());
        match (self.caching, source) {
            // The set of dirty folios holds a reference.
            (Caching::Dropbehind, _) => folio.folio().set_done(),
            (Caching::Kept, Source::Data(_)) => {
                folio.folio().keep();
                folio.folio().visit();
            }
            (Caching::Kept, Source::Zeroes(_)) => folio.folio().visit(),
        }
    }

    /// Zeroes `range`, where it has other data.
    fn zero(&mut self, range: Range<u64>) -> Result<()> {
        let mut here = range.start;
        while here < range.end {
            let (length, is_zero) = self.next_run(here, range.end)?;
            if is_zero {
                self.zero_lost(here..here + length);
                here += length;
            } else {
                here += self.write_folio(here, Source::Zeroes(length))? as u64;
            }
        }
        Ok(())
    }

    /// Zeroes `range` in the cache. The range is clean and reads as zeroes on the device, but the
    /// cache may hold data that could not be written back.
    fn zero_lost(&self, range: Range<u64>) {
        if !self.file.errors().any() {
            return;
        }
        for_each_folio(self.file, range.clone(), |folio| {
            let (position, length) = (folio.folio().position(), folio.folio().len() as u64);
            let within = |at: u64| at.saturating_sub(position).min(length) as usize;
            let part = within(range.start)..within(range.end);
            if let Some(mut folio) = unlent(self.file, folio) {
                zero_uptodate(&mut folio, part);
            }
        });
    }

    /// Returns a length from `here`, at most to `end`, and whether all of these bytes are zeroes or
    /// all may have other data.
    fn next_run(&mut self, here: u64, end: u64) -> Result<(u64, bool)> {
        self.cancelled_reservations = self.file.cancelled_reservations();
        let (mapping, mapper) = (&self.file.mapping, self.context.mapper);
        let pages = here >> PAGE_SHIFT..end.div_ceil(1 << PAGE_SHIFT);
        let mut run = end - here;
        if let Some(folio) = mapping.get_locked(pages.start) {
            // Blocks under writeback become written blocks; other blocks keep their state while the
            // folio is locked.
            folio.wait_writeback();
            let folio = folio.folio();
            let within = (here - folio.position()) as usize;
            run = run.min((folio.len() - within) as u64);
            let dirty = folio.dirty_run(within, run as usize, true);
            if dirty > 0 {
                return Ok((dirty as u64, false));
            }
            run = folio.dirty_run(within, run as usize, false) as u64;
        } else if let Some(page) = mapping.next_cached(pages.start + 1..pages.end) {
            run = run.min((page << PAGE_SHIFT) - here);
        }
        // The block's start, which is in the file even if `here` is the file's end.
        let start = here / self.block as u64 * self.block as u64;
        let map = map_at(mapper, FileOffset(start), run)?;
        if map.kind == IomapKind::Inline {
            self.remove_clean(pages.start);
            return Ok((run, true));
        }
        if map.end() <= here {
            let problem = Problem::Invalid { field: "end of range", found: map.end() };
            return Err(Error::corrupt("file mapping", Location::default(), problem));
        }
        let has_data = matches!(map.kind, IomapKind::Mapped | IomapKind::Encoded);
        Ok((run.min(map.end() - here), !has_data))
    }

    /// Removes the clean folio with `page` from the cache: the format changes inline data itself.
    fn remove_clean(&self, page: u64) {
        if let Some(folio) = self.file.mapping.get_locked(page) {
            self.file.mapping.remove(folio);
        }
    }
}

/// Cancels the reservation in `range` for blocks that are not dirty: nothing was written to them,
/// or earlier writeback has allocated blocks for them.
pub(crate) fn cancel_reservation(file: &WritableFile, range: Range<u64>) {
    let mapping = &file.mapping;
    let block = u64::from(mapping.block_size().bytes());
    let mut here = range.start / block * block;
    while here < range.end {
        let pages = here >> PAGE_SHIFT..range.end.div_ceil(1 << PAGE_SHIFT);
        let (mut clean, mut dirty) = (range.end - here, 0);
        if let Some(folio) = mapping.get_locked(pages.start) {
            // Blocks under writeback are not dirty, but their reservation is used up at the end of
            // I/O only.
            folio.wait_writeback();
            let folio = folio.folio();
            let within = (here - folio.position()) as usize;
            let run = clean.min((folio.len() - within) as u64) as usize;
            let clean_run = folio.dirty_run(within, run, false);
            clean = clean_run as u64;
            dirty = folio.dirty_run(within + clean_run, run - clean_run, true) as u64;
        } else if let Some(page) = mapping.next_cached(pages.start + 1..pages.end) {
            clean = clean.min((page << PAGE_SHIFT) - here);
        }
        if clean > 0 {
            let end = (here + clean).next_multiple_of(block);
            file.mapper.end_write(FileOffset(here)..FileOffset(end));
        }
        here += clean + dirty;
    }
}

/// Returns the folio, which is locked and not under writeback, or a copy in its place if it is
/// lent. If there is no memory for a copy, writes the folio back, removes it from the cache, and
/// returns `None`.
pub(crate) fn unlent(file: &Arc<WritableFile>, folio: LockedFolio) -> Option<LockedFolio> {
    if !folio.is_lent() {
        return Some(folio);
    }
    let folio = match file.mapping.replace_by_copy(folio) {
        Ok(copy) => return Some(copy),
        Err(folio) => folio,
    };
    let owned = folio.folio().clone();
    let bytes = owned.position()..owned.position() + owned.len() as u64;
    drop(folio);
    write_back(file, bytes.clone());
    wait_for_writeback(file, bytes);
    // No other thread writes to it. Data that could not be written back is lost, as always.
    file.mapping.remove(file.mapping.lock(&file.mapping.borrow(&owned)));
    None
}

/// Zeroes the uptodate bytes of `part`. The caller holds the inode's lock exclusively.
pub(crate) fn zero_uptodate(folio: &mut LockedFolio, part: Range<usize>) {
    let mut at = part.start;
    while at < part.end {
        at += folio.folio().uptodate_run(at, part.end - at, false);
        let run = folio.folio().uptodate_run(at, part.end - at, true);
        // SAFETY: the caller holds the inode's lock alone.
        unsafe { folio.zero(at..at + run) };
        at += run;
    }
}

/// Returns the order of the folio to create at page `index` for a write that ends at byte `end`: as
/// large as the rest of the write fills.
fn folio_order(index: u64, end: u64) -> u8 {
    let pages = end.div_ceil(1 << PAGE_SHIFT).saturating_sub(index);
    pages.checked_ilog2().unwrap_or(0).min(ORDER_MAX.into()) as u8
}

/// Returns the starts of the blocks that `range` covers in part: two at most.
fn edges(range: Range<usize>, block: usize) -> SmallVec<[usize; 2]> {
    let mut edges = SmallVec::new();
    let (first, last) = (range.start / block * block, range.end / block * block);
    if first < range.start {
        edges.push(first);
    }
    if last < range.end && (last > first || first == range.start) {
        edges.push(last);
    }
    edges
}

/// Returns the parts of `block` before and after `range`, which covers a part of it.
fn around(range: Range<usize>, block: Range<usize>) -> [Range<usize>; 2] {
    [
        block.start..range.start.clamp(block.start, block.end),
        range.end.clamp(block.start, block.end)..block.end,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios_are_as_large_as_the_rest_of_a_write() {
        for (index, end, order) in [
            (0, 1, 0),
            (0, 4096, 0),
            (0, 4097, 1),
            (0, 65_536, 4),
            (0, 61_440, 3),
            (15, 65_536, 0),
            (0, 1 << 30, ORDER_MAX),
            (9, 0, 0),
        ] {
            assert_eq!(folio_order(index, end), order, "page {index} to byte {end}");
        }
    }

    #[test]
    fn only_blocks_that_are_written_in_part_are_edges() {
        for (range, expected) in [
            (0..1024, &[][..]),
            (0..4096, &[]),
            (1..1024, &[0]),
            (0..1023, &[0]),
            (100..200, &[0]),
            (1000..1100, &[0, 1024]),
            (1024..3000, &[2048]),
            (1030..3072, &[1024]),
            (10..5000, &[0, 4096]),
        ] {
            assert_eq!(edges(range.clone(), 1024)[..], *expected, "{range:?}");
        }
    }

    #[test]
    fn the_parts_around_a_range_are_in_the_block() {
        assert_eq!(around(100..200, 0..1024), [0..100, 200..1024]);
        assert_eq!(around(100..2000, 1024..2048), [1024..1024, 2000..2048]);
        assert_eq!(around(100..2000, 0..1024), [0..100, 1024..1024]);
    }
}
