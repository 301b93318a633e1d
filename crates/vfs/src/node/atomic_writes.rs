//! What an inode knows of its atomic writes. Not here: the writes (`optional/atomic.rs`).

use base::{Result, Unsupported};
use fs::AtomicWrite;
use iomap::ErrorCount;

/// The atomic writes of an inode.
#[derive(Debug, Default)]
pub(crate) struct AtomicWrites {
    /// The number of those that were started.
    pub(crate) started: u64,
    pub(crate) current: Option<Current>,
}

/// An atomic write.
#[derive(Debug)]
pub(crate) struct Current {
    /// The number that the file which has started it knows.
    pub(crate) number: u64,
    pub(crate) kind: AtomicWrite,
    /// The number of writeback errors from before the start.
    pub(crate) errors: ErrorCount,
}

impl AtomicWrites {
    /// Returns whether there is an atomic write.
    pub(crate) fn is_any(&self) -> bool {
        self.current.is_some()
    }

    /// Fails if there is an atomic write, during which blocks are not allocated or freed by other
    /// calls.
    pub(crate) fn check_none(&self) -> Result<()> {
        match self.current {
            None => Ok(()),
            Some(_) => Err(Unsupported::Operation(
                "changing the blocks of a file, or truncating it, during its atomic write",
            )
            .into()),
        }
    }

    /// Fails if there is an atomic write: as in Linux, its data and that of its readers goes
    /// through the cache.
    pub(crate) fn check_no_direct(&self) -> Result<()> {
        match self.current {
            None => Ok(()),
            Some(_) => {
                Err(Unsupported::Operation("direct I/O of a file during its atomic write").into())
            }
        }
    }
}
