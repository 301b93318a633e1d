//! Recovery of a volume that was not unmounted, in an overlay: the device is not written. The
//! ordinary writer (`scratch.rs`) replays fast commits, and deletes and truncates orphans, with any
//! features of the volume. Not here: reading logs (`jbd2`) and fast commits (`fast_commit`).

mod copy;
mod locate;
pub(crate) mod scratch;
mod torn;

use std::sync::Arc;

use base::{BlockSize, Error, Location, Result};
use device::{OverlayBlocks, OverlayDevice, SharedDevice};
use iomap::PageCache;

use self::scratch::{Limits, reopen};
pub(crate) use self::torn::untorn;

use crate::alloc::store_totals;
use crate::fast_commit::{self, Change};
use crate::features::Feature;
use crate::jbd2::Journal;
use crate::ondisk::superblock::SUPERBLOCK_OFFSET;
use crate::orphans::found;
use crate::superblock::error_log::RecordedErrors;
use crate::superblock::{self, Superblock, set_feature};
use crate::volume::Volume;
use crate::volume::probe::{Probed, Unrecovered};
use crate::volume::report::{OrphanReport, RecoveryReport};

/// The maximum size of a journal's log in memory, in bytes. A log can be longer. But its blocks can
/// be holes in the image file, so its length alone does not justify more memory.
const LOG_BYTES_MAX: u64 = 4 << 30;
/// The maximum memory of a recovery in addition to the journal's blocks, in bytes: for the changes
/// of fast commits and orphans, and for the superblock.
const EXTRA_BYTES_MAX: u64 = 2 * scratch::BYTES_MAX + (1 << 20);
/// The maximum number of changes for orphans. On a hostile volume many orphans can share their
/// maps, so the volume's size is no bound.
const ORPHAN_CHANGES_MAX: u64 = 1 << 19;
/// The maximum number of changes for fast commits, in addition to those for each tag.
const FAST_COMMIT_CHANGES_MAX: u64 = 1 << 18;
/// The maximum number of changes for each tag of a fast commit.
const CHANGES_PER_TAG: u64 = 16;

impl Unrecovered {
    /// Replays the journal and completes the orphans in memory. Returns the recovered volume, whose
    /// metadata is cached in `cache`.
    pub fn recover(
        self,
        cache: &Arc<PageCache>,
        journal_device: Option<&SharedDevice>,
    ) -> Result<Arc<Volume>> {
        let volume = self.without_recovery();
        let base = Arc::clone(volume.device());
        let geometry = volume.geometry().clone();
        let logged_volume = volume.superblock().logged_volume();
        let Some(journal) = volume.journal(journal_device)? else {
            let location = Location::byte(SUPERBLOCK_OFFSET.0);
            let problem = base::Problem::Missing("journal to recover from");
            return Err(Error::corrupt("superblock", location, problem));
        };
        // The log may contain a superblock with older errors.
        let errors = volume.superblock().errors();
        let with_errors = found::has_errors(&volume) || journal.superblock().errno != 0;
        drop(volume);
        let overlay = overlay(&base, &journal, geometry.block_size);
        let device: SharedDevice = overlay.clone();
        let log = journal.recover(&device, logged_volume)?;
        geometry.check_replayed(&Superblock::read(&device)?.geometry)?;
        if !journal.blocks().is_external() {
            journal.mark_empty(log.end, &device)?;
        }
        // Fast commits follow the last transaction of the log. If the log is damaged, this
        // transaction is unknown.
        let commits = if journal.superblock().start.is_some() && log.damage.is_none() {
            fast_commit::read_commits(&journal, log.end)?
        } else {
            Vec::new()
        };
        let mut fast_commit_failure = None;
        if !commits.is_empty() {
            let changes = fast_commit_changes(&device, cache, &commits)?;
            overlay.put_blocks(changes.blocks)?;
            fast_commit_failure = changes.failure;
        }
        let orphans = complete_orphans(&overlay, cache, with_errors)?;
        finish(&device, cache, errors, orphans.failure.is_none() && !with_errors)?;
        match Volume::probe(device, cache)? {
            Probed::Ready(volume) => {
                let fast_commits = commits.len();
                let report = RecoveryReport { log, fast_commits, fast_commit_failure, orphans };
                Ok(volume.with_recovery_report(report))
            }
            Probed::NeedsRecovery(_) => unreachable!("the feature flag was just removed"),
        }
    }
}

