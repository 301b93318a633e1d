//! Changes of an open volume, and their end. Not here: the opening for writing
//! (`open/for_writing.rs`), and the operations that change a volume.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, Location, Result};

use crate::alloc::Allocator;
use crate::core::Core;
use crate::journal::Handle;
use crate::ondisk::superblock::RawSuperblock;
use crate::superblock;
use crate::superblock::error_log::RecordedErrors;
use crate::volume::Volume;
use crate::volume::writer::Writer;

const STRUCTURE: &str = "superblock";
/// The maximum number of attempts to mark a volume as clean that other threads change.
const CLEAN_ATTEMPTS_MAX: u32 = 3;

impl Core {
    /// Changes the superblock in a transaction.
    pub(crate) fn edit_superblock(
        &self,
        handle: &mut Handle<'_>,
        change: impl FnOnce(&mut RawSuperblock),
    ) -> Result<()> {
        let block = self.geometry().superblock_block();
        handle.edit(block, STRUCTURE, Location::block(block), |bytes| {
            superblock::edit(bytes, self.geometry(), change);
        })
    }
}

impl Volume {
    /// Returns whether the volume was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.writer.is_some()
    }

    /// Fails if the volume cannot be changed. Errors: `ReadOnly` if it is not open for writing,
    /// `ShutDown` after an error that has shut it down.
    pub fn check_writable(&self) -> Result<()> {
        self.writer()?.journal.check()
    }

    /// Shuts the volume down after a panic in a write of data or in its end of I/O. The panic hook
    /// has reported the panic. `operation` is the operation that panicked.
    pub fn panicked(&self, operation: &'static str) {
        if let Some(writer) = &self.writer {
            writer.journal.fail_after_panic(operation);
        }
    }

    /// Applies the volume's error policy to an error of a read. If the volume is open for writing,
    /// corruption is recorded in the superblock.
    pub fn apply_error_policy(&self, error: &Error) {
        if let Some(writer) = &self.writer {
            writer.journal.apply_error_policy(error);
        }
    }

    /// Returns the errors since the volume was last repaired.
    pub fn errors(&self) -> RecordedErrors {
        match &self.writer {
            Some(writer) => writer.journal.errors.errors(),
            None => self.superblock().errors(),
        }
    }

    /// Returns whether the volume is being recovered: it is changed whatever its features are.
    pub(crate) fn is_recovering(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.journal.is_of_recovery())
    }

    /// Returns the state for writing. Errors: `ReadOnly` if the volume is not open for writing.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or(Error::ReadOnly)
    }

    /// Returns the allocator. Errors: `ReadOnly` if the volume is not open for writing.
    pub(crate) fn allocator(&self) -> Result<&Arc<Allocator>> {
        Ok(&self.writer()?.allocator)
    }

    /// Calls [`Journal::change`].
    pub(crate) fn change<'v, R>(
        &'v self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'v>) -> Result<R>,
    ) -> Result<R> {
        self.writer()?.journal.change(credits, operation)
    }

    /// Calls [`change`](Self::change) for an operation that needs space. Tries again after a commit
    /// if the commit frees space.
    pub(crate) fn change_with_space<'v, R>(
        &'v self,
        credits: u32,
        mut operation: impl FnMut(&mut Handle<'v>) -> Result<R>,
    ) -> Result<R> {
        self.writer()?.allocator.with_space(|| self.change(credits, &mut operation))
    }

    /// Calls `work`. Commits that are requested during the call wait for its end, unless they must
    /// make room.
    pub fn delay_commits<R>(&self, work: impl FnOnce() -> R) -> R {
        let _delay = self.writer.as_ref().map(|writer| writer.journal.delay_commits());
        work()
    }

    /// Discards the free blocks in `bytes` that are in runs of at least `bytes_min`. Returns the
    /// number of discarded bytes.
    ///
    /// Errors: `InvalidArgument` if the range is shorter than a block or behind the volume's end,
    /// or if `bytes_min` is greater than a group.
    pub fn trim(&self, bytes: Range<u64>, bytes_min: u64) -> Result<u64> {
        self.allocator()?.discard_free(bytes, bytes_min)
    }

    /// Makes all earlier changes durable, and all data that was written to the device. Updates the
    /// superblock's counts.
    pub fn sync(&self) -> Result<()> {
        let journal = &self.writer()?.journal;
        // If the volume is shut down, the commit below returns the error.
        if journal.check().is_ok() {
            self.update_superblock()?;
        }
        if !journal.sync(journal.latest())? {
            journal.flush_device()?;
        }
        Ok(())
    }

    /// Stores new errors and the counts of free space in the superblock. The next commit makes them
    /// durable.
    fn update_superblock(&self) -> Result<()> {
        let Writer { journal, allocator, .. } = self.writer()?;
        journal.store_errors()?;
        if !allocator.totals_changed() {
            return Ok(());
        }
        self.change(1, |handle| {
            self.edit_superblock(handle, |raw| allocator.store_totals(raw, self.geometry()))
        })
    }

    /// Closes the volume: checkpoints all changes, and marks the volume as clean. Later changes
    /// fail. A volume that is dropped without this call is left as after a crash.
    pub fn close(&self) -> Result<()> {
        let closed = self.end_writing();
        self.writer()?.allocator.wait_for_trims();
        match self.writer()?.mmp.get() {
            // Even if that failed, nothing more is written.
            Some(mmp) => closed.and(mmp.finish()),
            None => closed,
        }
    }

    fn end_writing(&self) -> Result<()> {
        let Writer { journal, orphans, .. } = self.writer()?;
        if journal.finish_clean()? {
            // Another host may have the volume.
            return Ok(());
        }
        // Freed space is counted only after its commit.
        journal.commit_all()?;
        self.update_superblock()?;
        if !journal.finish()? {
            // Another thread has marked it as clean meanwhile.
            return Ok(());
        }
        // The orphan list of the superblock needs no flag: e2fsck and the kernel always complete
        // its inodes.
        let mark = journal.use_mark().expect("the volume is open for writing");
        mark.clear_flags(orphans.is_file_empty())
    }

    /// Makes all changes durable at their home locations, and leaves the device as
    /// [`close`](Self::close) does, so that programs which do not replay the journal read the
    /// current contents. The volume stays open, and the next change marks it as in use again.
    ///
    /// The volume stays in use while it has orphans, such as files without a name that are open,
    /// since a clean volume gets no recovery that completes them, and while other threads change it
    /// all the time.
    pub fn mark_clean(&self) -> Result<()> {
        let Writer { journal, allocator, orphans, .. } = self.writer()?;
        for _ in 0..CLEAN_ATTEMPTS_MAX {
            // Freed space is counted only after its commit.
            journal.commit_all()?;
            self.update_superblock()?;
            // The superblock of a clean volume has the counts of free space.
            let may_be = || orphans.numbers().is_empty() && !allocator.totals_changed();
            if journal.mark_clean(may_be, || allocator.wait_for_trims())? {
                break;
            }
        }
        Ok(())
    }

    /// Marks the volume as in use again after [`mark_clean`](Self::mark_clean), durably. Errors:
    /// `InUse` if another host has had a volume with multiple-mount protection in the meantime;
    /// then the volume is shut down.
    pub fn mark_in_use(&self) -> Result<()> {
        self.writer()?.journal.mark_in_use()
    }
}
