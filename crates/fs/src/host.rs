//! The interface of the vfs for formats.

use std::fmt::Debug;
use std::sync::Arc;

use base::InodeNumber;
use iomap::{WritableFile, WritesHeld};

/// The vfs, for formats that move data or write checkpoints on their own. Callers of its methods hold no lock of the
/// format.
pub trait Host: Send + Sync + Debug {
    /// Returns the cached data of an inode, without waiting and without loading the inode. Returns `None` if the inode
    /// is not in memory, or has not been opened since it was loaded.
    fn cached_data(&self, number: InodeNumber) -> Option<Arc<WritableFile>>;

    /// Waits until no writes of data are in flight, and lets none begin until the result is dropped. Returns `None` if
    /// the volume is read-only. [`iomap::EndIo::hold_writes`] says which locks the caller may hold.
    fn hold_writes(&self) -> Option<WritesHeld>;
}
