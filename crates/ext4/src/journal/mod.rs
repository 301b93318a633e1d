//! Transactions of metadata changes. Operations change blocks in memory through handles. All
//! changes since the last commit are the running transaction. A commit makes it durable as a whole,
//! in the log if the volume has one. A checkpoint writes the blocks to their home locations. Not
//! here: the log on disk (`jbd2`), the mark of a volume in use (`use_mark.rs`), and the operations.
//!
//! Invariants (`J` for journal):
//!
//! - **J1.** A commit takes the contents of the transaction's blocks while no handle is open on the
//!   transaction. Handles that open afterwards belong to the next transaction. So a transaction
//!   never contains part of an operation.
//! - **J2.** A checkpoint writes a block only with its contents in a committed transaction, and
//!   only after that commit is durable.
//! - **J3.** Freed space, of data or of metadata, is not used again before the transaction that
//!   frees it is durable. From then on, neither a checkpoint nor (because of a revoke) a recovery
//!   writes its old contents.
//! - **J4.** After a failure, only the error itself is written. So durable changes stay consistent.

mod checkpoint;
mod clean;
mod delay;
mod discard;
mod failure;
mod handle;
#[cfg(test)]
mod tests;
mod transaction;
pub(crate) mod use_mark;
mod worker;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::cancellation::CHECK_EVERY;
use base::locks::{Held, RankedMutex};
use base::{Error, FsBlock, Result, TransactionId, Unsupported};
use device::{BlockDevice, LatchDevice};
use fs::SyncDelays;
use iomap::MetadataCache;
use parking_lot::{Condvar, Mutex};

use self::checkpoint::Checkpoint;
use self::discard::Discards;
pub(crate) use self::handle::Handle;
use self::transaction::{Frozen, Transaction};
pub(crate) use self::worker::Worker;
use crate::jbd2::LogWriter;
use crate::jbd2::ondisk::BLOCKS_MIN;
use crate::journal::use_mark::UseMark;
use crate::ranks;
use crate::superblock::error_log::ErrorLog;

/// The maximum number of blocks in a transaction of a volume without a log.
const BLOCKS_MAX_WITHOUT_LOG: u64 = 8192;

/// The transactions of a volume that is open for writing.
pub(crate) struct Journal {
    device: Arc<LatchDevice>,
    metadata: Arc<MetadataCache>,
    state: RankedMutex<State>,
    /// Notified when the last handle ends, when a transaction begins, and when a commit, a delay or
    /// the volume's writing ends.
    changed: Condvar,
    checkpoint: Checkpoint,
    discards: Discards,
    /// The log, locked by the thread that commits or checkpoints. `None` on a volume without a log.
    log: Option<Mutex<LogWriter>>,
    /// The maximum number of blocks in a transaction.
    blocks_max: u64,
    /// `None` while the volume is being opened, and during a recovery in memory.
    use_mark: OnceLock<UseMark>,
    pub(crate) errors: ErrorLog,
    /// The number of changes that a recovery may still make. `None` on a volume that was opened for
    /// writing.
    changes_left: Option<AtomicU64>,
}

/// The reason why the volume cannot be changed any more.
enum End {
    /// The volume was closed.
    Closed,
    /// An error has shut it down.
    Failed(Arc<Error>),
}

/// The reason for a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Urgency {
    /// A request needs durable changes. It may be cancelled.
    Sync,
    /// The caller needs durable changes, and cannot be cancelled.
    None,
    /// The transaction or the volume has no room for the next change.
    NeedsRoom,
}

struct State {
    running: Transaction,
    /// The number of handles that are open on the running transaction.
    handles: u32,
    /// The number of blocks that these handles may change.
    credits: u64,
    /// Whether a commit waits for the handles to end. No handle starts then.
    is_locked: bool,
    /// Whether a thread commits.
    is_committing: bool,
    delays: SyncDelays,
    /// The last durable transaction.
    committed: TransactionId,
    /// Whether the volume is marked as clean: all changes are at their home locations, and the log
    /// is empty. The next handle marks the volume as in use.
    is_clean: bool,
    end: Option<End>,
}

