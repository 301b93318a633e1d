//! The state of a volume that is open for writing, and its opening and closing.
//! Not here: the operations that change a volume.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base::locks::RankedMutex;
use base::{DeviceOffset, Error, FsBlock, Location, Result, Unsupported};
use device::{BlockDevice, LatchDevice, SharedDevice};
use iomap::{BlockContents, PageCache};

use crate::alloc::Allocator;
use crate::features::{Feature, FeatureSet, Features};
use crate::jbd2::ondisk::BLOCKS_MIN;
use crate::jbd2::{JournalFeatures, LogWriter};
use crate::journal::{Handle, Journal, Worker};
use crate::ondisk::superblock::{RawSuperblock, STATE_ERRORS};
use crate::orphans::found;
use crate::orphans::write::OrphanSet;
use crate::ranks;
use crate::recovery;
use crate::superblock::{self, SUPERBLOCK_OFFSET, Superblock};
use crate::volume::error_log::{ErrorLog, RecordedErrors};
use crate::volume::mmp::{Mmp, MmpBlock};
use crate::volume::use_mark::UseMark;
use crate::volume::{OpenOptions, Probed, Volume};

const STRUCTURE: &str = "superblock";
/// The maximum number of attempts to mark a volume as clean that other threads change.
const CLEAN_ATTEMPTS_MAX: u32 = 3;

/// The state of a volume that is open for writing.
pub(crate) struct Writer {
    pub(crate) journal: Arc<Journal>,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) orphans: OrphanSet,
    /// Held while the reference count of an attribute block or of a value inode changes.
    pub(crate) shared_attributes: RankedMutex<()>,
    /// Whether the superblock has got the feature of large files since the volume was opened.
    pub(crate) has_large_files: AtomicBool,
    /// The multiple-mount protection, if the volume has the feature.
    mmp: OnceLock<Mmp>,
    /// The number of changes that a recovery may still make. `None` on a volume that was opened for writing.
    changes_left: Option<AtomicU64>,
    _worker: Option<Worker>,
}

impl Writer {
    /// Returns the state for at most `changes_max` changes of `volume` by recovery: without a log, a thread, and an
    /// error policy. `latch` is the volume's device, and `before` the volume without these changes.
    pub(crate) fn for_recovery(
        volume: &Arc<Volume>,
        before: Arc<Volume>,
        latch: Arc<LatchDevice>,
        changes_max: u64,
    ) -> Result<Self> {
        let errors = ErrorLog::new(volume.geometry().clone(), RecordedErrors::default());
        let journal = Journal::new(latch, Arc::clone(volume.metadata()), None, errors);
        journal.remember_freed();
        Ok(Self {
            journal: Arc::new(journal),
            allocator: Allocator::for_recovery(volume, before),
            orphans: OrphanSet::open_for_recovery(volume)?,
            shared_attributes: RankedMutex::new(ranks::SHARED_ATTRIBUTES, ()),
            has_large_files: AtomicBool::new(false),
            mmp: OnceLock::new(),
            changes_left: Some(AtomicU64::new(changes_max)),
            _worker: None,
        })
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
}

impl Volume {
    /// Opens the volume on `device` for reading and writing, and replays its journal in place. A volume with features
    /// whose writing is not supported is refused; the error names them.
    ///
    /// If the volume has multiple-mount protection and was not closed, waits up to some minutes (22 s by default).
    /// Errors: `Interrupted` if `wait_callback` ends the wait, [`Error::InUse`] if another host writes the volume.
    pub fn open_for_writing(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        if device.is_read_only() {
            return Err(Error::ReadOnly);
        }
        // No flush succeeds after a failed one, whichever code calls it.
        let latch = Arc::new(LatchDevice::new(device));
        if options.superblock.is_some() {
            return Err(Error::InvalidArgument(
                "a volume cannot be opened for writing through a chosen superblock",
            ));
        }
        let volume = Self::probe_unrecovered(latch.clone(), cache, options)?;
        volume.geometry().check_writable()?;
        volume.superblock().check_revision()?;
        let Some(block) = MmpBlock::of(&volume)? else {
            return Self::open_exclusively(latch, cache, options);
        };
        // The zones are checked before anything is written.
        volume.fixed_zones().check()?;
        drop(volume);
        let mmp = Mmp::start(block, &options.wait_callback)?;
        // After blocks were read here, another host may have changed them and released the volume.
        latch.refresh(DeviceOffset(0), latch.size());
        let opened = Self::open_exclusively(latch, cache, options).and_then(|volume| {
            let journal = &volume.writer()?.journal;
            mmp.guard(journal)?;
            journal.use_mark().expect("the volume is open for writing").add_mmp(mmp.hold());
            Ok(volume)
        });
        match &opened {
            Ok(volume) => {
                let _ = volume.writer()?.mmp.set(mmp);
            }
            Err(_) => {
                // The caller gets the error of the open. If the release fails, the next open only has to wait.
                let _ = mmp.finish();
            }
        }
        opened
    }

