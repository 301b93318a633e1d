//! The state of a volume that is open for writing; opening and closing it.
//! Not here: the changes.

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
use crate::ondisk::superblock::{RawSuperblock, STATE_ERRORS, STATE_VALID};
use crate::orphans::found;
use crate::orphans::write::OrphanSet;
use crate::ranks;
use crate::recovery;
use crate::superblock::{self, SUPERBLOCK_OFFSET, Superblock};
use crate::volume::error_log::{ErrorLog, RecordedErrors};
use crate::volume::mmp::{Mmp, MmpBlock};
use crate::volume::{OpenOptions, Probed, Volume};

const STRUCTURE: &str = "superblock";

/// The state of a volume that is open for writing.
pub(crate) struct Writer {
    pub(crate) journal: Arc<Journal>,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) orphans: OrphanSet,
    /// Held by a thread that changes how many inodes use an attribute block, or a value in an inode.
    pub(crate) shared_attributes: RankedMutex<()>,
    /// The multiple-mount protection of the volume, if it has that.
    mmp: OnceLock<Mmp>,
    _worker: Worker,
}

impl Volume {
    /// Opens the volume on `device` for reading and writing, and replays its journal in place. Features that are not
    /// written yet are refused; the error names them.
    ///
    /// With multiple-mount protection, waits for a volume that was not closed, up to some minutes (22 s by default).
    /// Errors: `Interrupted` if `wait_callback` ends the wait, [`Error::InUse`] if another host writes the volume.
    pub fn open_for_writing(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        if device.is_read_only() {
            return Err(Error::ReadOnly);
        }
        // So that no flush succeeds after another one, by any code, has failed.
        let latch = Arc::new(LatchDevice::new(device));
        if options.superblock.is_some() {
            return Err(Error::InvalidArgument(
                "a volume cannot be opened for writing through a chosen superblock",
            ));
        }
        let volume = Self::look(latch.clone(), cache, options)?;
        volume.geometry().check_writable()?;
        let Some(block) = MmpBlock::of(&volume)? else {
            return Self::open_alone(latch, cache, options);
        };
        // The zones are checked before anything is written.
        volume.fixed_zones().check()?;
        drop(volume);
        let mmp = Mmp::start(block, &options.wait_callback)?;
        // Another host may have changed blocks after they were read here, and have released the volume since.
        latch.refresh(DeviceOffset(0), latch.size());
        let opened = Self::open_alone(latch, cache, options).and_then(|volume| {
            mmp.guard(&volume.writer()?.journal)?;
            Ok(volume)
        });
        match &opened {
            Ok(volume) => {
                let _ = volume.writer()?.mmp.set(mmp);
            }
            Err(_) => {
                // What went wrong is told; that the next one has to wait is not worse.
                let _ = mmp.finish();
            }
        }
        opened
    }

