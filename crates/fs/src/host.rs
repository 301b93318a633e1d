//! The vfs, as a format sees it.

use std::fmt::Debug;
use std::sync::Arc;

use base::InodeNumber;
use iomap::{WritableFile, WritesHeld};

/// The vfs, for formats that move data or write checkpoints on their own. The caller of its methods holds
/// no lock of the format.
pub trait Host: Send + Sync + Debug {
    /// Returns the cached data of an inode, without waiting and without loading it. Returns `None` if the inode is
    /// not in memory, or has not been opened since it was loaded.
    fn cached_data(&self, number: InodeNumber) -> Option<Arc<WritableFile>>;

    /// Waits until no data of the volume is on its way to the device, and lets none set out until the result is
    /// dropped. Returns `None` if the volume is read-only. See [`iomap::EndIo::hold_writes`] for what the caller may
    /// hold.
    fn hold_writes(&self) -> Option<WritesHeld>;
}
