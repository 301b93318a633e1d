//! The state of a volume that is open for writing. Not here: what is done with it (`writing.rs`).

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use base::locks::RankedMutex;

use crate::alloc::Allocator;
use crate::journal::{Journal, Worker};
use crate::mmp::Mmp;
use crate::orphans::set::OrphanSet;
use crate::ranks;

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
    pub(crate) mmp: OnceLock<Mmp>,
    /// The thread that commits. `None` in a recovery.
    _worker: Option<Worker>,
}

impl Writer {
    /// Returns the state of a volume that is open for writing, with the orphans in `orphans`.
    pub(crate) fn new(
        journal: Arc<Journal>,
        allocator: Arc<Allocator>,
        orphans: OrphanSet,
        worker: Option<Worker>,
    ) -> Self {
        Self {
            journal,
            allocator,
            orphans,
            shared_attributes: RankedMutex::new(ranks::SHARED_ATTRIBUTES, ()),
            has_large_files: AtomicBool::new(false),
            mmp: OnceLock::new(),
            _worker: worker,
        }
    }
}
