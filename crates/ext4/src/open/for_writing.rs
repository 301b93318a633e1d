//! The opening of a volume for writing: protection against other hosts, the replay of its log, and
//! its marks. Not here: the completion of orphans (`namespace/release.rs`).

use std::sync::Arc;

use base::{DeviceOffset, Error, FsBlock, Result, Unsupported};
use device::{BlockDevice, LatchDevice, SharedDevice};
use iomap::{BlockContents, PageCache};

use crate::alloc::Allocator;
use crate::features::{Feature, Features};
use crate::jbd2::ondisk::BLOCKS_MIN;
use crate::jbd2::{JournalFeatures, LogWriter};
use crate::journal::use_mark::UseMark;
use crate::journal::{Journal, Worker};
use crate::mmp::{Mmp, MmpBlock};
use crate::ondisk::superblock::{STATE_ERRORS, SUPERBLOCK_OFFSET};
use crate::orphans::found;
use crate::orphans::set::OrphanSet;
use crate::recovery;
use crate::superblock::Superblock;
use crate::superblock::error_log::ErrorLog;
use crate::volume::Volume;
use crate::volume::options::OpenOptions;
use crate::volume::probe::Probed;
use crate::volume::writer::Writer;

impl Volume {
    /// Opens the volume on `device` for reading and writing, and replays its journal in place. A
    /// volume with features whose writing is not supported is refused; the error names them.
    ///
    /// If the volume has multiple-mount protection and was not closed, waits up to some minutes (22
    /// s by default). Errors: `Interrupted` if `wait_callback` ends the wait, [`Error::InUse`] if
    /// another host writes the volume.
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
        volume.superblock().check_cluster_size()?;
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
            let guarded = Arc::downgrade(journal);
            mmp.guard(move |error| {
                if let Some(journal) = guarded.upgrade() {
                    journal.stop(error);
                }
            })?;
            journal.use_mark().expect("the volume is open for writing").add_mmp(mmp.hold());
            Ok(volume)
        });
        match &opened {
            Ok(volume) => {
                let _ = volume.writer()?.mmp.set(mmp);
            }
            Err(_) => {
                // The caller gets the error of the open. If the release fails, the next open only
                // has to wait.
                let _ = mmp.finish();
            }
        }
        opened
    }

    /// Returns the volume without recovery, to check it before anything is written. Another host
    /// may be writing it.
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

    /// Opens the volume for writing, after multiple-mount protection, if any, has excluded other
    /// hosts.
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
        let discard = options.discard.unwrap_or(defaults.discard);
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
        let allocator = Allocator::load(volume.core(), &journal, orphans.numbers(), discard)?;
        let has_errors = has_failed || errors.count > 0;
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
        volume.writer = Some(Writer::new(Arc::clone(&journal), allocator, orphans, Some(worker)));
        if errors != volume.superblock().errors() {
            journal.errors.mark_unstored();
        }
        journal.store_errors()?;
        journal.commit_all()?;
        journal.clear_errno()?;
        let volume = Arc::new(volume);
        volume.complete_orphans(with_errors)?;
        volume.writer()?.journal.store_errors()?;
        // Errors found up to here are recorded, but the policy does not apply to them: they do not
        // prevent the open.
        let policy = options
            .errors
            .or(defaults.errors)
            .unwrap_or_else(|| volume.superblock().error_policy());
        volume.writer()?.journal.errors.set_policy(policy);
        Ok(volume)
    }

    /// Replays the log, if the volume has one, and prepares it for writing. Returns the log, and
    /// the last corruption that the replay of fast commits found.
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
        // The changes of all fast commits become one transaction with their number. Until it is
        // durable, a recovery finds the fast commits again; afterwards it never does.
        let mut log = LogWriter::begin(journal, replayed.end, features, true)?;
        let changes: Vec<(FsBlock, BlockContents)> = changes
            .blocks
            .into_iter()
            .map(|(block, bytes)| (FsBlock(block), Vec::from(bytes).into()))
            .collect();
        // The log is empty, so this transaction may be larger than an ordinary one. Linux writes no
        // transaction of more than a quarter of the journal without its fast commits, but its
        // recovery reads a transaction of any length.
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
}

/// Returns the features of a log that is about to be written, as the kernel sets them: block
/// checksums if the volume has metadata checksums, block numbers of 64 bits, and revokes.
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