    /// Returns the volume without recovery, before anything is written. Another host may be writing it.
    fn look(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let error = match Self::probe(Arc::clone(&device), cache) {
            Ok(Probed::Ready(volume)) => return Ok(volume),
            Ok(Probed::NeedsRecovery(unrecovered)) => return Ok(unrecovered.as_it_lies()),
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

    /// [`open_for_writing`](Self::open_for_writing) after multiple-mount protection excludes other hosts.
    fn open_alone(
        latch: Arc<LatchDevice>,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let device: SharedDevice = latch.clone();
        let journal_device = options.journal_device.clone();
        let journal_device =
            journal_device.map(|device| -> SharedDevice { Arc::new(LatchDevice::new(device)) });
        if let Err(error) = Superblock::read(&device) {
            // As it was found to be for the look at the volume.
            let whole = recovery::untorn(&device, cache, journal_device.as_ref(), &error);
            device.write_at(SUPERBLOCK_OFFSET, &whole.ok_or(error)?)?;
            device.flush()?;
        }
        let (volume, needs_recovery) = match Self::probe(Arc::clone(&device), cache)? {
            Probed::Ready(volume) => (volume, false),
            Probed::NeedsRecovery(unrecovered) => (unrecovered.as_it_lies(), true),
        };
        let mut log = volume.begin_log(cache, journal_device.as_ref(), needs_recovery)?;
        let has_log = log.is_some();
        let has_failed = log.as_ref().is_some_and(|log| log.errno() != 0);
        let mut with_errors = has_failed || found::has_errors(&volume);
        let errors_before = volume.superblock().errors();
        // What was read before the log was replayed may be out of date.
        drop(volume);
        let volume = match Self::probe(Arc::clone(&device), cache)? {
            Probed::Ready(volume) => volume,
            Probed::NeedsRecovery(unrecovered) => unrecovered.as_it_lies(),
        };
        with_errors |= found::has_errors(&volume);
        let orphans = OrphanSet::open(&volume)?;
        let mut volume = Arc::into_inner(volume).expect("nobody else has a volume just opened");
        // The log may have had an older superblock.
        let errors = errors_before.or_more(volume.superblock().errors());
        let log_of_errors = ErrorLog::new(volume.geometry().clone(), errors.clone());
        let metadata = Arc::clone(volume.metadata());
        if let Some(log) = &mut log {
            log.limit(metadata.changed_max());
        }
        let journal = Arc::new(Journal::new(latch, metadata, log, log_of_errors));
        let allocator = Allocator::load(&volume, options.discard)?;
        let _worker = Worker::start(Arc::clone(&journal), options.commit_interval)?;
        let shared_attributes = RankedMutex::new(ranks::SHARED_ATTRIBUTES, ());
        let mmp = OnceLock::new();
        volume.writer =
            Some(Writer { journal, allocator, orphans, shared_attributes, mmp, _worker });
        let has_orphan_file = volume.superblock().has(Feature::OrphanFile);
        volume.change_flags(|raw| {
            if has_log {
                set(raw, Feature::NeedsRecovery, true);
            } else {
                raw.state = (raw.state.get() & !STATE_VALID).into();
            }
            if has_orphan_file {
                // Only then is it looked at after a crash.
                set(raw, Feature::OrphanPresent, true);
            }
            if has_failed || errors.count > 0 {
                raw.state = (raw.state.get() | STATE_ERRORS).into();
            }
        })?;
        let journal = &volume.writer()?.journal;
        if errors != volume.superblock().errors() {
            journal.errors.renew();
        }
        journal.store_errors()?;
        journal.commit_all()?;
        journal.forget_errno()?;
        let volume = Arc::new(volume);
        volume.end_orphans(with_errors)?;
        // What was found up to here is kept, and no reason not to open the volume.
        let policy = options.errors.unwrap_or_else(|| volume.superblock().error_policy());
        volume.writer()?.journal.errors.obey(policy);
        Ok(volume)
    }

    /// Returns whether the volume was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.writer.is_some()
    }

    /// Fails if nothing can be changed: with `ReadOnly` on a volume that is not open for writing, with `ShutDown`
    /// after an error that has shut it down.
    pub fn check_writable(&self) -> Result<()> {
        self.writer()?.journal.check()
    }

    /// Shuts the volume down after a panic in writing data or its end of I/O. The panic hook has reported the panic.
    /// `operation` is the operation that panicked.
    pub fn panicked(&self, operation: &'static str) {
        if let Some(writer) = &self.writer {
            writer.journal.fail_after_panic(operation);
        }
    }

    /// Applies the volume's error policy to an error of a read: corruption is recorded in the superblock if the
    /// volume is open for writing.
    pub fn found(&self, error: &Error) {
        if let Some(writer) = &self.writer {
            writer.journal.found(error);
        }
    }

    /// Returns the errors since the volume was last repaired.
    pub fn errors(&self) -> RecordedErrors {
        match &self.writer {
            Some(writer) => writer.journal.errors.errors(),
            None => self.superblock().errors(),
        }
    }

    /// Replays the log, if the volume has one, and prepares it for writing.
    fn begin_log(
        self: &Arc<Self>,
        cache: &Arc<PageCache>,
        journal_device: Option<&SharedDevice>,
        needs_recovery: bool,
    ) -> Result<Option<LogWriter>> {
        let Some(journal) = self.journal(journal_device)? else { return Ok(None) };
        if journal.superblock().users > 1 {
            return Err(Unsupported::Operation("a journal that several volumes share").into());
        }
        let log = &journal.superblock().log;
        if log.end - log.start + 1 < BLOCKS_MIN {
            // As for the kernel: an operation must find room in one transaction.
            return Err(Unsupported::Operation("writing so small a journal").into());
        }
        let features = journal_features(journal.superblock().features, &self.geometry().features);
        if !needs_recovery {
            let next = journal.superblock().sequence;
            return LogWriter::begin(journal, next, features, false).map(Some);
        }
        let replayed = journal.recover(self.device())?;
        if let Some(damage) = replayed.damage {
            return Err(damage);
        }
        // Before the log, which a second recovery would begin with, is written over.
        self.device().flush()?;
        let commits = crate::fast_commit::read_commits(&journal, replayed.end)?;
        if commits.is_empty() {
            return LogWriter::begin(journal, replayed.end.next(), features, false).map(Some);
        }
        let changes = recovery::fast_commit_changes(self.device(), cache, &commits)?;
        // They become the transaction that they follow each other into: until it is durable, they
        // are found again, and afterwards never.
        let mut log = LogWriter::begin(journal, replayed.end, features, true)?;
        let changes: Vec<(FsBlock, BlockContents)> =
            changes.into_iter().map(|(block, bytes)| (block, Vec::from(bytes).into())).collect();
        if changes.len() as u64 > log.blocks_max() {
            let operation = "fast commits that change more than a transaction can hold";
            return Err(Unsupported::Operation(operation).into());
        }
        log.write(&changes, &[])?;
        for (block, contents) in &changes {
            let offset = self.geometry().block_size.device_offset(*block).expect("it lies in it");
            self.device().write_at(offset, contents)?;
        }
        self.device().flush()?;
        log.forget_fast_commits()?;
        log.checkpointed()?;
        Ok(Some(log))
    }

    /// Changes flags of the superblock in place, durably, outside any transaction. Nothing else may change the volume
    /// meanwhile. Only flags that recovery can reconstruct after a tear are changed in this way (`recovery/torn.rs`).
    fn change_flags(&self, change: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        let block = self.geometry().superblock_block();
        self.metadata().change(block, STRUCTURE, Location::block(block), |bytes| {
            superblock::edit(bytes, self.geometry(), change);
        })?;
        if let Some(contents) = self.metadata().changed(block) {
            let offset = self.geometry().block_size.device_offset(block).expect("it lies in it");
            self.device().write_at(offset, &contents)?;
            self.metadata().written(block, &contents);
        }
        self.device().flush()
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

    /// Returns the state for writing. Errors: `ReadOnly` if the volume is not open for writing.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or(Error::ReadOnly)
    }

    /// Runs `operation` with a handle that may change `credits` blocks. If it fails after a change, the metadata in
    /// memory is inconsistent, and the volume is shut down. An operation with ordinary failures (`NoSpace`, `Exists`
    /// …) fails before its first change, or undoes its changes and calls [`Handle::undone`].
    pub(crate) fn change<'v, R>(
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
                journal.found(error);
            }
        }
        result
    }

    /// [`change`](Self::change) for operations that need space: tried again after a commit if that frees some.
    pub(crate) fn change_with_space<'v, R>(
        &'v self,
        credits: u32,
        mut operation: impl FnMut(&mut Handle<'v>) -> Result<R>,
    ) -> Result<R> {
        self.with_space(|| self.change(credits, &mut operation))
    }

    /// Calls `work`. Commits that are requested meanwhile wait for its end, unless they must make room.
    pub fn delay_commits<R>(&self, work: impl FnOnce() -> R) -> R {
        let _delay = self.writer.as_ref().map(|writer| writer.journal.delay_commits());
        work()
    }

    /// Makes all earlier changes, and data that is on the device, durable, and updates the superblock's counts.
    pub fn sync(&self) -> Result<()> {
        let journal = &self.writer()?.journal;
        // Where nothing can be changed any more the commit says what that means.
        if journal.check().is_ok() {
            self.update_superblock()?;
        }
        if !journal.sync(journal.latest())? {
            journal.flush_device()?;
        }
        Ok(())
    }

    /// Writes new errors and the counts of free space to the superblock, with the next commit.
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

    /// Closes the volume: checkpoints everything, and marks the volume as clean. It is not changed afterwards. A
    /// volume that is dropped without this is left as after a crash.
    pub fn close(&self) -> Result<()> {
        let closed = self.end_writing();
        match self.writer()?.mmp.get() {
            // Whatever came of it, nothing is written any more.
            Some(mmp) => closed.and(mmp.finish()),
            None => closed,
        }
    }

    fn end_writing(&self) -> Result<()> {
        let Writer { journal, orphans, .. } = self.writer()?;
        // What is freed counts from its commit on.
        journal.commit_all()?;
        self.update_superblock()?;
        journal.finish()?;
        let has_no_orphans = orphans.is_file_empty();
        let was_valid = self.superblock().raw().state.get() & STATE_VALID;
        self.change_flags(|raw| {
            set(raw, Feature::NeedsRecovery, false);
            if has_no_orphans {
                set(raw, Feature::OrphanPresent, false);
            }
            raw.state = (raw.state.get() | was_valid).into();
        })
    }
}

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

/// Returns the features of a log that is about to be written, as the kernel sets them: the volume's checksums, large
/// block numbers, and revokes.
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