/// Creates an overlay over `base` with space for the blocks of `journal` and of the rest of the
/// recovery.
fn overlay(base: &SharedDevice, journal: &Journal, block_size: BlockSize) -> Arc<OverlayDevice> {
    let bytes = (u64::from(journal.blocks().count()) << block_size.shift()).min(LOG_BYTES_MAX);
    Arc::new(OverlayDevice::new(Arc::clone(base), block_size, bytes + EXTRA_BYTES_MAX))
}

/// The changes that fast commits make.
pub(crate) struct FastCommitChanges {
    /// The changed blocks, with their new contents.
    pub blocks: OverlayBlocks,
    /// The last corruption that the replay found, if any.
    pub failure: Option<Error>,
}

/// Returns the changes that fast commits make on `device`. The log before the fast commits has
/// already been replayed to `device`.
pub(crate) fn fast_commit_changes(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    commits: &[Vec<Change>],
) -> Result<FastCommitChanges> {
    let limits = Limits { changes: changes_max(commits), bytes: scratch::BYTES_MAX };
    let (failure, blocks) = scratch::change(device, cache, limits, |volume| {
        let with_errors = found::has_errors(volume);
        if let Err(error) = volume.writer()?.orphans.adopt(volume, with_errors) {
            tracing::warn!(%error, "the orphans cannot be read; fast commits are replayed without them");
        }
        fast_commit::replay(volume, commits)?;
        Ok(volume.writer()?.journal.errors.latest())
    })?;
    Ok(FastCommitChanges { blocks, failure })
}

/// Returns the maximum number of changes that the replay of `commits` may make. Marking of blocks
/// is not counted.
fn changes_max(commits: &[Vec<Change>]) -> u64 {
    FAST_COMMIT_CHANGES_MAX + commits.iter().map(Vec::len).sum::<usize>() as u64 * CHANGES_PER_TAG
}

/// Deletes and truncates orphans. Leaves them unchanged on a volume with errors (`with_errors`),
/// and if their changes cannot be made. An error does not fail the recovery, since the volume can
/// be read nevertheless: it is returned in the report.
///
/// An error after a change of one orphan leaves all of them unchanged. No reader needs the others:
/// they have no names, or blocks that are past the end of the file. Only the counts of free space
/// are smaller.
fn complete_orphans(
    overlay: &Arc<OverlayDevice>,
    cache: &Arc<PageCache>,
    with_errors: bool,
) -> Result<OrphanReport> {
    let device: SharedDevice = overlay.clone();
    let found = reopen(&device, cache)?;
    let superblock = found.superblock();
    if superblock.inodes.last_orphan.is_none() && !superblock.has(Feature::OrphanPresent) {
        return Ok(OrphanReport::default());
    }
    let limits = Limits { changes: ORPHAN_CHANGES_MAX, bytes: scratch::BYTES_MAX };
    let completed = scratch::change(&device, cache, limits, |volume| {
        let with_errors = with_errors || found::has_errors(volume);
        let mut report = volume.complete_orphans(with_errors)?;
        let damage = volume.writer()?.journal.errors.latest();
        report.failure = report.failure.or(damage);
        Ok(report)
    });
    let completed =
        completed.and_then(|(report, blocks)| overlay.put_blocks(blocks).map(|()| report));
    let report = completed
        .unwrap_or_else(|error| OrphanReport { failure: Some(error), ..OrphanReport::default() });
    if let Some(error) = &report.failure {
        tracing::warn!(%error, "an orphan cannot be deleted or truncated completely");
    }
    Ok(report)
}

/// Marks the volume as recovered. Stores the free counts of all groups, and `errors` if the
/// superblock has fewer. If `has_no_orphans`, also marks the orphan file as empty.
fn finish(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    errors: RecordedErrors,
    has_no_orphans: bool,
) -> Result<()> {
    let volume = reopen(device, cache)?;
    let has_no_orphans = has_no_orphans && !found::has_errors(&volume);
    let errors = errors.or_more(volume.superblock().errors());
    let block = volume.geometry().superblock_block();
    let found = volume.read_metadata(block, "superblock", Location::block(block))?;
    let mut bytes = found[..].to_vec().into_boxed_slice();
    let totals = volume.free_counts();
    superblock::edit(&mut bytes, volume.geometry(), |raw| {
        set_feature(raw, Feature::NeedsRecovery, false);
        errors.store(raw);
        if let Some(totals) = totals {
            store_totals(raw, volume.geometry(), totals);
        }
        raw.last_orphan = 0.into();
        if has_no_orphans {
            set_feature(raw, Feature::OrphanPresent, false);
        }
    });
    let offset =
        volume.geometry().block_size.device_offset(block).expect("the superblock is in the volume");
    device.write_at(offset, &bytes)
}

#[cfg(test)]
mod tests;
