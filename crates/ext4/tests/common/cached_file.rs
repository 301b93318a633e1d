//! Files that tests write through the cache, and directly.

use std::ops::Range;
use std::sync::Arc;

use base::{FileOffset, Result};
use ext4::Inode;
use iomap::{
    CacheOptions, Caching, EndIo, ErrorCursor, IomapKind, MapRead, MapWrite, PageCache,
    ReadOptions, SplitExtents, WritableFile, copy_out, detach_cache, note_size_on_disk,
    overwrite_direct, punch_cache, quiesce_cache, set_size_after_move, truncate_cache,
    wait_for_writeback, write_as, write_back, write_back_and_wait, write_direct_alone,
};
use testkit::Random;
use testkit::crash::FileHistory;

use super::TIME;

/// Returns the cached data of a file, in `pages`. `mapper` maps it: the inode, or a map with a
/// planted bug.
pub fn writable_file<M: MapWrite + 'static>(
    inode: &Arc<Inode>,
    mapper: Arc<M>,
    pages: &Arc<PageCache>,
    end_io: &Arc<EndIo>,
) -> Arc<WritableFile> {
    let volume = inode.volume();
    WritableFile::new(
        pages.new_mapping(volume.geometry().block_size),
        mapper,
        Arc::clone(volume.device()),
        Arc::clone(end_io),
        inode.size(),
        ReadOptions::default(),
    )
}

fn offsets(range: Range<usize>) -> Range<FileOffset> {
    FileOffset(range.start as u64)..FileOffset(range.end as u64)
}

/// The cache and threads that the written files of a volume share.
#[derive(Clone)]
pub struct Cache {
    pages: Arc<PageCache>,
    end_io: Arc<EndIo>,
}

impl Cache {
    pub fn new() -> Self {
        let options = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
        Self { pages: PageCache::new(options).unwrap(), end_io: EndIo::start().unwrap() }
    }

    /// Returns the file of `inode`, mapped by `mapper`.
    pub fn file<M: MapWrite + 'static>(&self, inode: &Arc<Inode>, mapper: Arc<M>) -> CachedFile {
        let file = writable_file(inode, mapper, &self.pages, &self.end_io);
        let errors = Arc::new(file.errors().cursor());
        CachedFile { inode: Arc::clone(inode), file, errors }
    }
}

/// A file in the cache. In all methods that change data, the caller excludes concurrent use of the
/// file.
#[derive(Clone)]
pub struct CachedFile {
    pub inode: Arc<Inode>,
    file: Arc<WritableFile>,
    errors: Arc<ErrorCursor>,
}

