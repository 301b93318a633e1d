//! Writes of a file's data: to the cache, to the device, and durably. Not here: reads (`mod.rs`),
//! and background writeback (`writeback/flusher.rs`).

use std::ops::Range;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, Result};
use iomap::{Caching, ErrorCount, ErrorCursor, WritableFile};

use crate::file::rw_flags::WriteAt;
use crate::node::rights::{self, Privileges};
use crate::node::{Life, Node, NodeState};
use crate::volume::clock::{last_tick, now};
use crate::writeback::Writeback;

/// The maximum length of a part of a write. The writer is throttled between parts.
pub(crate) const PART_BYTES: usize = 4 << 20;

impl Node {
    /// Returns the state for writing the file, if the volume is open for writing.
    pub(crate) fn writable(&self) -> Result<Option<&Arc<WritableFile>>> {
        if let Some(file) = self.writable.get() {
            return Ok(Some(file));
        }
        let writeback = self.writeback()?;
        let (mapping, options) = (Arc::clone(self.mapping()), self.volume().read_options);
        let file = self.inode().writable_file(mapping, &writeback.end_io, options)?;
        // If another thread has added one first, all threads use that.
        Ok(file.map(|file| self.writable.get_or_init(|| file)))
    }

    pub(crate) fn writeback(&self) -> Result<&Writeback> {
        let writeback = self.volume().writeback.as_ref();
        writeback.filter(|writeback| !writeback.is_closed()).ok_or(Error::ReadOnly)
    }

    /// Adds this node to those with changes to write back. The caller holds the node's lock since
    /// before the change, and has called [`writeback`](Self::writeback) under it. A volume that is
    /// being closed waits for the lock.
    pub(crate) fn note_change(self: &Arc<Self>) {
        if let Some(writeback) = &self.volume().writeback {
            writeback.note(self);
        }
    }

    /// Writes `data`. `only_adds` is the append mode of the open file. Returns the range that was
    /// written. It is shorter than `data` only after an error, which the next write reports.
    pub(crate) fn write(
        self: &Arc<Self>,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
        only_adds: bool,
        caching: Caching,
    ) -> Result<Range<u64>> {
        let writeback = self.writeback()?;
        self.volume().begin_change()?;
        let Some(file) = self.writable()? else { return Err(Error::ReadOnly) };
        // The first part waits without the lock, so that readers do not wait. Later parts wait with
        // it.
        writeback.throttle(self, caching)?;
        let mut state = self.lock();
        let from_cache = matches!(at, WriteAt::FromCache { .. });
        let keeps_times = matches!(at, WriteAt::FromCache { keeps_times: true, .. });
        let at = match at {
            WriteAt::Offset(at) | WriteAt::FromCache { at, .. } => at,
            WriteAt::End => FileOffset(file.size()),
        };
        let data = self.admit_write(at, data, only_adds, from_cache)?;
        self.drop_privileges(&mut state, privileges)?;
        let written = self.write_parts(file, &state, at, data, keeps_times, caching)?;
        Ok(at.0..at.0 + written as u64)
    }

