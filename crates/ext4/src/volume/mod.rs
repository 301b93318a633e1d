//! An open volume: its superblock, descriptors and inodes.

pub(crate) mod info;
pub(crate) mod label;
mod large_files;
pub(crate) mod options;
pub(crate) mod probe;
pub(crate) mod report;
pub(crate) mod statfs;
pub(crate) mod writer;
mod writing;

use std::sync::{Arc, OnceLock};

use base::attributes::StatFs;
use device::SharedDevice;
use fscrypt::Keys;
use iomap::PageCache;

use crate::core::Core;
use crate::features::Feature;
use crate::inode::times;
use crate::ondisk::superblock::STATE_VALID;
use crate::superblock::Superblock;
use crate::superblock::copy::SuperblockCopy;
use crate::volume::report::RecoveryReport;
use crate::volume::writer::Writer;

/// An open volume.
pub struct Volume {
    core: Arc<Core>,
    pub(crate) statfs: OnceLock<StatFs>,
    recovery: Option<RecoveryReport>,
    /// The copy that is used instead of the first superblock.
    copy: Option<SuperblockCopy>,
    /// The keys of encrypted files. Volumes with such files are read-only.
    pub(crate) keys: Arc<Keys>,
    /// `None` on a read-only volume.
    pub(crate) writer: Option<Writer>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("device", self.core.device()).finish_non_exhaustive()
    }
}

impl std::ops::Deref for Volume {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Volume {
    /// Returns the volume that `superblock` describes.
    pub(crate) fn with_superblock(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        superblock: Superblock,
    ) -> Self {
        Self {
            core: Arc::new(Core::new(device, cache, superblock)),
            statfs: OnceLock::new(),
            recovery: None,
            copy: None,
            keys: Arc::default(),
            writer: None,
        }
    }

    /// Returns the volume that `copy` describes.
    pub(crate) fn with_copy(
        device: SharedDevice,
        cache: &Arc<PageCache>,
        copy: SuperblockCopy,
    ) -> Arc<Self> {
        let superblock = copy.superblock.clone();
        Arc::new(Self { copy: Some(copy), ..Self::with_superblock(device, cache, superblock) })
    }

    /// Returns the volume with the information that it was opened through `copy`.
    pub(crate) fn opened_through(self: Arc<Self>, copy: SuperblockCopy) -> Arc<Self> {
        let mut volume =
            Arc::into_inner(self).expect("a volume that was just opened has one owner");
        volume.copy = Some(copy);
        Arc::new(volume)
    }

    /// Returns what all parts of the volume share.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the copy that is used instead of the first superblock.
    pub(crate) fn copy(&self) -> Option<&SuperblockCopy> {
        self.copy.as_ref()
    }

    /// Returns a report of the recovery in memory, if there was one.
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.recovery.as_ref()
    }

    /// Returns the volume with the report of its recovery.
    pub(crate) fn with_recovery_report(self: Arc<Self>, report: RecoveryReport) -> Arc<Self> {
        let mut volume =
            Arc::into_inner(self).expect("a volume that was just opened has one owner");
        volume.recovery = Some(report);
        Arc::new(volume)
    }

    /// Returns the keys of encrypted files.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns whether the superblock's counts of free blocks and inodes are exact. The kernel,
    /// e2fsck and this crate update them when a volume is closed. Until then, and after a crash or
    /// a recovery in memory, they may be older than the groups'.
    pub(crate) fn has_exact_counts(&self) -> bool {
        let is_clean = self.superblock().raw().state.get() & STATE_VALID != 0;
        let needs_recovery = self.superblock().has(Feature::NeedsRecovery);
        is_clean
            && !needs_recovery
            && self.recovery.is_none()
            && self.copy.is_none()
            && self.writer.is_none()
    }

    /// Returns the granularity of inode times, in nanoseconds.
    pub fn time_granularity(&self) -> u32 {
        times::granularity(self.geometry().inode_size as usize)
    }
}
