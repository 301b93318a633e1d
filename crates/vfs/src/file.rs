//! An open regular file: a thin binding of a node's data to the read path.

use std::borrow::Cow;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use base::{Error, FileOffset, Result};
use iomap::{Caching, ErrorCursor, FiemapExtent, FolioSlice, ReadContext, ReadOptions, Readahead};

use crate::access::AccessTimes;
use crate::data::WriteAt;
use crate::file_system::FileData;
use crate::node::Node;
use crate::rights::Privileges;
use crate::rw_flags::RwFlags;
use crate::synchronous::WriteSync;

/// What a file is opened for, besides reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenMode {
    /// Writing.
    pub write: bool,
    /// Every write goes to the end of the file.
    pub append: bool,
}

/// An open regular file. Shared freely between threads, which then share its readahead.
#[derive(Debug)]
pub struct File {
    node: Arc<Node>,
    mode: OpenMode,
    readahead: Readahead,
    /// What this opener knows of errors in writing back, on a volume that is open for writing.
    errors: Option<ErrorCursor>,
    /// What is durable of each write.
    pub(crate) sync: WriteSync,
    /// What becomes of what is read and written.
    caching: Caching,
    /// Reads through this file count as accesses.
    notes_access: bool,
}

impl File {
    pub(crate) fn new(node: Arc<Node>, mode: OpenMode, errors: Option<ErrorCursor>) -> Self {
        let (readahead, sync) = (Readahead::default(), WriteSync::None);
        let caching = node.volume().read_options.caching;
        if mode.write {
            node.note_opened_for_writing();
        }
        let notes_access = node.volume().access.times != AccessTimes::Never;
        Self { node, mode, readahead, errors, sync, caching, notes_access }
    }

    /// Returns the file with reads that do not count as accesses (O_NOATIME).
    pub fn without_access_time(mut self) -> Self {
        self.notes_access = false;
        self
    }

    /// Notes that the contents are read. The caller must not hold the inode's lock.
    pub(crate) fn note_access(&self) {
        if self.notes_access {
            self.node.note_access();
        }
    }

    /// The same file, nothing of which stays in the cache that is read and written through it: each
    /// read and write is as with [`RwFlags::dontcache`].
    pub fn uncached(mut self) -> Self {
        self.caching = Caching::Dropbehind;
        self
    }

    /// What this opener knows of errors in writing back.
    pub(crate) fn errors(&self) -> Option<&ErrorCursor> {
        self.errors.as_ref()
    }

    /// What it was opened for.
    pub fn mode(&self) -> OpenMode {
        self.mode
    }

    /// Makes the file durable; with `data_only`, as far as its data can be read back. The first
    /// error in writing its data back since it was opened, or since the last one, is told once.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        self.node.sync_with(0..u64::MAX, data_only, self.errors())
    }

    /// Writes `data` into the cache, at byte `at`, or at the end if the file was opened to append.
    /// Gives the number of bytes written: less than asked for only when an error came in between,
    /// which the next write will meet first.
    pub fn write_at(&self, at: FileOffset, data: &[u8], privileges: Privileges) -> Result<usize> {
        let at = if self.mode.append { WriteAt::End } else { WriteAt::Offset(at) };
        self.write_with(at, data, privileges, RwFlags::default())
    }

    pub(crate) fn write_cached(
        &self,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
        flags: RwFlags,
    ) -> Result<usize> {
        if !self.mode.write {
            return Err(Error::InvalidArgument("the file was not opened for writing"));
        }
        let caching = self.caching(flags);
        self.node.write(at, &off_maps(data), privileges, self.mode.append, caching)
    }

    /// What becomes of what a call with `flags` brings into the cache.
    fn caching(&self, flags: RwFlags) -> Caching {
        if flags.dontcache { Caching::Dropbehind } else { self.caching }
    }

    /// The inode behind it.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Reads at byte `at`. Gives the number of bytes, less than the buffer's only at the end of the
    /// file.
    pub fn read_at(&self, at: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        self.read_with(at, buffer, RwFlags::default())
    }

    /// [`read_at`](Self::read_at) with flags. Those that are about writing mean nothing.
    pub fn read_with(&self, at: FileOffset, buffer: &mut [u8], flags: RwFlags) -> Result<usize> {
        if pagecache::is_mapped(buffer) {
            let mut copy = vec![0; buffer.len()];
            let length = self.read_with(at, &mut copy, flags)?;
            buffer[..length].copy_from_slice(&copy[..length]);
            return Ok(length);
        }
        self.note_access();
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::read(&self.context(data, flags), &self.readahead, at, buffer)
    }

    /// Has what was read ahead of uncached reads, and nobody has come to, leave the cache, as when the
    /// file is dropped. Who goes on reading all the same has it read again.
    pub fn stop_reading(&self) {
        if let Some(mapping) = self.node.mapping_if_any() {
            self.readahead.stop(mapping);
        }
    }

    /// Lends at most `length_max` cached bytes from byte `at`, without a copy; empty at or past the
    /// end of the file, and possibly shorter than asked for anywhere.
    pub fn lend(&self, at: FileOffset, length_max: usize) -> Result<FolioSlice> {
        self.note_access();
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::lend(&self.context(data, RwFlags::default()), &self.readahead, at, length_max)
    }

    /// The first byte of data at or after `at`; unwritten blocks are not data.
    pub fn seek_data(&self, at: FileOffset) -> Result<FileOffset> {
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::seek_data(&self.context(data, RwFlags::default()), at)
    }

    /// The first byte of a hole at or after `at`; the end of the file is one.
    pub fn seek_hole(&self, at: FileOffset) -> Result<FileOffset> {
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::seek_hole(&self.context(data, RwFlags::default()), at)
    }

    /// Calls `emit` for each allocated extent that touches `range`, in order.
    pub fn extents(
        &self,
        range: Range<FileOffset>,
        emit: &mut dyn FnMut(FiemapExtent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.node.extents(range, emit)
    }

    pub(crate) fn context<'a>(&'a self, data: FileData<'a>, flags: RwFlags) -> ReadContext<'a> {
        let volume = self.node.volume();
        ReadContext {
            mapping: self.node.mapping(),
            mapper: data.mapper,
            device: volume.file_system.device(),
            size: data.size,
            options: ReadOptions { caching: self.caching(flags), ..volume.read_options },
        }
    }
}

/// The same bytes where touching them needs no lock.
pub(crate) fn off_maps(data: &[u8]) -> Cow<'_, [u8]> {
    if pagecache::is_mapped(data) { Cow::Owned(data.to_vec()) } else { Cow::Borrowed(data) }
}

impl Drop for File {
    fn drop(&mut self) {
        self.stop_reading();
        if self.mode.write {
            self.node.note_closed_for_writing();
        }
    }
}
