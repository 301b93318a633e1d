//! Block devices: submission of batches of bios, their completion, and flushes.
//! Not here: caching, and any file-system format.

mod bio;
mod block_ioctl;
mod container;
mod fault;
mod file;
mod foreign;
mod hooked;
mod incomplete;
mod latch;
mod latency;
mod lock;
mod memory;
mod open;
mod overlay;
pub mod partition;
mod record;
mod reopen;
mod slice;
mod sparse;
mod split;
mod threaded;
mod uring;
#[cfg(test)]
#[allow(dead_code, reason = "only a part of it is used")]
#[path = "../../testkit/src/waiting.rs"]
mod waiting;
mod worker;

pub use bio::{Bio, BioOperation, Segment};
pub use container::{has_verified_boot, member, refusal, unknown};
pub use fault::{CountedFault, Fault, FaultDevice, FaultKind, FaultPlan, Lasting};
pub use file::FileDevice;
pub use hooked::{DeviceHooks, HookedDevice};
pub use incomplete::IncompleteDevice;
pub use latch::LatchDevice;
pub use latency::LatencyDevice;
pub use lock::{PartLock, is_locked, is_locked_as_whole};
pub use memory::MemoryDevice;
pub use open::{Backend, Image, OpenDevice, Part, is_write_protected, open};
pub use overlay::{OverlayBlocks, OverlayDevice};
pub use record::{Completed, RebuiltDevice, RecordDevice, RecordedWrite, Recording, Replay};
pub use reopen::Reopen;
pub use slice::Slice;
pub use sparse::SparseDevice;
pub use threaded::ThreadedDevice;
pub use uring::UringDevice;
pub use worker::{Worker, WorkingThreads};

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use base::{DeviceOffset, Error, Result};

/// A block device.
///
/// A bio may end on any thread, in any order, and before [`submit`](Self::submit) returns.
/// Every bio ends exactly once: dropping an unfinished bio ends it with EIO.
pub trait BlockDevice: Send + Sync + Debug {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Returns whether writes are refused.
    fn is_read_only(&self) -> bool;

    /// Starts every bio of the batch. Bios outside the device end with EINVAL.
    fn submit(&self, batch: Vec<Bio>);

    /// Makes every write that ended before this call durable.
    fn flush(&self) -> Result<()>;

    /// Declares a range unused. Its contents are undefined afterwards. Errors: EOPNOTSUPP if the
    /// device or the host does not support this.
    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()>;

    /// Makes a range read as zeroes.
    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()>;

    /// Drops cached data of a range, so that the next read sees writes of other hosts. Does nothing
    /// if the device cannot do this.
    fn refresh(&self, offset: DeviceOffset, length: u64) {
        let _ = (offset, length);
    }

    /// Returns the first range from `offset` on that may have data. All bytes before it are in
    /// holes, and read as zeroes. `None` if there is no data up to the end. A device that does not
    /// know its holes has data everywhere.
    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        everything_from(offset, self.size())
    }

    /// Returns the device of which this one is a part. `None` if this is not known to be a part.
    fn origin(&self) -> Option<Origin<'_>> {
        None
    }
}

/// The device of which another one is a part.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The device.
    pub device: &'a dyn BlockDevice,
    /// The position of the part's first byte.
    pub start: u64,
    /// The damage to the partition table that the part was found by.
    pub damage: Option<&'a Error>,
}

/// Returns the range from `offset` to the end of a device of `size` bytes, unless it is empty.
fn everything_from(offset: DeviceOffset, size: u64) -> Option<Range<DeviceOffset>> {
    (offset.0 < size).then_some(offset..DeviceOffset(size))
}

/// A shared reference to a device.
pub type SharedDevice = Arc<dyn BlockDevice>;

impl dyn BlockDevice + '_ {
    /// Reads `buffer.len()` bytes at `offset`, and waits for the end.
    pub fn read_at(&self, offset: DeviceOffset, buffer: &mut [u8]) -> Result<()> {
        bio::read_and_wait(self, offset, buffer)
    }

    /// Writes all of `data` at `offset`, and waits for the end. Durable only after a flush.
    pub fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<()> {
        bio::write_and_wait(self, offset, data)
    }

    /// Writes runs of blocks, and waits for all of them. A run is an offset and the adjacent blocks
    /// from there on; no block is empty. Durable only after a flush.
    pub fn write_all<T: AsRef<[u8]> + Send + Sync + 'static>(
        &self,
        runs: Vec<(DeviceOffset, Vec<T>)>,
    ) -> Result<()> {
        bio::write_all_and_wait(self, runs)
    }
}
