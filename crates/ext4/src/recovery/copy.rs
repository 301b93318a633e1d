//! Opening of a volume through a copy of its superblock, read-only. Not here: finding the copy.
//!
//! A copy is as old as the last change of the volume's geometry. It has no flag for recovery, no
//! orphans and no recorded errors, and its descriptors have old counts of free blocks. As in
//! e2fsck, the journal's own superblock shows whether the log has transactions. They usually
//! contain the volume's superblock, too. After their replay, the volume is opened as usual.

use std::sync::Arc;

use base::Result;
use device::SharedDevice;
use iomap::PageCache;

use super::{OrphanReport, RecoveryReport, overlay};
use crate::jbd2::Journal;
use crate::superblock::copy::SuperblockCopy;
use crate::volume::Volume;
use crate::volume::options::OpenOptions;
use crate::volume::probe::Probed;

impl Volume {
    /// Opens the volume through `copy`, and replays its journal. If the journal cannot be replayed,
    /// opens the volume without it.
    pub(crate) fn open_by_copy(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        options: &OpenOptions,
        copy: SuperblockCopy,
    ) -> Result<Arc<Self>> {
        let volume = Self::with_copy(device, cache, copy.clone());
        if options.no_recovery {
            return Ok(volume);
        }
        let journal = match volume.journal(options.journal_device.as_ref()) {
            Ok(Some(journal)) if journal.superblock().start.is_some() => journal,
            Ok(_) => return Ok(volume),
            Err(error) => {
                tracing::warn!(%error, "the journal is not replayed: its changes are not visible");
                return Ok(volume);
            }
        };
        match replay(&volume, &journal, cache, options, copy) {
            Ok(recovered) => Ok(recovered),
            Err(error) => {
                tracing::warn!(%error, "the journal is not replayed: its changes are not visible");
                Ok(volume)
            }
        }
    }
}

fn replay(
    volume: &Arc<Volume>,
    journal: &Journal,
    cache: &Arc<PageCache>,
    options: &OpenOptions,
    copy: SuperblockCopy,
) -> Result<Arc<Volume>> {
    let overlay: SharedDevice = overlay(volume.device(), journal, volume.geometry().block_size);
    let log = journal.recover(&overlay, volume.superblock().logged_volume())?;
    let first = match Volume::probe(Arc::clone(&overlay), cache) {
        // The log is replayed a second time, which does not change the result.
        Ok(Probed::NeedsRecovery(first)) => {
            first.recover(cache, options.journal_device.as_ref())?
        }
        Ok(Probed::Ready(first)) => first,
        Err(_) => {
            let report = RecoveryReport {
                log,
                fast_commits: 0,
                fast_commit_failure: None,
                orphans: OrphanReport::default(),
            };
            return Ok(Volume::with_copy(overlay, cache, copy).with_recovery_report(report));
        }
    };
    Ok(first.opened_through(copy))
}