impl Journal {
    /// Creates the journal of the volume on `device` whose metadata is in `metadata`. Without a
    /// `log`, a commit writes blocks to their home locations, and is not atomic.
    pub(crate) fn new(
        device: Arc<LatchDevice>,
        metadata: Arc<MetadataCache>,
        log: Option<LogWriter>,
        errors: ErrorLog,
    ) -> Self {
        let first = log.as_ref().map_or(TransactionId(1), LogWriter::next);
        let without_log = metadata.changed_max().clamp(BLOCKS_MIN.into(), BLOCKS_MAX_WITHOUT_LOG);
        let blocks_max = log.as_ref().map_or(without_log, LogWriter::blocks_max);
        let state = State {
            running: Transaction::new(first),
            handles: 0,
            credits: 0,
            is_locked: false,
            is_committing: false,
            delays: SyncDelays::default(),
            committed: TransactionId(first.0.wrapping_sub(1)),
            is_clean: false,
            end: None,
        };
        Self {
            device,
            metadata,
            state: RankedMutex::new(ranks::JOURNAL, state),
            changed: Condvar::new(),
            checkpoint: Checkpoint::default(),
            discards: Discards::default(),
            log: log.map(Mutex::new),
            blocks_max,
            use_mark: OnceLock::new(),
            errors,
            changes_left: None,
        }
    }

    /// Returns the journal of a recovery, which may make `changes_max` changes.
    pub(crate) fn of_recovery(self, changes_max: u64) -> Self {
        self.remember_freed();
        Self { changes_left: Some(changes_max.into()), ..self }
    }

    /// Returns whether the volume is being recovered.
    pub(crate) fn is_of_recovery(&self) -> bool {
        self.changes_left.is_some()
    }

