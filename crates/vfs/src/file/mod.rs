//! Open regular files, and cached reads of them. Not here: the calls of `std::fs::File`
//! (`std/file.rs`), and writes (`data.rs`, `synchronous.rs`).

pub(crate) mod copy;
pub(crate) mod data;
pub(crate) mod direct;
pub(crate) mod fallocate;
pub(crate) mod map;
pub(crate) mod rw_flags;
pub(crate) mod synchronous;

use std::borrow::Cow;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base::attributes::FileType;
use base::locks::{Rank, RankedMutex};
use base::{Error, FileOffset, Result};
use fs::FileData;
use iomap::{Caching, ErrorCursor, FiemapExtent, FolioSlice, ReadContext, ReadOptions, Readahead};

use crate::file::rw_flags::{RwFlags, WriteAt, WriteSync};
use crate::node::Node;
use crate::node::access::AccessTimes;
use crate::node::rights::{self, Privileges};

/// The mode in which a file is open. Every mode allows reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenMode {
    /// The file can be written to.
    pub write: bool,
    /// Every write goes to the end of the file.
    pub append: bool,
}

/// An open regular file. Threads that share it also share its readahead.
#[derive(Debug)]
pub struct File {
    node: Arc<Node>,
    mode: OpenMode,
    /// Whether the file can be read, which [`OpenOptions`](crate::OpenOptions) decide.
    pub(crate) can_read: bool,
    readahead: Readahead,
    /// The position of the next read or write of `std::io`.
    pub(crate) position: RankedMutex<u64>,
    /// The last writeback error that this file has reported, on a volume that is open for writing.
    errors: Option<ErrorCursor>,
    /// The part of each write that is durable when it returns.
    pub(crate) sync: WriteSync,
    /// Whether data of reads and writes stays in the cache.
    caching: Caching,
    /// Whether reads through this file count as accesses.
    notes_access: bool,
    /// The number of the last atomic write that this file has started, or zero.
    pub(crate) atomic_write: AtomicU64,
}

impl File {
    pub(crate) fn new(node: Arc<Node>, mode: OpenMode, errors: Option<ErrorCursor>) -> Self {
        let caching = node.volume().read_options.caching;
        if mode.write {
            node.note_opened_for_writing();
        }
        let notes_access = node.volume().access.times != AccessTimes::Never;
        let position = RankedMutex::new(Rank::Position, 0);
        Self {
            node,
            mode,
            can_read: true,
            readahead: Readahead::default(),
            position,
            errors,
            sync: WriteSync::None,
            caching,
            notes_access,
            atomic_write: AtomicU64::new(0),
        }
    }

    /// Returns the file with reads that do not count as accesses (O_NOATIME).
    pub fn without_access_time(mut self) -> Self {
        self.notes_access = false;
        self
    }

    /// Records an access to the contents. The caller must not hold the inode's lock.
    pub(crate) fn note_access(&self) {
        if self.notes_access {
            self.node.note_access();
        }
    }

    /// Returns the file with all reads and writes uncached, as with [`RwFlags::dontcache`].
    pub fn uncached(mut self) -> Self {
        self.caching = Caching::Dropbehind;
        self
    }

    /// Returns the cursor in the file's writeback errors.
    pub(crate) fn errors(&self) -> Option<&ErrorCursor> {
        self.errors.as_ref()
    }

    /// Returns the mode in which the file is open.
    pub fn mode(&self) -> OpenMode {
        self.mode
    }

    pub(crate) fn write_cached(
        &self,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
        flags: RwFlags,
    ) -> Result<Range<u64>> {
        self.require_writing()?;
        let caching = self.caching(flags);
        self.node.write(at, &copied_if_mapped(data), privileges, self.mode.append, caching)
    }

    /// Fails if the file was opened only for writing.
    pub(crate) fn require_reading(&self) -> Result<()> {
        if self.can_read { Ok(()) } else { Err(Error::NotOpenFor("reading")) }
    }

    /// Fails if the file was opened only for reading.
    pub(crate) fn require_writing(&self) -> Result<()> {
        if self.mode.write { Ok(()) } else { Err(Error::NotOpenFor("writing")) }
    }

    /// Returns whether data that a call with `flags` adds to the cache stays there.
    fn caching(&self, flags: RwFlags) -> Caching {
        if flags.dontcache { Caching::Dropbehind } else { self.caching }
    }