    /// Returns the volume without recovery, to check it before anything is written. Another host may be writing it.
    fn probe_unrecovered(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let error = match Self::probe(Arc::clone(&device), cache) {
            Ok(Probed::Ready(volume)) => return Ok(volume),
            Ok(Probed::NeedsRecovery(unrecovered)) => return Ok(unrecovered.without_recovery()),
            Err(error) => error,
        };
        match recovery::untorn(&device, cache, options.journal_device.as_ref(), &error) {
            Some(whole) => {
                let superblock = Superblock::parse(&whole, device.size())?;
                Ok(Arc::new(Self::with_superblock(device, cache, superblock)))
            }
            None => Err(Self::refusal_for_copy(&device, cache, error)),
        }
    }

    /// Opens the volume for writing, after multiple-mount protection, if any, has excluded other hosts.
    fn open_exclusively(
        latch: Arc<LatchDevice>,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let device: SharedDevice = latch.clone();
        let journal_device = options.journal_device.clone();
        let journal_device =
            journal_device.map(|device| -> SharedDevice { Arc::new(LatchDevice::new(device)) });
        if let Err(error) = Superblock::read(&device) {
            // `probe_unrecovered` has reconstructed the superblock in memory. This writes it.
            let whole = recovery::untorn(&device, cache, journal_device.as_ref(), &error);
            device.write_at(SUPERBLOCK_OFFSET, &whole.ok_or(error)?)?;
            device.flush()?;
        }
        let (volume, needs_recovery) = match Self::probe(Arc::clone(&device), cache)? {
            Probed::Ready(volume) => (volume, false),
            Probed::NeedsRecovery(unrecovered) => (unrecovered.without_recovery(), true),
        };
        let (mut log, failure) =
            volume.begin_log(cache, journal_device.as_ref(), needs_recovery)?;
        let has_log = log.is_some();
        let has_failed = log.as_ref().is_some_and(|log| log.errno() != 0);
        let mut with_errors = has_failed || found::has_errors(&volume);
        let errors_before = volume.superblock().errors();
        // Blocks that were read before the replay may be stale.
        drop(volume);
        let volume = match Self::probe(Arc::clone(&device), cache)? {
            Probed::Ready(volume) => volume,
            Probed::NeedsRecovery(unrecovered) => unrecovered.without_recovery(),
        };
        with_errors |= found::has_errors(&volume);
        let orphans = OrphanSet::open(&volume)?;
        let defaults = volume.superblock().default_options();
        let mut volume =
            Arc::into_inner(volume).expect("a volume that was just opened has one owner");
        // The replay may have written an older superblock.
        let errors = errors_before.or_more(volume.superblock().errors());
        let error_log = ErrorLog::new(volume.geometry().clone(), errors.clone());
        if let Some(failure) = &failure {
            error_log.add(failure);
        }
        let metadata = Arc::clone(volume.metadata());
        if let Some(log) = &mut log {
            log.limit(metadata.changed_max());
        }
        let journal = Arc::new(Journal::new(Arc::clone(&latch), metadata, log, error_log));
        let allocator = Allocator::load(&volume, options.discard.unwrap_or(defaults.discard))?;
        volume.writer = Some(Writer {
            journal,
            allocator,
            orphans,
            shared_attributes: RankedMutex::new(ranks::SHARED_ATTRIBUTES, ()),
            has_large_files: AtomicBool::new(false),
            mmp: OnceLock::new(),
            changes_left: None,
            _worker: None,
        });
        let has_errors = has_failed || errors.count > 0;
        let journal = Arc::clone(&volume.writer()?.journal);
        let mark = UseMark::new(
            latch,
            Arc::clone(volume.metadata()),
            volume.geometry().clone(),
            has_log,
            volume.superblock().raw().state.get(),
        );
        mark.set_with(if has_errors { STATE_ERRORS } else { 0 })?;
        journal.set_use_mark(mark);
        // Not before: the thread stores errors in the superblock.
        let worker = Worker::start(Arc::clone(&journal), options.commit_interval)?;
        if let Some(writer) = &mut volume.writer {
            writer._worker = Some(worker);
        }
        if errors != volume.superblock().errors() {
            journal.errors.mark_unstored();
        }
        journal.store_errors()?;
        journal.commit_all()?;
        journal.clear_errno()?;
        let volume = Arc::new(volume);
        volume.complete_orphans(with_errors)?;
        volume.writer()?.journal.store_errors()?;
        // Errors found up to here are recorded, but the policy does not apply to them: they do not prevent the open.
        let policy = options
            .errors
            .or(defaults.errors)
            .unwrap_or_else(|| volume.superblock().error_policy());
        volume.writer()?.journal.errors.set_policy(policy);
        Ok(volume)
    }

