//! Atomic writes of open files: data that a crash shows all of, or nothing of, as by
//! F2FS_IOC_START_ATOMIC_WRITE. Not here: where the data is until the commit (the format).
//!
//! An atomic write belongs to the inode, as in Linux: the data of all writers, through any open
//! file or map, is a part of it, and readers see it at once. The file that has started it ends it,
//! at the latest when it is closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Result;
use base::attributes::FileType;
use fs::AtomicWrite;
use iomap::{ErrorCursor, WritableFile};

use crate::file::File;
use crate::node::atomic_writes::Current;
use crate::node::quiesced::quiesce;
use crate::node::rights;
use crate::node::{Life, Node, NodeState};
use crate::volume::clock::now;

impl File {
    /// Starts an atomic write: a crash shows the file's old contents until
    /// [`atomic_commit`](Self::atomic_commit) returns. Readers see the new data at once. Earlier
    /// writes are written back before. Does nothing during an atomic write of the file, which
    /// another open file may have started.
    ///
    /// Meanwhile the file can grow, but not be truncated, and its blocks cannot be allocated or
    /// freed (fallocate). Direct reads and writes are refused, as in Linux. Dropping this file ends
    /// the atomic write as [`atomic_abort`](Self::atomic_abort) does.
    ///
    /// Errors: `NotOpenFor`; `NotPermitted` for immutable and append-only files; `Unsupported` for
    /// formats without atomic writes, and for compressed, verified and pinned files; writeback
    /// errors of earlier data, which the next fsync does not report again.
    pub fn atomic_start(&self, kind: AtomicWrite) -> Result<()> {
        self.require_writing()?;
        if let Some(number) = self.node().start_atomic_write(kind, self.errors())? {
            self.atomic_write.store(number, Ordering::Release);
        }
        Ok(())
    }

    /// Commits the file's atomic write, durably. Without one, makes the file durable as
    /// [`sync_all`](Self::sync_all) does.
    ///
    /// Errors: `NotOpenFor`, `ReadOnly`, and errors of writing. The file then has its old contents.
    /// Only after an error of the device that shuts the volume down, a recovery may find the new
    /// ones.
    pub fn atomic_commit(&self) -> Result<()> {
        self.require_writing()?;
        if self.node().commit_atomic_write(self.errors())? { Ok(()) } else { self.sync_all() }
    }

    /// Ends the file's atomic write, if there is one, and drops its data and the growth of the
    /// file. Errors: `NotOpenFor`.
    pub fn atomic_abort(&self) -> Result<()> {
        self.require_writing()?;
        self.node().abort_atomic_write(None);
        Ok(())
    }

    /// Returns whether this open file has started the inode's atomic write.
    pub fn has_started_atomic_write(&self) -> bool {
        match self.atomic_write.load(Ordering::Acquire) {
            0 => false,
            number => self.node().has_atomic_write(number),
        }
    }

    /// Ends the atomic write that this file has started.
    pub(crate) fn end_own_atomic_write(&self) {
        match self.atomic_write.load(Ordering::Acquire) {
            0 => {}
            number => self.node().abort_atomic_write(Some(number)),
        }
    }
}

impl Node {
    /// Starts an atomic write. Returns its number, or `None` if there is one already. `cursor` is
    /// that of the file which starts it.
    fn start_atomic_write(
        self: &Arc<Self>,
        kind: AtomicWrite,
        cursor: Option<&ErrorCursor>,
    ) -> Result<Option<u64>> {
        debug_assert_eq!(self.kind(), FileType::Regular, "other files are not opened");
        let (file, mut state) = self.lock_for_change()?;
        if state.atomic.is_any() {
            return Ok(None);
        }
        rights::may_overwrite(&self.attributes())?;
        let quiesced = quiesce(file);
        // Also the loss of data that no fsync of this open file has reported: a program that only
        // commits would not learn of it.
        self.check_errors(cursor)?;
        let errors = quiesced?;
        self.inode().start_atomic_write(kind)?;
        state.atomic.started += 1;
        let number = state.atomic.started;
        state.atomic.current = Some(Current { number, kind, errors });
        if kind == AtomicWrite::Replace {
            iomap::drop_cache(file);
            iomap::set_size_after_move(file, 0);
        }
        Ok(Some(number))
    }

    /// Commits the atomic write. Returns false if there is none. `cursor` is that of the file which
    /// commits.
    fn commit_atomic_write(self: &Arc<Self>, cursor: Option<&ErrorCursor>) -> Result<bool> {
        let (file, mut state) = self.lock_for_change()?;
        let Some(current) = &state.atomic.current else { return Ok(false) };
        iomap::quiesce_cache(file, 0..file.size());
        let written = file.errors().check_since(current.errors);
        let committed = written.and_then(|()| {
            if current.kind == AtomicWrite::Replace {
                self.inode().note_modified(now());
            }
            self.inode().commit_atomic_write(file.size())
        });
        match committed {
            Ok(()) => {
                state.atomic.current = None;
                iomap::set_size_after_move(file, file.size());
            }
            Err(_) => {
                self.abort_locked(file, &mut state);
                // The caller gets the error now, and need not get it again from the next fsync.
                let _ = self.check_errors(cursor);
            }
        }
        if state.life == Life::Named {
            self.note_change();
        }
        committed.map(|()| true)
    }

    /// Ends the atomic write, or only that with `number`. Works on a volume that is closed or shut
    /// down, too.
    fn abort_atomic_write(&self, number: Option<u64>) {
        let Some(file) = self.writable.get() else { return };
        let mut state = self.lock();
        let current = state.atomic.current.as_ref();
        if current.is_some_and(|current| number.is_none_or(|number| number == current.number)) {
            self.abort_locked(file, &mut state);
        }
    }

    /// Ends the atomic write. The caller holds the lock of `state`.
    fn abort_locked(&self, file: &Arc<WritableFile>, state: &mut NodeState) {
        state.atomic.current = None;
        iomap::drop_cache(file);
        self.inode().abort_atomic_write();
        // Code that takes no lock of the inode, such as the format's, may have read a part of the
        // data again.
        iomap::drop_cache(file);
        iomap::set_size_after_move(file, self.inode().attributes().size);
    }

    fn has_atomic_write(&self, number: u64) -> bool {
        let state = self.lock_state_shared();
        state.atomic.current.as_ref().is_some_and(|current| current.number == number)
    }
}