    /// Returns the file's inode.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// [`read_at`](Self::read_at) with flags. Flags for writes are ignored.
    pub fn read_with(&self, at: FileOffset, buffer: &mut [u8], flags: RwFlags) -> Result<usize> {
        self.require_reading()?;
        if pagecache::is_mapped(buffer) {
            let mut copy = vec![0; buffer.len()];
            let length = self.read_with(at, &mut copy, flags)?;
            buffer[..length].copy_from_slice(&copy[..length]);
            return Ok(length);
        }
        self.note_access();
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        let size = data.size;
        let length = iomap::read(&self.context(data, flags), &self.readahead, at, buffer)?;
        debug_assert!(length <= buffer.len() && length as u64 <= size.saturating_sub(at.0));
        Ok(length)
    }

    /// Removes from the cache the data that readahead of uncached reads has added and that was not
    /// read since. Dropping the file does this, too.
    pub fn stop_reading(&self) {
        if let Some(mapping) = self.node.mapping_if_any() {
            self.readahead.stop(mapping);
        }
    }

    /// Lends up to `length_max` cached bytes from byte `at`, without a copy. The slice may be
    /// shorter than requested, also within the file. It is empty only at or past the end of the
    /// file.
    pub fn lend(&self, at: FileOffset, length_max: usize) -> Result<FolioSlice> {
        self.require_reading()?;
        self.note_access();
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        let size = data.size;
        let context = self.context(data, RwFlags::default());
        let slice = iomap::lend(&context, &self.readahead, at, length_max)?;
        debug_assert!(slice.len() <= length_max && slice.len() as u64 <= size.saturating_sub(at.0));
        Ok(slice)
    }

    /// Returns the first byte of data at or after `at`. Unwritten blocks are not data.
    pub fn seek_data(&self, at: FileOffset) -> Result<FileOffset> {
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::seek_data(&self.context(data, RwFlags::default()), at)
    }

    /// Returns the first byte of a hole at or after `at`. The end of the file is a hole.
    pub fn seek_hole(&self, at: FileOffset) -> Result<FileOffset> {
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::seek_hole(&self.context(data, RwFlags::default()), at)
    }

    /// Calls `emit` for each allocated extent that touches `range`, in order. The file is locked
    /// during the calls: `emit` must not use files or nodes of a volume that is open for writing.
    pub fn extents(
        &self,
        range: Range<FileOffset>,
        emit: &mut dyn FnMut(FiemapExtent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.node.extents(range, emit)
    }

    pub(crate) fn context<'a>(&'a self, data: FileData<'a>, flags: RwFlags) -> ReadContext<'a> {
        let context = self.node.read_context(data);
        let options = ReadOptions { caching: self.caching(flags), ..context.options };
        ReadContext { options, ..context }
    }
}

impl Node {
    /// Opens a regular file for reading.
    pub fn open(self: &Arc<Self>) -> Result<File> {
        self.open_for(OpenMode::default())
    }

    /// Opens a regular file.
    pub fn open_for(self: &Arc<Self>, mode: OpenMode) -> Result<File> {
        match self.kind() {
            FileType::Regular => {
                self.inode().data()?;
                if mode.write {
                    self.check_open_for_writing(mode)?;
                }
                let writable = if self.volume().is_writable { self.writable()? } else { None };
                let errors = writable.map(|file| file.errors().cursor());
                Ok(File::new(Arc::clone(self), mode, errors))
            }
            FileType::Directory => Err(Error::IsDirectory),
            _ => Err(Error::WrongType("not a regular file")),
        }
    }

    fn check_open_for_writing(&self, mode: OpenMode) -> Result<()> {
        self.volume().file_system.check_writable()?;
        let attributes = self.attributes();
        if mode.append {
            rights::may_change(&attributes)
        } else {
            rights::may_overwrite(&attributes)
        }
    }
}

/// Returns a copy of `data` if it is in a file map, and otherwise `data` itself: a thread that
/// holds a lock must not access a map.
pub(crate) fn copied_if_mapped(data: &[u8]) -> Cow<'_, [u8]> {
    if pagecache::is_mapped(data) { Cow::Owned(data.to_vec()) } else { Cow::Borrowed(data) }
}

impl Drop for File {
    fn drop(&mut self) {
        self.stop_reading();
        self.end_own_atomic_write();
        if self.mode.write {
            self.node.note_closed_for_writing();
        }
        self.node.volume().removals.note_closed(|| self.node.attributes().links == 0);
    }
}
