//! Handles. A handle collects the changes of one operation, which become part of one transaction.

use std::ops::Range;
use std::thread;

use base::locks::Held;
use base::{DeviceOffset, FsBlock, Location, Result, TransactionId};
use smallvec::SmallVec;

use super::Journal;
use super::transaction::Release;

/// The right to change metadata, until it is dropped. All of its changes become durable, or none.
pub(crate) struct Handle<'j> {
    journal: &'j Journal,
    id: TransactionId,
    /// The number of blocks that the handle may change.
    credits: u64,
    /// The changed blocks, sorted and without duplicates.
    blocks: SmallVec<[FsBlock; 16]>,
    revoked: SmallVec<[FsBlock; 4]>,
    discards: Vec<Range<DeviceOffset>>,
    released: Vec<Release>,
    changes: u64,
    is_undone: bool,
    /// Whether a block is being changed.
    is_editing: bool,
    /// Whether the thread was unwinding when the operation began, so that the operation is part of
    /// the cleanup.
    began_panicking: bool,
    _held: Held,
}

impl<'j> Handle<'j> {
    pub(super) fn new(journal: &'j Journal, id: TransactionId, credits: u64, held: Held) -> Self {
        Self {
            journal,
            id,
            credits,
            blocks: SmallVec::new(),
            revoked: SmallVec::new(),
            discards: Vec::new(),
            released: Vec::new(),
            changes: 0,
            is_undone: false,
            is_editing: false,
            began_panicking: thread::panicking(),
            _held: held,
        }
    }

    /// Returns the transaction that the changes belong to.
    pub(crate) fn transaction(&self) -> TransactionId {
        self.id
    }

    /// Returns how many further blocks the handle may change.
    pub(crate) fn credits_left(&self) -> u64 {
        self.credits.saturating_sub((self.blocks.len() + self.revoked.len()) as u64)
    }

    /// Returns whether the handle has changed or revoked a block.
    pub(crate) fn has_changes(&self) -> bool {
        !self.blocks.is_empty() || !self.revoked.is_empty()
    }

    /// Returns the number of changes so far. If it is equal before and after a call, the call has
    /// changed nothing.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Records that the operation has undone all of its changes so far. It may then fail without a
    /// shutdown of the volume, unless it makes further changes.
    pub(crate) fn mark_undone(&mut self) {
        self.is_undone = true;
    }

    /// Returns whether the operation has undone all of its changes.
    pub(crate) fn is_undone(&self) -> bool {
        self.is_undone
    }

    /// Changes a block of metadata, to which `structure` at `location` refers. `change` reads no
    /// metadata itself. Errors: those of reading the block; then nothing is changed.
    pub(crate) fn edit<R>(
        &mut self,
        block: FsBlock,
        structure: &'static str,
        location: Location,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.try_edit(block, structure, location, |bytes| Ok(change(bytes)))
    }

    /// Changes a block as [`edit`](Self::edit) does. If `change` fails, it has not changed
    /// anything.
    pub(crate) fn try_edit<R>(
        &mut self,
        block: FsBlock,
        structure: &'static str,
        location: Location,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        self.is_editing = true;
        let result = self.journal.metadata.change(block, structure, location, change);
        self.is_editing = false;
        let result = result??;
        self.record_change(block);
        Ok(result)
    }

    /// Replaces the contents of a block of metadata that was free before, or whose old contents are
    /// obsolete.
    pub(crate) fn replace(&mut self, block: FsBlock, contents: impl AsRef<[u8]>) {
        self.journal.metadata.replace(block, contents.as_ref());
        self.record_change(block);
    }

    /// Revokes a block of metadata that the operation frees.
    pub(crate) fn revoke(&mut self, block: FsBlock) {
        self.is_undone = false;
        self.changes += 1;
        if let Ok(index) = self.blocks.binary_search(&block) {
            self.blocks.remove(index);
        }
        if let Err(index) = self.revoked.binary_search(&block) {
            self.revoked.insert(index, block);
        }
        self.journal.metadata.discard(block);
    }

    /// Calls `release` when the transaction is durable, to release space that it frees. The space
    /// must not be used before. `release` is not called if the transaction is lost.
    pub(crate) fn when_durable(&mut self, release: impl FnOnce() + Send + 'static) {
        self.released.push(Box::new(release));
    }

    /// Discards `bytes` on the device when the transaction is durable, before any `release` is
    /// called.
    pub(crate) fn discard_when_durable(&mut self, bytes: Range<DeviceOffset>) {
        self.discards.push(bytes);
    }