    /// Counts a change. Errors: `Unsupported` if a recovery has made as many as it may.
    pub(crate) fn count_change(&self) -> Result<()> {
        let Some(left) = &self.changes_left else { return Ok(()) };
        let one_less = |left: u64| left.checked_sub(1);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => Ok(()),
            Err(_) => Err(Unsupported::Operation("a recovery with so many changes").into()),
        }
    }

    /// Calls `operation` with a handle that may change `credits` blocks. If it fails after a
    /// change, the metadata in memory is inconsistent, and the volume is shut down. An operation
    /// with ordinary failures (`NoSpace`, `Exists` …) fails before its first change, or undoes its
    /// changes and calls [`Handle::mark_undone`].
    pub(crate) fn change<'j, R>(
        &'j self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'j>) -> Result<R>,
    ) -> Result<R> {
        self.count_change()?;
        self.change_uncounted(credits, operation)
    }

    /// Calls [`change`](Self::change) for a change that a recovery bounds in another way than by
    /// their number.
    pub(crate) fn change_uncounted<'j, R>(
        &'j self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'j>) -> Result<R>,
    ) -> Result<R> {
        let mut handle = self.start(credits)?;
        let result = operation(&mut handle);
        if let Err(error) = &result {
            if handle.has_changes() && !handle.is_undone() {
                self.fail(error);
            } else {
                self.apply_error_policy(error);
            }
        }
        result
    }

    /// Remembers blocks of metadata that are freed from now on, for
    /// [`take_freed`](Self::take_freed).
    fn remember_freed(&self) {
        self.checkpoint.remember_freed();
    }

    /// Returns the blocks of metadata that committed transactions have freed and not changed since.
    /// Earlier commits may have written them.
    pub(crate) fn take_freed(&self) -> BTreeSet<FsBlock> {
        self.checkpoint.take_freed()
    }

    /// Returns the maximum number of blocks that one handle may change.
    pub(crate) fn credits_max(&self) -> u32 {
        u32::try_from(self.blocks_max / 2).unwrap_or(u32::MAX)
    }

    /// Opens a handle that may change `credits` blocks. Waits while a commit waits for open
    /// handles. If the running transaction is full, commits it. So the caller must not hold a lock
    /// that a thread with a handle may wait for (see [`ranks`]).
    pub(crate) fn start(&self, credits: u32) -> Result<Handle<'_>> {
        let held = Held::new(ranks::TRANSACTION);
        let wanted = u64::from(credits).min(self.blocks_max / 2);
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if state.is_locked {
                state.wait(&self.changed);
                continue;
            }
            if state.is_clean {
                state = self.mark_in_use_locked(state)?;
                continue;
            }
            let Transaction { blocks, revoked, .. } = &state.running;
            let used = (blocks.len() + revoked.len()) as u64 + state.credits;
            if used == 0 || used + wanted <= self.blocks_max {
                break;
            }
            let id = state.running.id;
            drop(state);
            self.commit_through(id, Urgency::NeedsRoom)?;
            state = self.state.lock();
        }
        state.handles += 1;
        state.credits += wanted;
        Ok(Handle::new(self, state.running.id, wanted, held))
    }

    /// Makes all transactions up to `id` durable. The caller has no handle open. Returns whether
    /// this call has committed, and so flushed the device after these changes. Errors:
    /// `Interrupted` if the request that this thread serves is cancelled while another thread
    /// commits.
    pub(crate) fn sync(&self, id: TransactionId) -> Result<bool> {
        let _held = Held::new(ranks::TRANSACTION);
        self.commit_through(id, Urgency::Sync)
    }

    /// Makes all earlier changes durable, even if the request that this thread serves is cancelled.
    /// The caller has no handle open.
    pub(crate) fn commit_all(&self) -> Result<()> {
        let _held = Held::new(ranks::TRANSACTION);
        self.commit_through(self.latest(), Urgency::None).map(drop)
    }

    /// Commits like [`commit_all`](Self::commit_all), but does not wait for threads that delay
    /// commits, since these may wait for the caller.
    pub(crate) fn commit_for_room(&self) -> Result<()> {
        let _held = Held::new(ranks::TRANSACTION);
        self.commit_through(self.latest(), Urgency::NeedsRoom).map(drop)
    }

    /// Returns the last transaction with changes.
    pub(crate) fn latest(&self) -> TransactionId {
        let state = self.state.lock();
        if state.running.is_empty() && state.handles == 0 {
            return TransactionId(state.running.id.0.wrapping_sub(1));
        }
        state.running.id
    }

    /// Commits and checkpoints all changes.
    pub(crate) fn flush(&self) -> Result<()> {
        self.commit_all()?;
        self.write_checkpoint()
    }

    /// Returns whether the running transaction has changes and began at least `age` ago.
    fn is_due(&self, age: Duration) -> bool {
        let state = self.state.lock();
        state.end.is_none() && !state.running.is_empty() && state.running.begun.elapsed() >= age
    }

    /// Waits for other threads' commits, and commits the running transaction, until `id` is
    /// durable. Returns whether this call has committed. Errors: `Lost` if the changes are lost.
    fn commit_through(&self, id: TransactionId, urgency: Urgency) -> Result<bool> {
        let mut state = self.state.lock();
        loop {
            // A clean volume has no changes that are not durable.
            if state.is_clean || state.committed.is_at_or_after(id) {
                return state.check().map(|()| false);
            }
            state.check_not_lost()?;
            if urgency == Urgency::NeedsRoom && state.delays.end_all() {
                self.changed.notify_all();
            }
            if !state.is_committing {
                break;
            }
            if urgency != Urgency::Sync {
                state.wait(&self.changed);
                continue;
            }
            state.wait_for(&self.changed, CHECK_EVERY);
            drop(state);
            base::cancellation::check()?;
            state = self.state.lock();
        }
        state.is_committing = true;
        // Counted here, not later. A thread that needs room and finds this commit in progress ends
        // the delays that have begun by then. A delay that begins later may wait for that thread.
        let delays = state.delays.begun();
        drop(state);
        let mut committing = Committing { journal: self, has_ended: false };
        let result = self.commit_running(urgency, delays);
        if let Err(error) = &result {
            // Before another thread can begin to commit.
            self.fail(error);
        }
        committing.has_ended = true;
        result.map(|()| true)
    }

    /// Commits the running transaction. Waits for the first `delays` delays, unless the commit must
    /// make room. No other thread commits concurrently.
    fn commit_running(&self, urgency: Urgency, delays: u64) -> Result<()> {
        let mut state = self.state.lock();
        if urgency != Urgency::NeedsRoom {
            self.wait_for_delays(&mut state, delays);
        }
        state.is_locked = true;
        while state.handles > 0 {
            state.wait(&self.changed);
        }
        // J1. The contents are shared with the blocks in memory until these change.
        let next = Transaction::new(state.running.id.next());
        let ended = std::mem::replace(&mut state.running, next);
        let ended = ended.freeze(&self.metadata);
        state.is_locked = false;
        self.changed.notify_all();
        state.check_not_lost()?;
        drop(state);
        let ended_id = ended.id;
        self.write(ended)?;
        self.state.lock().committed = ended_id;
        Ok(())
    }

    /// Makes a transaction durable, and then releases the space that it freed.
    fn write(&self, mut ended: Frozen) -> Result<()> {
        let discards = std::mem::take(&mut ended.discards);
        let released = match &self.log {
            Some(log) => {
                let mut log = log.lock();
                if !log.has_room(ended.blocks.len(), ended.revoked.len()) {
                    self.make_room(&mut log)?;
                }
                if log.is_external() {
                    // The data that the transaction refers to is on this device, not on the log's.
                    self.device.flush()?;
                }
                log.write(&ended.blocks, &ended.revoked)?;
                self.checkpoint.add(ended)
            }
            None => {
                // As with a log, the data that the transaction refers to must be durable before it.
                self.device.flush()?;
                let released = self.checkpoint.add(ended);
                self.write_checkpoint()?;
                released
            }
        };
        // Before the space is released, so that it is not yet in use again.
        self.discards.submit(&*self.device, discards);
        released.into_iter().for_each(|release| release());
        Ok(())
    }

    /// Checkpoints all committed blocks (J2), and releases the log's space, if there is a log.
    fn write_checkpoint(&self) -> Result<()> {
        match &self.log {
            Some(log) => self.make_room(&mut log.lock()),
            None => self.checkpoint_blocks(),
        }
    }

    /// Checkpoints all committed blocks, so that the log's space can be used again.
    fn make_room(&self, log: &mut LogWriter) -> Result<()> {
        self.checkpoint_blocks()?;
        log.release_checkpointed()
    }

    /// Writes all committed blocks to their home locations, and flushes the device.
    fn checkpoint_blocks(&self) -> Result<()> {
        self.checkpoint.write(&*self.device, &self.metadata)?;
        self.device.flush()
    }

    /// Runs one iteration of the background thread. Commits the running transaction if it is as old
    /// as `age`, and checkpoints when the log is half full, so that commits rarely wait for a
    /// checkpoint.
    fn run_background_work(&self, age: Duration) -> Result<()> {
        if self.check().is_err() {
            return Ok(());
        }
        self.store_errors()?;
        if self.is_due(age) {
            self.commit_all()?;
        }
        if self.log.as_ref().is_some_and(|log| log.lock().is_half_full()) {
            self.write_checkpoint()?;
        }
        Ok(())
    }

    /// Commits and checkpoints all changes, and marks the log as empty. Later changes fail.
    pub(crate) fn finish(&self) -> Result<bool> {
        loop {
            self.flush().inspect_err(|error| self.fail(error))?;
            #[cfg(test)]
            tests::before_closing();
            let mut state = self.state.lock();
            state.check_not_lost()?;
            if state.handles == 0 && state.running.is_empty() && !state.is_committing {
                // From here on, changes fail.
                state.end = Some(End::Closed);
                if state.is_clean {
                    return Ok(false);
                }
                break;
            }
        }
        // Another thread may have committed since the checkpoint.
        self.write_checkpoint()?;
        self.log.as_ref().map_or(Ok(()), |log| log.lock().finish())?;
        Ok(true)
    }
}

/// A guard for a commit in progress.
struct Committing<'j> {
    journal: &'j Journal,
    /// Whether the commit has ended without a panic.
    has_ended: bool,
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // The state of the transaction is unknown. Threads that wait for it get an error.
            self.journal.fail_after_panic("a commit");
        }
        let mut state = self.journal.state.lock();
        state.is_committing = false;
        state.is_locked = false;
        self.journal.changed.notify_all();
    }
}

impl State {
    /// Fails if the volume cannot be changed any more.
    fn check(&self) -> Result<()> {
        match &self.end {
            None => Ok(()),
            Some(End::Closed) => Err(Error::ReadOnly),
            Some(End::Failed(error)) => Err(Error::ShutDown(Arc::clone(error))),
        }
    }

    /// Fails if changes that were not durable are lost.
    fn check_not_lost(&self) -> Result<()> {
        match &self.end {
            Some(End::Failed(error)) => Err(Error::Lost(Arc::clone(error))),
            _ => self.check(),
        }
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        write!(f, "Journal(running {}, committed {})", state.running.id, state.committed)
    }
}
