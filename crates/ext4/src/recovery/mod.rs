//! Brings a volume that was not unmounted to the state that its journal promises, in an overlay:
//! what the device holds stays as it is. Not here: how logs and fast commits are read.

mod locate;

use std::sync::Arc;

use base::checksum::crc32c;
use base::{Error, Result};
use device::{OverlayDevice, SharedDevice};
use iomap::PageCache;
use zerocopy::{FromBytes, IntoBytes};

use crate::features::Feature;
use crate::jbd2::{Journal, Recovery};
use crate::ondisk::superblock::RawSuperblock;
use crate::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use crate::volume::{Probed, Unrecovered, Volume};

/// What a recovery puts beside the journal's blocks into memory, at most.
const EXTRA_BYTES_MAX: u64 = 1 << 30;

/// What was done to a volume before it could be read.
#[derive(Clone, Debug)]
pub struct RecoveryReport {
    /// Of the journal's log.
    pub log: Recovery,
}

impl Unrecovered {
    /// The volume with everything that its journal holds. Metadata is kept in `cache`.
    pub fn recover(
        self,
        cache: &Arc<PageCache>,
        journal_device: Option<&SharedDevice>,
    ) -> Result<Arc<Volume>> {
        let volume = self.as_it_lies();
        let base = Arc::clone(volume.device());
        let block_size = volume.geometry().block_size;
        let Some(journal) = volume.journal(journal_device)? else {
            let place = base::Place::byte(SUPERBLOCK_OFFSET.0);
            let problem = base::Problem::Missing("journal to recover from");
            return Err(Error::corrupt("superblock", place, problem));
        };
        drop(volume);
        let journal_bytes = u64::from(journal.blocks().count()) << block_size.shift();
        let overlay: SharedDevice = Arc::new(OverlayDevice::new(
            base,
            block_size,
            journal_bytes.saturating_add(EXTRA_BYTES_MAX),
        ));
        let log = journal.recover(&overlay)?;
        finish(&journal, &log, &overlay)?;
        match Volume::probe(overlay, cache)? {
            Probed::Ready(volume) => Ok(volume.recovered(RecoveryReport { log })),
            Probed::NeedsRecovery(_) => unreachable!("the mark was just removed"),
        }
    }
}

/// Says in the overlay that there is nothing to recover any more.
fn finish(journal: &Journal, log: &Recovery, overlay: &SharedDevice) -> Result<()> {
    if !journal.blocks().is_external() {
        journal.mark_empty(log.end, overlay)?;
    }
    // The log may have held the superblock; what is wrong with it must not be covered up.
    Superblock::read(overlay)?;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    overlay.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let raw =
        RawSuperblock::mut_from_bytes(&mut bytes).expect("the array has exactly the layout's size");
    let incompatible = raw.feature_incompat.get() & !(1 << Feature::NeedsRecovery.position().1);
    raw.feature_incompat = incompatible.into();
    if raw.feature_ro_compat.get() >> Feature::MetadataCsum.position().1 & 1 == 1 {
        raw.checksum = crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_BYTES - 4]).into();
    }
    overlay.write_at(SUPERBLOCK_OFFSET, &bytes)
}
