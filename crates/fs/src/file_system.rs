//! The interface of open volumes for the vfs.

use std::fmt::Debug;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Instant;

use base::attributes::{CheckSummary, StatFs, VolumeInfo};
use base::space::ReserveAccess;
use base::{BlockSize, Error, FsBlock, InodeNumber, Result, Unsupported};
use device::SharedDevice;

use crate::{CheckObserver, Credentials, DefaultOptions, Inode};

/// The result of cleaning a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleaning {
    /// The number of free segments before.
    pub free_before: u64,
    /// The number of free segments after.
    pub free_after: u64,
    /// The number of sections whose blocks were moved.
    pub sections: u64,
    /// The number of blocks that were moved.
    pub blocks: u64,
}

/// The result of cleaning sections that the caller has chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeCleaning {
    /// All of them were cleaned.
    Done,
    /// One of them has no blocks in use.
    Empty,
    /// A log writes to one of them.
    InLog,
    /// One of them has blocks that stay, such as those of pinned files.
    Kept,
}

/// An open volume of some format.
pub trait FileSystem: Send + Sync + Debug {
    /// Returns the inode of `/`.
    fn root(&self) -> InodeNumber;

    /// Returns the block size: the unit in which file data is mapped.
    fn block_size(&self) -> BlockSize;

    /// Loads and verifies an inode. The vfs loads an inode only if its inode table does not have
    /// it. Errors: `NotFound` if the inode is not in use, `Corrupt` if its number is outside the
    /// volume.
    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>>;

    /// Loads the inode of a number from a file handle of any age. Errors: `NotFound` if the inode
    /// has no name, or the number cannot be in use.
    fn load_kept_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        self.load_inode(number)
    }

    /// Returns counts of space and inodes.
    fn statfs(&self) -> StatFs;

    /// Returns the granularity of inode times, in nanoseconds.
    fn time_granularity(&self) -> u32 {
        1
    }

    /// Returns the part of the volume's free space that `by` may allocate.
    fn reserve_access_of(&self, by: &Credentials) -> ReserveAccess {
        if by.uid == 0 { ReserveAccess::Root } else { ReserveAccess::None }
    }

    /// Discards free blocks in `bytes`, in free extents of at least `bytes_min`. Returns the number
    /// of bytes discarded.
    fn trim(&self, bytes: Range<u64>, bytes_min: u64) -> Result<u64> {
        let _ = (bytes, bytes_min);
        Err(Unsupported::Operation("discarding free space").into())
    }

    /// Moves data so that the free space becomes contiguous, until nothing is left to gain. Only
    /// formats that write out of place need this.
    fn clean(&self) -> Result<Cleaning> {
        Err(Unsupported::Operation("cleaning").into())
    }

    /// Does a small part of [`clean`](Self::clean). Returns whether there was something to gain.
    fn clean_some(&self) -> Result<bool> {
        Err(Unsupported::Operation("cleaning").into())
    }

    /// Cleans the sections that have `blocks`, also those with nothing to gain, up to the first one
    /// that does not become free. With `skips_kept`, goes on after sections with blocks that stay.
    /// Errors: `InvalidArgument` unless all blocks are in the area of sections.
    fn clean_range(
        &self,
        blocks: RangeInclusive<FsBlock>,
        skips_kept: bool,
    ) -> Result<RangeCleaning> {
        let _ = (blocks, skips_kept);
        Err(Unsupported::Operation("cleaning").into())
    }

    /// Does a small part of [`clean`](Self::clean), if there is something to gain and nothing else
    /// to do. Returns whether it has. Called now and then.
    fn clean_in_background(&self) -> Result<bool> {
        Ok(false)
    }

    /// Waits until the format's own threads hold no inode. Called when the volume is dropped.
    fn wait_until_idle(&self) {}

    /// Returns since when the volume has changes that only [`sync`](Self::sync) makes durable.
    /// `None` if there are none, or if the format commits by itself.
    fn changed_since(&self) -> Option<Instant> {
        None
    }

    /// Returns the current label, without padding.
    fn label(&self) -> Result<Vec<u8>> {
        Ok(self.info().label)
    }

    /// Sets the label, durably.
    fn set_label(&self, label: &[u8]) -> Result<()> {
        let _ = label;
        Err(Error::ReadOnly)
    }

    /// Returns a description of the volume for users.
    fn info(&self) -> VolumeInfo;

    /// Returns the bits of the volume's features, as F2FS_IOC_GET_FEATURES does. Returns `None` for
    /// formats without such a request.
    fn feature_bits(&self) -> Option<u32> {
        None
    }

    /// Returns a warning for users about the volume's data, such as a damaged superblock, if there
    /// is one.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Returns the mount options that the volume has of its own.
    fn default_options(&self) -> DefaultOptions {
        DefaultOptions::default()
    }

    /// Returns whether the volume says that errors were found in it, by this program or another
    /// one, since the last repair.
    fn has_error_mark(&self) -> bool {
        false
    }

    /// Checks the whole volume without changing it. `observer` receives the findings, and may end
    /// the check.
    fn check(&self, observer: &mut dyn CheckObserver) -> CheckSummary;

    /// Returns the device with the file data.
    fn device(&self) -> &SharedDevice;

    /// Returns whether the volume is open for writing.
    fn is_writable(&self) -> bool {
        false
    }

    /// Fails if the volume cannot be changed: it is read-only, or was shut down by an error.
    fn check_writable(&self) -> Result<()> {
        if self.is_writable() { Ok(()) } else { Err(Error::ReadOnly) }
    }

    /// Shuts the volume down after a panic in a background thread, since the state in memory may be
    /// inconsistent. The panic hook has reported the panic. `operation` names the operation that
    /// panicked, such as "writeback".
    fn panicked(&self, operation: &'static str) {
        let _ = operation;
    }

    /// Calls `work`, which writes data back. Commits that are requested during the call wait for
    /// its end, so that they include its changes. Commits that make room in the log do not wait.
    fn delay_commits(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// Makes all earlier changes durable.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Makes all changes durable, and leaves the device as [`close`](Self::close) does. The volume
    /// stays open, and its next change marks it as in use again.
    fn mark_clean(&self) -> Result<()> {
        self.sync()
    }

    /// Marks the volume as in use after [`mark_clean`](Self::mark_clean), before data is written
    /// that no change of metadata precedes.
    fn mark_in_use(&self) -> Result<()> {
        Ok(())
    }

    /// Closes the volume: makes all changes durable, and marks the volume as clean. Later changes
    /// fail.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}