    /// Returns the part of `data` that fits below the maximum size. Fails if the file may not be
    /// written at byte `at`. `only_adds` is the append mode of the open file. The caller holds the
    /// lock.
    pub(crate) fn admit_write<'d>(
        &self,
        at: FileOffset,
        data: &'d [u8],
        only_adds: bool,
        from_cache: bool,
    ) -> Result<&'d [u8]> {
        let room = self.inode().size_max().saturating_sub(at.0);
        if room == 0 && !data.is_empty() {
            return Err(Error::FileTooLarge);
        }
        // A file that was opened before it became append-only can still be appended to. Data from
        // another cache was written before the flags were set.
        if !from_cache {
            if only_adds && at.0 < self.attributes().size {
                rights::may_overwrite(&self.attributes())?;
            } else {
                rights::may_change(&self.attributes())?;
            }
        }
        self.inode().check_changeable()?;
        Ok(&data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))])
    }

    /// Writes admitted data into the cache. Returns the number of bytes. The caller holds the lock
    /// of `state`.
    pub(crate) fn write_parts(
        self: &Arc<Self>,
        file: &Arc<WritableFile>,
        state: &NodeState,
        mut at: FileOffset,
        data: &[u8],
        keeps_times: bool,
        caching: Caching,
    ) -> Result<usize> {
        let writeback = self.writeback()?;
        let mut done = 0;
        let part_bytes = match caching {
            Caching::Kept => PART_BYTES,
            Caching::Dropbehind => PART_BYTES.min(writeback.behind.part_bytes()),
        };
        for part in data.chunks(part_bytes) {
            if done > 0 && writeback.throttle(self, caching).is_err() {
                break;
            }
            let write = || iomap::write_as(file, at, part, caching);
            let written = match writeback.with_room(self, write) {
                Ok(written) => written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            // First: code that removes clean inodes from the dirty ones checks the times again
            // after that.
            if !keeps_times {
                self.inode().note_modified(last_tick());
            }
            if state.life == Life::Named {
                writeback.note_written(self, written as u64);
            }
            debug_assert!(written <= part.len(), "more was written than requested");
            done += written;
            let end = at.0 + written as u64;
            debug_assert!(end <= self.inode().size_max(), "a write past the maximum size");
            debug_assert!(end <= file.size(), "a write past the end did not extend the file");
            if caching == Caching::Dropbehind {
                writeback.behind.push(file, at.0..end);
            }
            at = FileOffset(end);
            if written < part.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Sets the size of a regular file.
    pub fn set_size(self: &Arc<Self>, size: u64, privileges: Privileges) -> Result<()> {
        match self.kind() {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::InvalidArgument("only the size of regular files can be set")),
        }
        // Before data leaves the cache.
        self.volume().begin_change()?;
        let file = self.writable()?;
        let mut state = self.lock();
        // The volume may have been closed before the lock was taken.
        self.writeback()?;
        rights::may_overwrite(&self.attributes())?;
        self.inode().data()?;
        self.drop_privileges(&mut state, privileges)?;
        self.resize(file, &state, size)?;
        drop(state);
        self.sync_size()
    }

    /// Extends a file that ends before byte `size` to that size, with a hole.
    pub(crate) fn grow(self: &Arc<Self>, size: u64, privileges: Privileges) -> Result<()> {
        let file = self.writable()?;
        let mut state = self.lock();
        self.writeback()?;
        if self.attributes().size >= size {
            return Ok(());
        }
        rights::may_change(&self.attributes())?;
        self.drop_privileges(&mut state, privileges)?;
        self.resize(file, &state, size)
    }

    /// Sets the size. The caller holds the lock of `state`.
    pub(crate) fn resize(
        self: &Arc<Self>,
        file: Option<&Arc<WritableFile>>,
        state: &NodeState,
        size: u64,
    ) -> Result<()> {
        let before = self.attributes().size;
        if size < before {
            state.atomic.check_none()?;
        }
        if size > before.max(self.inode().size_max()) {
            return Err(Error::FileTooLarge);
        }
        self.inode().check_changeable()?;
        if size <= before {
            self.inode().check_truncation(size)?;
        }
        let _dropping = (size < before).then(|| self.begin_to_drop_data());
        if let Some(file) = file {
            self.writeback()?.with_room(self, || iomap::truncate_cache(file, size))?;
        }
        // A truncation frees the blocks past the new end. An extension keeps preallocated blocks.
        if let Err(error) = self.inode().set_size(size, size > before, now()) {
            // Readers must not see a size that the format does not have, nor data that later
            // appears behind its size.
            let known = self.inode().attributes().size;
            match file {
                Some(file) if size > before => {
                    if let Err(second) = iomap::truncate_cache(file, before) {
                        tracing::warn!("{}: cannot truncate the cache: {second}", self.number());
                    }
                }
                Some(file) if size < known => {
                    // The rest of the folio with the new end was zeroed, and is on the device.
                    iomap::detach_cache(file, size);
                    iomap::set_size_after_move(file, known.min(before));
                }
                _ => {}
            }
            return Err(error);
        }
        if let Some(file) = file {
            iomap::note_size_on_disk(file);
        }
        debug_assert!(file.is_none_or(|file| file.size() == size), "the cache has another size");
        if size == 0 && before > 0 {
            self.note_emptied();
        }
        if state.life == Life::Named {
            self.note_change();
        }
        Ok(())
    }

    /// Makes the inode, and its data in `range`, durable. With `data_only`, makes attributes
    /// durable only if reading the data needs them. Errors: also a writeback error, once for each
    /// `cursor`; `Interrupted` if this thread's request was cancelled, when writeback errors stay
    /// unreported.
    pub(crate) fn sync_with(
        &self,
        range: Range<u64>,
        data_only: bool,
        cursor: Option<&ErrorCursor>,
    ) -> Result<()> {
        let Some(writeback) = &self.volume().writeback else { return Ok(()) };
        let is_whole = range == (0..u64::MAX);
        let sync = is_whole.then(|| writeback.begin_sync(self));
        self.inode().will_sync();
        let end = range.end.min(self.end_to_write_back());
        self.write_back_and_wait_cancellable(range.start.min(end)..end)?;
        self.wait_for_dropped_data();
        let synced = match self.inode().sync(range, data_only) {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            synced => self.check_errors(cursor).and(synced),
        };
        if let (Ok(()), Some(sync)) = (&synced, sync) {
            writeback.note_synced(self, sync);
        }
        synced
    }

    /// Returns the writeback error that the open file with `cursor` has not reported, as an error.
    pub(crate) fn check_errors(&self, cursor: Option<&ErrorCursor>) -> Result<()> {
        match (self.writable.get(), cursor) {
            (Some(file), Some(cursor)) => file.errors().check(cursor),
            _ => Ok(()),
        }
    }

    /// Returns the number of writeback errors so far, if the file was written to.
    pub(crate) fn error_count(&self) -> Option<ErrorCount> {
        self.writable.get().map(|file| file.errors().count())
    }

    /// Returns a cursor that reports unreported and later writeback errors.
    pub(crate) fn error_cursor(&self) -> ErrorCursor {
        self.writable.get().map(|file| file.errors().cursor()).unwrap_or_default()
    }

    /// Returns the end of the range to write back: the size now. A file that grows concurrently
    /// does not prolong the writeback.
    pub(crate) fn end_to_write_back(&self) -> u64 {
        self.writable.get().map_or(0, |file| file.size())
    }

    /// Starts writeback of dirty data in the folios of `range`.
    pub(crate) fn start_writeback(&self, range: Range<u64>) {
        if let Some(file) = self.writable.get() {
            iomap::write_back(file, range);
        }
    }

    /// Waits for writeback of the folios of `range`. Errors: `Interrupted` if this thread's request
    /// is cancelled.
    pub(crate) fn wait_for_writeback(&self, range: Range<u64>) -> Result<()> {
        let file = self.writable.get();
        file.map_or(Ok(()), |file| iomap::wait_for_writeback_cancellable(file, range))
    }

    pub(crate) fn write_back_and_wait(&self) {
        if let Some(file) = self.writable.get() {
            iomap::write_back_and_wait(file, 0..self.end_to_write_back());
        }
    }

    /// Writes back dirty data in `range`, and waits for it. Errors: `Interrupted` if this thread's
    /// request is cancelled.
    pub(crate) fn write_back_and_wait_cancellable(&self, range: Range<u64>) -> Result<()> {
        let file = self.writable.get();
        file.map_or(Ok(()), |file| iomap::write_back_and_wait_cancellable(file, range))
    }

    /// Returns whether all of the file's data is on the device.
    pub(crate) fn is_written_back(&self) -> bool {
        let Some(file) = self.writable.get() else { return true };
        let mapping = file.mapping();
        mapping.bytes_dirty() == 0 && mapping.next_under_writeback(0..u64::MAX).is_none()
    }

    /// Returns whether a sync has nothing to do for the file's data: all of it is on the device,
    /// and none is being dropped.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_written_back() && !self.is_dropping_data()
    }

    /// Drops the data of a file that will not be read again.
    pub(crate) fn drop_data(&self) {
        let Some(file) = self.writable.get() else { return };
        match iomap::truncate_cache(file, 0) {
            Ok(()) => debug_assert!(self.is_written_back(), "truncated data is dirty or in flight"),
            Err(error) => tracing::warn!("inode {}: {error}", self.number()),
        }
    }
}
