//! What a direct write that made a file longer has left on the device past the file's end.
//! Not here: writing it.

use parking_lot::Mutex;

/// The end of a file, in bytes, and that of its block, up to which the device has zeroes from there on.
/// Nobody writes anything else past the end of a file; what lay there before the first write did is not
/// known.
#[derive(Debug, Default)]
pub(crate) struct DirectTail(Mutex<Option<(u64, u64)>>);

impl DirectTail {
    /// Whether a write from byte `at` on, in the block that ends with byte `block_end`, goes on where the
    /// last one ended, in a file of `size` bytes. The caller holds the inode's lock alone.
    pub(super) fn continues(&self, at: u64, size: u64, block_end: u64) -> bool {
        at == size && *self.0.lock() == Some((size, block_end))
    }

    /// Forgets what was known: a write begins that may fail.
    pub(super) fn forget(&self) {
        *self.0.lock() = None;
    }

    /// Notes that the file ends with byte `end`, with zeroes up to `block_end`.
    pub(super) fn set(&self, end: u64, block_end: u64) {
        *self.0.lock() = Some((end, block_end));
    }
}
