//! A file that is written through the cache.

use std::sync::Arc;

use base::FileOffset;
use base::attributes::{DeviceNumber, FileType, Timestamp};
use ext4::{Inode, NewInode, Volume};
use iomap::{
    CacheOptions, EndIo, ErrorCursor, MapWrite, PageCache, ReadOptions, WritableFile,
    truncate_cache, wait_for_writeback, write, write_back, write_back_and_wait,
};

pub const TIME: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 1 };

/// A new inode of a kind.
pub fn new_inode(kind: FileType, target: &[u8]) -> NewInode<'_> {
    NewInode {
        kind,
        permissions: 0o644,
        uid: 7,
        gid: 70_000,
        device: DeviceNumber::default(),
        target,
        xattrs: &[],
        time: TIME,
    }
}

/// What the written files of a volume share.
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

    /// The data of a file, of `inode`, that is mapped by `mapper`.
    pub fn file<M: MapWrite + 'static>(
        &self,
        volume: &Volume,
        inode: &Arc<Inode>,
        mapper: Arc<M>,
    ) -> CachedFile {
        let file = WritableFile::new(
            self.pages.new_mapping(volume.geometry().block_size),
            mapper,
            Arc::clone(volume.device()),
            Arc::clone(&self.end_io),
            inode.size(),
            ReadOptions::default(),
        );
        let errors = Arc::new(file.errors().cursor());
        CachedFile { inode: Arc::clone(inode), file, errors }
    }
}

/// A file.
#[derive(Clone)]
pub struct CachedFile {
    pub inode: Arc<Inode>,
    file: Arc<WritableFile>,
    errors: Arc<ErrorCursor>,
}

impl CachedFile {
    /// Whoever calls has the file for itself.
    pub fn write(&self, at: usize, data: &[u8]) -> base::Result<()> {
        let written = write(&self.file, FileOffset(at as u64), data)?;
        assert_eq!(written, data.len());
        self.inode.note_modified(TIME);
        Ok(())
    }

    /// Whoever calls has the file for itself.
    pub fn set_size(&self, size: usize) {
        truncate_cache(&self.file, size as u64).unwrap();
        self.inode.set_size(size as u64, TIME).unwrap();
    }

    pub fn write_back(&self) {
        write_back(&self.file, 0..u64::MAX);
        wait_for_writeback(&self.file, 0..u64::MAX);
    }

    /// Has what is to be written out get its places, as when writing it has just begun.
    pub fn give_places(&self) {
        for at in (0..self.file.size()).step_by(1024) {
            // Holes get none.
            let _ = self.inode.map_writeback(FileOffset(at), 1024);
        }
    }

    pub fn sync(&self, data_only: bool) {
        write_back_and_wait(&self.file, 0..u64::MAX);
        self.file.errors().check(&self.errors).unwrap();
        self.inode.sync(data_only).unwrap();
    }

    /// What is left of a file that nobody names or uses any more.
    pub fn release(self) -> base::Result<()> {
        truncate_cache(&self.file, 0)?;
        drop(self.file);
        self.inode.release()
    }
}
