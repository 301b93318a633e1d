//! The state of a volume that its nodes and files use. Not here: the calls of users (`mod.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::locks::{RankedMutex, RankedRwLock};
use base::{BlockSize, Result};
use fs::FileSystem;
use iomap::{DirectOptions, ReadOptions};
use pagecache::{Mapping, PageCache};

use crate::node::access::AccessOptions;
use crate::node::table::NodeTable;
use crate::volume::removals::Removals;
use crate::writeback::Writeback;

/// The state of a volume that nodes and files use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) file_system: Arc<dyn FileSystem>,
    pub(crate) read_options: ReadOptions,
    pub(crate) direct_options: DirectOptions,
    pub(crate) is_writable: bool,
    /// Whether the volume was marked as clean, and not changed since.
    pub(crate) is_marked_clean: AtomicBool,
    /// Held while `is_marked_clean` and the mark of the format change.
    pub(crate) marking: RankedMutex<()>,
    /// The inode flags that are in effect for all inodes.
    pub(crate) flags: u32,
    pub(crate) auto_da_alloc: bool,
    /// Whether new files get the group of their directory.
    pub(crate) bsd_groups: bool,
    pub(crate) access: AccessOptions,
    pub(crate) nodes: NodeTable,
    pub(crate) removals: Removals,
    /// Held while a directory moves to another directory, so that no other thread changes a path to
    /// the root.
    pub(crate) moves: RankedMutex<()>,
    /// Held shared while an inode is created and added to the table, and exclusively to load an
    /// inode by the number in a file handle: an inode must not have two nodes.
    pub(crate) making: RankedRwLock<()>,
    /// `None` on a read-only volume.
    pub(crate) writeback: Option<Writeback>,
    pub(crate) cache: Arc<PageCache>,
    pub(crate) block_size: BlockSize,
}

impl Shared {
    pub(crate) fn new_mapping(&self) -> Arc<Mapping> {
        self.cache.new_mapping(self.block_size)
    }

    /// Prepares a change: marks the volume as in use, if it was marked as clean. Fails if the
    /// volume cannot be changed.
    pub(crate) fn begin_change(&self) -> Result<()> {
        self.file_system.check_writable()?;
        self.mark_in_use()
    }

    /// Marks the volume as in use, if it was marked as clean.
    pub(crate) fn mark_in_use(&self) -> Result<()> {
        if self.is_marked_clean.load(Ordering::Acquire) {
            let _marking = self.marking.lock();
            self.file_system.mark_in_use()?;
            self.is_marked_clean.store(false, Ordering::Release);
        }
        Ok(())
    }
}
