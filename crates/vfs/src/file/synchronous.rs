//! Synchronous changes, which are durable when they return, and writeback of a part of a file.
//! Not here: writes into the cache (`data.rs`), and fsync of a whole file.

use std::ops::Range;

use base::{Error, Result};

use crate::file::File;
use crate::file::rw_flags::{RwFlags, WriteAt, WriteSync};
use crate::node::Node;
use crate::node::rights::Privileges;

/// FS_SYNC_FL: changes of the file or directory are durable when they return.
const SYNC: u32 = 0x8;
/// FS_DIRSYNC_FL: changes of a directory's names are durable when they return.
const DIRSYNC: u32 = 0x1_0000;

/// Returns the inode flags that volume options put into effect for all inodes.
pub(crate) fn flags(sync: bool, dirsync: bool) -> u32 {
    let sync = if sync { SYNC } else { 0 };
    let dirsync = if dirsync { DIRSYNC } else { 0 };
    sync | dirsync
}

/// The parts of [`File::sync_range`], in this order: the flags of sync_file_range(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SyncRange {
    /// Wait for writeback that is under way.
    pub wait_before: bool,
    /// Start writeback of dirty data.
    pub write: bool,
    /// Wait for that writeback.
    pub wait_after: bool,
}

impl File {
    /// Returns the file with writes that are durable when they return.
    pub fn synchronous(mut self, sync: WriteSync) -> Self {
        self.sync = sync;
        self
    }

    /// [`write_at`](Self::write_at) for servers, with the privileges of a caller, and with flags.
    /// The write goes to `at` even if the file was opened to append. When this returns, the write
    /// is as durable as the flags, the file's mode or its inode flags (+S) require. If an error of
    /// the device prevents that, the data stays in the cache, as in the kernel.
    pub fn write_with(
        &self,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
        flags: RwFlags,
    ) -> Result<usize> {
        let written = self.write_range(at, data, privileges, flags)?;
        Ok((written.end - written.start) as usize)
    }

    /// [`write_with`](Self::write_with), which returns the range that was written.
    pub(crate) fn write_range(
        &self,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
        flags: RwFlags,
    ) -> Result<Range<u64>> {
        let at = if flags.append { WriteAt::End } else { at };
        let written = self.write_cached(at, data, privileges, flags)?;
        match at {
            // The inode's flags do not apply: the program that wrote the data does not wait.
            WriteAt::FromCache { .. } => {
                self.sync_written(written.clone(), self.sync.max(flags.sync))?;
            }
            _ => self.make_durable(written.clone(), flags.sync)?,
        }
        Ok(written)
    }

    /// Makes data written to `range` as durable as `sync`, the file's mode or its inode flags (+S)
    /// require. Errors: those of [`sync_all`](Self::sync_all), except that an interrupted sync is
    /// none.
    pub fn make_durable(&self, range: Range<u64>, sync: WriteSync) -> Result<()> {
        let flagged = if self.node().has_flags(SYNC) { WriteSync::Data } else { WriteSync::None };
        self.sync_written(range, self.sync.max(sync).max(flagged))
    }

    fn sync_written(&self, range: Range<u64>, sync: WriteSync) -> Result<()> {
        after_change(match sync {
            _ if range.is_empty() => Ok(()),
            WriteSync::None => Ok(()),
            WriteSync::Data => self.node().sync_with(range, true, self.errors()),
            WriteSync::All => self.node().sync_with(range, false, self.errors()),
        })
    }

    /// Writes back a part of the file's data, or waits for its writeback. This does not make
    /// attributes durable, and does not flush the device's cache. Errors: if it waits, those of
    /// [`sync_all`](Self::sync_all).
    pub fn sync_range(&self, range: Range<u64>, how: SyncRange) -> Result<()> {
        let node = self.node();
        if how.wait_before {
            node.wait_for_writeback(range.clone())?;
        }
        if how.write {
            node.start_writeback(range.clone());
        }
        if how.wait_after {
            node.wait_for_writeback(range)?;
        }
        if how.wait_before || how.wait_after { node.check_errors(self.errors()) } else { Ok(()) }
    }
}

/// Returns the result of a change that was made, and then synced. Only a program that is being
/// killed interrupts a sync. After an error, the kernel of a mount would show the state before the
/// change.
fn after_change(synced: Result<()>) -> Result<()> {
    match synced {
        Err(Error::Interrupted) => Ok(()),
        synced => synced,
    }
}

impl Node {
    /// Makes the file's size durable if the flags of its inode require that.
    pub(crate) fn sync_size(&self) -> Result<()> {
        if self.has_flags(SYNC) {
            base::waiting::about_to_wait();
            after_change(self.sync(false))?;
        }
        Ok(())
    }

    /// Makes the names in this directory durable if the flags of its inode require that. The caller
    /// holds no locks.
    pub(crate) fn sync_names(&self) -> Result<()> {
        if self.has_flags(SYNC | DIRSYNC) {
            base::waiting::about_to_wait();
            after_change(self.sync(false))?;
        }
        Ok(())
    }

    /// Returns whether one of these flags is in effect for the inode.
    fn has_flags(&self, flags: u32) -> bool {
        (self.attributes().flags | self.volume_flags()) & flags != 0
    }
}
