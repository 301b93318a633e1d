//! The search for a volume on a device, by its first superblock. Not here: copies of it, and
//! recovery.

use std::sync::Arc;

use base::Result;
use device::SharedDevice;
use iomap::PageCache;

use crate::features::Feature;
use crate::superblock::Superblock;
use crate::volume::Volume;

/// The result of [`Volume::probe`].
#[derive(Debug)]
pub enum Probed {
    /// The volume can be used.
    Ready(Arc<Volume>),
    /// The journal has transactions that are not yet in the volume's metadata.
    NeedsRecovery(Unrecovered),
}

/// A volume whose journal must be replayed before its metadata can be trusted.
#[derive(Debug)]
pub struct Unrecovered {
    volume: Arc<Volume>,
}

impl Unrecovered {
    /// Returns the volume without recovery. It is inconsistent if it was being changed when writing
    /// ended.
    pub fn without_recovery(self) -> Arc<Volume> {
        self.volume
    }
}

impl Volume {
    /// Reads the superblock of `device`. Returns whether the volume is ready or needs recovery.
    pub fn probe(device: SharedDevice, cache: &Arc<PageCache>) -> Result<Probed> {
        let superblock = Superblock::read(&device)?;
        // Without a journal, the flag has no meaning.
        let needs_recovery =
            superblock.has(Feature::NeedsRecovery) && superblock.has(Feature::HasJournal);
        let volume = Arc::new(Self::with_superblock(device, cache, superblock));
        Ok(if needs_recovery {
            Probed::NeedsRecovery(Unrecovered { volume })
        } else {
            Probed::Ready(volume)
        })
    }
}