    /// Returns whether the volume was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.writer.is_some()
    }

    /// Fails if the volume cannot be changed. Errors: `ReadOnly` if it is not open for writing, `ShutDown` after an
    /// error that has shut it down.
    pub fn check_writable(&self) -> Result<()> {
        self.writer()?.journal.check()
    }

    /// Shuts the volume down after a panic in a write of data or in its end of I/O. The panic hook has reported the
    /// panic. `operation` is the operation that panicked.
    pub fn panicked(&self, operation: &'static str) {
        if let Some(writer) = &self.writer {
            writer.journal.fail_after_panic(operation);
        }
    }

    /// Applies the volume's error policy to an error of a read. If the volume is open for writing, corruption is
    /// recorded in the superblock.
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

    /// Replays the log, if the volume has one, and prepares it for writing. Returns the log, and the last corruption that
    /// the replay of fast commits found.
    fn begin_log(
        self: &Arc<Self>,
        cache: &Arc<PageCache>,
        journal_device: Option<&SharedDevice>,
        needs_recovery: bool,
    ) -> Result<(Option<LogWriter>, Option<Error>)> {
        let Some(journal) = self.journal(journal_device)? else { return Ok((None, None)) };
        if journal.superblock().users > 1 {
            return Err(Unsupported::Operation("a journal that several volumes share").into());
        }
        let log = &journal.superblock().log;
        if log.end - log.start + 1 < BLOCKS_MIN {
            // As in the kernel: an operation must have room in one transaction.
            let operation =
                "writing a journal of fewer than 1024 blocks, not counting fast commits";
            return Err(Unsupported::Operation(operation).into());
        }
        let features = journal_features(journal.superblock().features, &self.geometry().features);
        if !needs_recovery {
            let next = journal.superblock().sequence;
            let log = LogWriter::begin(journal, next, features, false)?;
            return Ok((Some(log), None));
        }
        let replayed = journal.recover(self.device(), self.superblock().logged_volume())?;
        self.geometry().check_replayed(&Superblock::read(self.device())?.geometry)?;
        if let Some(damage) = replayed.damage {
            return Err(damage);
        }
        // Before the log is overwritten, since a second recovery would need it.
        self.device().flush()?;
        // As in Linux, a log without transactions is not recovered, nor are fast commits after it.
        let commits = match journal.superblock().start {
            Some(_) => crate::fast_commit::read_commits(&journal, replayed.end)?,
            None => Vec::new(),
        };
        if commits.is_empty() {
            let log = LogWriter::begin(journal, replayed.end.next(), features, false)?;
            return Ok((Some(log), None));
        }
        let changes = recovery::fast_commit_changes(self.device(), cache, &commits)?;
        let failure = changes.failure;
        // The changes of all fast commits become one transaction with their number. Until it is durable, a recovery
        // finds the fast commits again; afterwards it never does.
        let mut log = LogWriter::begin(journal, replayed.end, features, true)?;
        let changes: Vec<(FsBlock, BlockContents)> = changes
            .blocks
            .into_iter()
            .map(|(block, bytes)| (FsBlock(block), Vec::from(bytes).into()))
            .collect();
        // The log is empty, so this transaction may be larger than an ordinary one. Linux writes no transaction of more than
        // a quarter of the journal without its fast commits, but its recovery reads a transaction of any length.
        if !log.has_room(changes.len(), 0) {
            let operation = "fast commits that change more than a transaction can hold";
            return Err(Unsupported::Operation(operation).into());
        }
        log.write(&changes, &[])?;
        for (block, contents) in &changes {
            let offset = self
                .geometry()
                .block_size
                .device_offset(*block)
                .expect("the block is in the volume");
            self.device().write_at(offset, contents)?;
        }
        self.device().flush()?;
        log.clear_fast_commits()?;
        log.release_checkpointed()?;
        Ok((Some(log), failure))
    }

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