    fn record_change(&mut self, block: FsBlock) {
        self.is_undone = false;
        self.changes += 1;
        if let Err(index) = self.blocks.binary_search(&block) {
            debug_assert!(
                self.credits_left() > 0,
                "the operation changes more blocks than its credits"
            );
            self.blocks.insert(index, block);
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        let is_half_done = self.is_editing || self.has_changes();
        if thread::panicking() && !self.began_panicking && is_half_done {
            // Before the handle ends, so that no commit makes a partial operation durable.
            self.journal.fail_after_panic("a change");
        }
        let mut state = self.journal.state.lock();
        let running = &mut state.running;
        debug_assert_eq!(running.id, self.id, "a transaction ended before its handles");
        for block in &self.revoked {
            running.blocks.remove(block);
        }
        running.revoked.extend(self.revoked.iter().copied());
        // Several inodes may share a block. After this handle has changed it, another handle may
        // have revoked it and ended. The block is not used again before this transaction is durable
        // (J3).
        let blocks = self.blocks.iter().copied();
        running.blocks.extend(blocks.filter(|block| !running.revoked.contains(block)));
        running.discards.append(&mut self.discards);
        running.released.append(&mut self.released);
        state.credits -= self.credits;
        state.handles -= 1;
        if state.handles == 0 {
            self.journal.changed.notify_all();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;

    use base::{BlockSize, Error, FsBlock, Location};
    use device::{LatchDevice, MemoryDevice};
    use iomap::{CacheOptions, MetadataCache, PageCache};
    use std::sync::Arc;

    use super::*;
    use crate::layout::geometry::tests::plain;
    use crate::superblock::error_log::{ErrorLog, RecordedErrors};

    pub(in crate::journal) fn journal() -> Journal {
        let memory = Arc::new(MemoryDevice::new(vec![0; 1 << 20]));
        let device = Arc::new(LatchDevice::new(memory));
        let options = CacheOptions { bytes_max: 1 << 20, ..CacheOptions::default() };
        let (cache, size) = (PageCache::new(options).unwrap(), BlockSize::from_bytes(1024));
        let metadata = Arc::new(MetadataCache::new(&cache, device.clone(), size.unwrap()));
        let errors = ErrorLog::new(plain(), RecordedErrors::default());
        Journal::new(device, metadata, None, errors)
    }

    #[test]
    fn a_transaction_with_the_maximum_of_revokes_is_committed() {
        let journal = journal();
        let first = journal.start(1).unwrap().transaction();
        for block in 0..=journal.blocks_max {
            journal.start(1).unwrap().revoke(FsBlock(block));
        }
        assert_eq!(journal.start(1).unwrap().transaction(), first.next());
    }

    #[test]
    fn a_partial_operation_of_a_panic_does_not_become_durable() {
        let journal = journal();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut handle = journal.start(2).unwrap();
            handle.edit(FsBlock(7), "test", Location::default(), |bytes| bytes[0] = 1).unwrap();
            panic!("caused by the test");
        }));
        assert!(panicked.is_err());
        let committed = journal.commit_all();
        assert!(matches!(committed, Err(Error::Lost(_))), "{committed:?}");
        assert!(matches!(journal.start(1).map(drop), Err(Error::ShutDown(_))));
    }

    #[test]
    fn a_partial_first_edit_of_a_panic_does_not_become_durable() {
        let journal = journal();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut handle = journal.start(2).unwrap();
            let edit = |bytes: &mut [u8]| {
                bytes[0] = 1;
                panic!("caused by the test");
            };
            handle.edit::<()>(FsBlock(7), "test", Location::default(), edit).unwrap();
        }));
        assert!(panicked.is_err());
        assert!(matches!(journal.start(1).map(drop), Err(Error::ShutDown(_))));
    }

    #[test]
    fn no_thread_waits_for_a_commit_after_it_panicked() {
        for panics_before_write in [true, false] {
            let journal = journal();
            let mut handle = journal.start(2).unwrap();
            handle.edit(FsBlock(7), "test", Location::default(), |bytes| bytes[0] = 1).unwrap();
            if panics_before_write {
                journal.metadata.discard(FsBlock(7));
            } else {
                handle.when_durable(|| panic!("caused by the test"));
            }
            let id = handle.transaction();
            drop(handle);
            catch_unwind(AssertUnwindSafe(|| journal.sync(id))).unwrap_err();
            let state = journal.state.lock();
            assert!(!state.is_committing && !state.is_locked);
            drop(state);
            let committed = journal.sync(id);
            assert!(matches!(committed, Err(Error::Lost(_))), "{committed:?}");
            assert!(matches!(journal.start(1).map(drop), Err(Error::ShutDown(_))));
        }
    }

    #[test]
    fn a_block_that_another_handle_revokes_is_not_in_the_transaction() {
        let journal = journal();
        let shared = FsBlock(7);
        let (changed, revoked) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut handle = journal.start(1).unwrap();
                handle.edit(shared, "test", Location::default(), |bytes| bytes[0] = 1).unwrap();
                changed.wait();
                revoked.wait();
            });
            changed.wait();
            journal.start(1).unwrap().revoke(shared);
            revoked.wait();
        });
        journal.commit_all().unwrap();
    }
}