impl CachedFile {
    /// Writes through the cache.
    pub fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        self.write_as(at, data, Caching::Kept)
    }

    /// Writes through the cache, with a choice whether the data stays cached.
    pub fn write_as(&self, at: usize, data: &[u8], caching: Caching) -> Result<()> {
        let written = write_as(&self.file, FileOffset(at as u64), data, caching)?;
        assert_eq!(written, data.len());
        self.inode.note_modified(TIME);
        Ok(())
    }

    /// Writes whole sectors directly. Overwrites existing blocks in shared mode, unless `alone` is
    /// set or there are none. Data that cannot be written directly is written through the cache,
    /// and to the device at once. Returns whether it was written directly.
    pub fn write_direct(
        &self,
        at: usize,
        data: &[u8],
        split: SplitExtents,
        alone: bool,
    ) -> Result<bool> {
        let offset = FileOffset(at as u64);
        let overwritten = if alone {
            None
        } else {
            overwrite_direct(&self.file, offset, data, split, ()).ok().transpose()?
        };
        let written = match overwritten {
            None => write_direct_alone(&self.file, offset, data, split)?,
            overwritten => overwritten,
        };
        match written {
            Some(written) => assert_eq!(written, data.len()),
            None => {
                self.write_as(at, data, Caching::Dropbehind)?;
                let end = offset.0 + data.len() as u64;
                write_back_and_wait(&self.file, offset.0..end);
                self.error()?;
            }
        }
        self.inode.note_modified(TIME);
        Ok(written.is_some())
    }

    /// Truncates or extends the file.
    pub fn set_size(&self, size: usize) {
        truncate_cache(&self.file, size as u64).unwrap();
        self.inode.set_size(size as u64, false, TIME).unwrap();
        note_size_on_disk(&self.file);
    }

    /// Preallocates a range, which may lie past the end.
    pub fn preallocate(&self, range: Range<usize>) -> Result<()> {
        self.inode.preallocate(offsets(range))
    }

    /// Punches a range, or zeroes it and keeps its space.
    pub fn clear(&self, range: Range<usize>, keeps_space: bool) -> Result<()> {
        if keeps_space {
            self.preallocate(range.clone())?;
        }
        let blocks = punch_cache(&self.file, range.start as u64..range.end as u64)?;
        let blocks = offsets(blocks.start as usize..blocks.end as usize);
        if blocks.is_empty() {
            // No whole block is affected.
        } else if keeps_space {
            self.inode.zero(blocks)?;
        } else {
            self.inode.punch(blocks)?;
        }
        self.inode.note_modified(TIME);
        Ok(())
    }

    /// Collapses or inserts a range of whole blocks.
    pub fn shift(&self, range: Range<usize>, inserts: bool) -> Result<()> {
        let size = self.file.size();
        detach_cache(&self.file, range.start as u64);
        let (length, range) = (range.len() as u64, offsets(range));
        let size = if inserts {
            self.inode.insert(range, size, TIME)?;
            size + length
        } else {
            self.inode.collapse(range, size, TIME)?;
            size - length
        };
        set_size_after_move(&self.file, size);
        Ok(())
    }

    /// Exchanges the blocks of a range, as far as both files have them, with the blocks of `donor`
    /// from `to` on. The caller excludes concurrent use of both files. Returns the ranges of
    /// `donor` that are zeroes afterwards.
    pub fn move_extents(
        &self,
        range: Range<usize>,
        donor: &Self,
        to: usize,
    ) -> Result<Vec<Range<usize>>> {
        quiesce_cache(&self.file, range.start as u64..range.end as u64);
        detach_cache(&donor.file, to as u64);
        let unit = self.inode.allocation_unit() as usize;
        let has_block = |inode: &Inode, at: usize| -> Result<bool> {
            let map = inode.map_read(FileOffset(at as u64), unit as u64)?;
            Ok(matches!(map.kind, IomapKind::Mapped | IomapKind::Unwritten))
        };
        let mut cleared = Vec::new();
        for (at, donor_at) in range.clone().step_by(unit).zip((to..).step_by(unit)) {
            if has_block(&self.inode, at)? && has_block(&donor.inode, donor_at)? {
                cleared.push(donor_at..donor_at + unit);
            }
        }
        let to = FileOffset(to as u64);
        let moved =
            self.inode.move_extents(offsets(range), &donor.inode, to, &mut |range, to| {
                copy_out(&self.file, range, to)
            })?;
        assert_eq!(moved, (cleared.len() * unit) as u64);
        Ok(cleared)
    }

    pub fn write_back(&self) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
    }

    /// Allocates blocks for the dirty data, as at the start of writeback.
    pub fn allocate_delayed(&self) {
        for at in (0..self.file.size()).step_by(1024) {
            // Holes get no blocks.
            let _ = self.inode.map_writeback(FileOffset(at), 1024);
        }
    }

    /// Returns an error of writeback that was not reported before.
    pub fn error(&self) -> Result<()> {
        self.file.errors().check(&self.errors)
    }

    pub fn sync(&self, data_only: bool) {
        write_back_and_wait(&self.file, 0..u64::MAX);
        self.error().unwrap();
        self.inode.sync(data_only).unwrap();
    }

    /// Writes at a random position: usually at the end, otherwise in the middle or past the end.
    /// Writes less than two to the power of `bits_max` bytes, all before `size_max`.
    pub fn write_somewhere(
        &self,
        history: &mut FileHistory,
        random: &mut Random,
        size_max: u64,
        bits_max: u64,
    ) -> Result<()> {
        self.write_somewhere_as(history, random, size_max, bits_max, Caching::Kept)
    }

    /// Like `write_somewhere`, with a choice whether the data stays cached.
    pub fn write_somewhere_as(
        &self,
        history: &mut FileHistory,
        random: &mut Random,
        size_max: u64,
        bits_max: u64,
        caching: Caching,
    ) -> Result<()> {
        let size = history.now().len() as u64;
        let at = match random.below(4) {
            0 => random.below(size_max / 2),
            1 => random.below(size + 1),
            _ => size,
        };
        let (at, bits) = (at.min(size_max - 1), random.below(bits_max));
        let length = (1 + random.below(1 << bits)).min(size_max - at);
        let data = history.bytes(at as usize, length as usize);
        self.write_as(at as usize, &data, caching)?;
        history.write(at as usize, &data);
        Ok(())
    }

    /// Releases a file that has no name and no user any more.
    pub fn release(self) -> Result<()> {
        truncate_cache(&self.file, 0)?;
        drop(self.file);
        self.inode.release()
    }
}