    /// Returns whether the volume is being recovered: it is changed whatever its features are.
    pub(crate) fn is_recovering(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.changes_left.is_some())
    }

    /// Returns the state for writing. Errors: `ReadOnly` if the volume is not open for writing.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or(Error::ReadOnly)
    }

    /// Calls `operation` with a handle that may change `credits` blocks. If it fails after a change, the metadata in
    /// memory is inconsistent, and the volume is shut down. An operation with ordinary failures (`NoSpace`, `Exists`
    /// …) fails before its first change, or undoes its changes and calls [`Handle::mark_undone`].
    pub(crate) fn change<'v, R>(
        &'v self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'v>) -> Result<R>,
    ) -> Result<R> {
        self.writer()?.count_change()?;
        self.change_uncounted(credits, operation)
    }

    /// Calls [`change`](Self::change) for a change that a recovery bounds in another way than by their number.
    pub(crate) fn change_uncounted<'v, R>(
        &'v self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'v>) -> Result<R>,
    ) -> Result<R> {
        let journal = &self.writer()?.journal;
        let mut handle = journal.start(credits)?;
        let result = operation(&mut handle);
        if let Err(error) = &result {
            if handle.has_changes() && !handle.is_undone() {
                journal.fail(error);
            } else {
                journal.apply_error_policy(error);
            }
        }
        result
    }

    /// Calls [`change`](Self::change) for an operation that needs space. Tries again after a commit if the commit frees
    /// space.
    pub(crate) fn change_with_space<'v, R>(
        &'v self,
        credits: u32,
        mut operation: impl FnMut(&mut Handle<'v>) -> Result<R>,
    ) -> Result<R> {
        self.with_space(|| self.change(credits, &mut operation))
    }

    /// Calls `work`. Commits that are requested during the call wait for its end, unless they must make room.
    pub fn delay_commits<R>(&self, work: impl FnOnce() -> R) -> R {
        let _delay = self.writer.as_ref().map(|writer| writer.journal.delay_commits());
        work()
    }

    /// Makes all earlier changes durable, and all data that was written to the device. Updates the superblock's counts.
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

    /// Stores new errors and the counts of free space in the superblock. The next commit makes them durable.
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

    /// Closes the volume: checkpoints all changes, and marks the volume as clean. Later changes fail. A volume that is
    /// dropped without this call is left as after a crash.
    pub fn close(&self) -> Result<()> {
        let closed = self.end_writing();
        self.wait_for_trims()?;
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
        // The orphan list of the superblock needs no flag: e2fsck and the kernel always complete its inodes.
        let mark = journal.use_mark().expect("the volume is open for writing");
        mark.clear_flags(orphans.is_file_empty())
    }

    /// Makes all changes durable at their home locations, and leaves the device as [`close`](Self::close) does, so that
    /// programs which do not replay the journal read the current contents. The volume stays open, and the next change marks
    /// it as in use again.
    ///
    /// The volume stays in use while it has orphans, such as files without a name that are open, since a clean volume gets no
    /// recovery that completes them, and while other threads change it all the time.
    pub fn mark_clean(&self) -> Result<()> {
        let Writer { journal, allocator, orphans, .. } = self.writer()?;
        for _ in 0..CLEAN_ATTEMPTS_MAX {
            // Freed space is counted only after its commit.
            journal.commit_all()?;
            self.update_superblock()?;
            // The superblock of a clean volume has the counts of free space.
            let may_be = || orphans.is_empty() && !allocator.totals_changed();
            if journal.mark_clean(may_be, || self.wait_for_trims())? {
                break;
            }
        }
        Ok(())
    }

    /// Marks the volume as in use again after [`mark_clean`](Self::mark_clean), durably. Errors: `InUse` if another host has
    /// had a volume with multiple-mount protection in the meantime; then the volume is shut down.
    pub fn mark_in_use(&self) -> Result<()> {
        self.writer()?.journal.mark_in_use()
    }
}

/// Sets or clears the flag of `feature`.
pub(crate) fn set(raw: &mut RawSuperblock, feature: Feature, value: bool) {
    let (set, bit) = feature.position();
    let field = match set {
        FeatureSet::Compatible => &mut raw.feature_compat,
        FeatureSet::Incompatible => &mut raw.feature_incompat,
        FeatureSet::ReadOnlyCompatible => &mut raw.feature_ro_compat,
    };
    let others = field.get() & !(1 << bit);
    *field = (others | u32::from(value) << bit).into();
}

/// Returns the features of a log that is about to be written, as the kernel sets them: block checksums if the volume
/// has metadata checksums, block numbers of 64 bits, and revokes.
fn journal_features(now: JournalFeatures, volume: &Features) -> JournalFeatures {
    JournalFeatures {
        checksum_v1: false,
        revoke: true,
        block_numbers_64: now.block_numbers_64 || volume.has(Feature::SixtyFourBit),
        async_commit: false,
        checksum_v2: false,
        checksum_v3: volume.has(Feature::MetadataCsum),
        fast_commit: now.fast_commit,
    }
}
