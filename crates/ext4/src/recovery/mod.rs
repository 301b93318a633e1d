//! Recovery of a volume that was not unmounted, in an overlay: the device is not written. Not here: reading
//! logs (`jbd2`) and fast commits (`fast_commit`).

mod copy;
pub(crate) mod edit;
mod locate;
pub(crate) mod orphans;
mod torn;

use std::sync::Arc;

use base::{BlockSize, Error, FsBlock, Result};
use device::{OverlayDevice, SharedDevice};
use iomap::PageCache;

pub(crate) use self::locate::journal_runs;
pub use self::orphans::OrphanReport;
pub(crate) use self::torn::untorn;

use self::edit::Editor;
use self::orphans::Orphans;
use crate::fast_commit::{self, Change};
use crate::features::Feature;
use crate::jbd2::{Journal, Recovery};
use crate::orphans::found;
use crate::superblock::SUPERBLOCK_OFFSET;
use crate::volume::error_log::RecordedErrors;
use crate::volume::{Probed, Unrecovered, Volume};

/// The maximum of a journal's log in memory. A log can be longer; but its blocks can be holes in the image's file, so
/// its length alone does not show that the memory is justified.
const LOG_BYTES_MAX: u64 = 4 << 30;
/// The maximum of memory that a recovery takes besides the journal's blocks.
const EXTRA_BYTES_MAX: u64 = 1 << 30;

/// A report of the recovery of a volume.
#[derive(Clone, Debug)]
pub struct RecoveryReport {
    /// Of the journal's log.
    pub log: Recovery,
    /// Fast commits that followed the log's transactions.
    pub fast_commits: usize,
    /// Of inodes that were being deleted or truncated.
    pub orphans: OrphanReport,
}

impl Unrecovered {
    /// Returns the volume with everything that its journal holds. Metadata is kept in `cache`.
    pub fn recover(
        self,
        cache: &Arc<PageCache>,
        journal_device: Option<&SharedDevice>,
    ) -> Result<Arc<Volume>> {
        let volume = self.as_it_lies();
        let base = Arc::clone(volume.device());
        let block_size = volume.geometry().block_size;
        let Some(journal) = volume.journal(journal_device)? else {
            let location = base::Location::byte(SUPERBLOCK_OFFSET.0);
            let problem = base::Problem::Missing("journal to recover from");
            return Err(Error::corrupt("superblock", location, problem));
        };
        // A log may have older ones.
        let errors = volume.superblock().errors();
        let with_errors = found::has_errors(&volume) || journal.superblock().errno != 0;
        drop(volume);
        let overlay = overlay(&base, &journal, block_size);
        let log = journal.recover(&overlay)?;
        if !journal.blocks().is_external() {
            journal.mark_empty(log.end, &overlay)?;
        }
        // They follow a log, and a damaged one hides which of its transactions.
        let commits = if journal.superblock().start.is_some() && log.damage.is_none() {
            fast_commit::read_commits(&journal, log.end)?
        } else {
            Vec::new()
        };
        replay_fast_commits(&overlay, cache, &commits)?;
        let orphans = resolve_orphans(&overlay, cache, errors, with_errors)?;
        match Volume::probe(overlay, cache)? {
            Probed::Ready(volume) => {
                let fast_commits = commits.len();
                Ok(volume.recovered(RecoveryReport { log, fast_commits, orphans }))
            }
            Probed::NeedsRecovery(_) => unreachable!("the mark was just removed"),
        }
    }
}

/// Creates a layer over `base` for the blocks of `journal` and of the rest of the recovery.
fn overlay(base: &SharedDevice, journal: &Journal, block_size: BlockSize) -> SharedDevice {
    let bytes = (u64::from(journal.blocks().count()) << block_size.shift()).min(LOG_BYTES_MAX);
    Arc::new(OverlayDevice::new(Arc::clone(base), block_size, bytes + EXTRA_BYTES_MAX))
}

/// Returns the volume in the overlay, which its superblock still says is to be recovered.
fn reopen(overlay: &SharedDevice, cache: &Arc<PageCache>) -> Result<Arc<Volume>> {
    Ok(match Volume::probe(Arc::clone(overlay), cache)? {
        Probed::Ready(volume) => volume,
        Probed::NeedsRecovery(unrecovered) => unrecovered.as_it_lies(),
    })
}

fn replay_fast_commits(
    overlay: &SharedDevice,
    cache: &Arc<PageCache>,
    commits: &[Vec<Change>],
) -> Result<()> {
    if commits.is_empty() {
        return Ok(());
    }
    edit_by_fast_commits(overlay, cache, commits)?.write(overlay, |_| ())
}

fn edit_by_fast_commits(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    commits: &[Vec<Change>],
) -> Result<Editor> {
    let volume = reopen(device, cache)?;
    let with_errors = found::has_errors(&volume);
    let orphans = Orphans::read(&volume, with_errors).unwrap_or_else(|error| {
        tracing::warn!(%error, "the orphans cannot be read: fast commits are replayed without them");
        Orphans::default()
    });
    let mut editor = Editor::new(volume);
    fast_commit::replay(&mut editor, &orphans, commits)?;
    Ok(editor)
}

/// Returns the blocks that fast commits change on `device`, where the log they follow has been replayed.
pub(crate) fn fast_commit_changes(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    commits: &[Vec<Change>],
) -> Result<Vec<(FsBlock, Box<[u8]>)>> {
    edit_by_fast_commits(device, cache, commits)?.into_changes()
}

/// Deletes and truncates orphans and says that there is nothing to recover any more. On a volume
/// `with_errors` they are left as they are.
fn resolve_orphans(
    overlay: &SharedDevice,
    cache: &Arc<PageCache>,
    errors: RecordedErrors,
    with_errors: bool,
) -> Result<OrphanReport> {
    let volume = reopen(overlay, cache)?;
    let with_errors = with_errors || found::has_errors(&volume);
    let errors = errors.or_more(volume.superblock().errors());
    let resolved = Orphans::read(&volume, with_errors).and_then(|orphans| orphans.resolve(&volume));
    let (editor, report) = resolved.unwrap_or_else(|error| {
        let report = OrphanReport { failure: Some(error), ..OrphanReport::default() };
        (Editor::new(volume), report)
    });
    if let Some(error) = &report.failure {
        tracing::warn!(%error, "an orphan is corrupt, and is not ended");
    }
    editor.write(overlay, |raw| {
        clear(&mut raw.feature_incompat, Feature::NeedsRecovery);
        errors.store(raw);
        raw.last_orphan = 0.into();
        if report.failure.is_none() && !with_errors {
            clear(&mut raw.feature_ro_compat, Feature::OrphanPresent);
        }
    })?;
    Ok(report)
}

fn clear(features: &mut zerocopy::little_endian::U32, feature: Feature) {
    *features = (features.get() & !(1 << feature.position().1)).into();
}
