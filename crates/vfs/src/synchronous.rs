//! Changes that are durable when they return, for their caller or for the inode's flags, and parts of a
//! file that are written to the device.
//! Not here: writing into the cache (`data.rs`), and making a whole file durable.

use std::ops::Range;

use base::Result;

use crate::data::WriteAt;
use crate::file::File;
use crate::node::Node;
use crate::rights::Privileges;
use crate::rw_flags::RwFlags;

/// FS_SYNC_FL: what changes in the file or directory is durable at once.
const SYNC: u32 = 0x8;
/// FS_DIRSYNC_FL: what changes in the names of a directory is durable at once.
const DIRSYNC: u32 = 0x1_0000;

/// The flags that stand for what all of a volume is to do.
pub(crate) fn flags(sync: bool, dirsync: bool) -> u32 {
    let sync = if sync { SYNC } else { 0 };
    let dirsync = if dirsync { DIRSYNC } else { 0 };
    sync | dirsync
}

/// What of a write is durable when it returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum WriteSync {
    /// Nothing: the data is in the cache.
    #[default]
    None,
    /// The data, as far as it can be read back: O_DSYNC, RWF_DSYNC.
    Data,
    /// All that is known of the file: O_SYNC, RWF_SYNC.
    All,
}

/// What [`File::sync_range`] does, in this order: the flags of sync_file_range(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SyncRange {
    /// Waits for what is on its way to the device.
    pub wait_before: bool,
    /// Starts to write what is dirty.
    pub write: bool,
    /// Waits for that.
    pub wait_after: bool,
}

impl File {
    /// The same file, each write to which is durable when it returns.
    pub fn synchronous(mut self, sync: WriteSync) -> Self {
        self.sync = sync;
        self
    }

    /// [`write_at`](Self::write_at) to a place that is right even if the file was opened to append, with
    /// flags. What they say, or what the file was opened for or its own flags (+S) ask for if that is
    /// more, is durable when it returns. When it is not, for an error of the device, the data is in the
    /// cache all the same, as with the kernel.
    pub fn write_with(
        &self,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
        flags: RwFlags,
    ) -> Result<usize> {
        let at = if flags.append { WriteAt::End } else { at };
        let (written, sync) = (self.write_cached(at, data, privileges, flags)?, flags.sync);
        let range = match at {
            _ if written == 0 => 0..0,
            WriteAt::Offset(at) | WriteAt::FromCache(at) => {
                at.0..at.0.saturating_add(written as u64)
            }
            // Others may have added to it since.
            WriteAt::End => 0..u64::MAX,
        };
        match at {
            // Whoever wrote it has not waited for it, whatever the flags say.
            WriteAt::FromCache(_) => self.sync_written(range, self.sync.max(sync))?,
            _ => self.make_durable(range, sync)?,
        }
        Ok(written)
    }

    /// Makes durable what was written to `range`, as far as `sync` says, or what the file was opened
    /// for or its flags (+S) ask for if that is more. Tells of an error as [`sync`](Self::sync) does.
    pub fn make_durable(&self, range: Range<u64>, sync: WriteSync) -> Result<()> {
        let flagged = match self.node().has_flags(SYNC) {
            true => WriteSync::Data,
            false => WriteSync::None,
        };
        self.sync_written(range, self.sync.max(sync).max(flagged))
    }

    fn sync_written(&self, range: Range<u64>, sync: WriteSync) -> Result<()> {
        match sync {
            _ if range.is_empty() => Ok(()),
            WriteSync::None => Ok(()),
            WriteSync::Data => self.node().sync_with(range, true, self.errors()),
            WriteSync::All => self.node().sync_with(range, false, self.errors()),
        }
    }

    /// Writes a part of the file's data to the device, or waits for that. Neither what is known of
    /// the file nor the device's own cache is made durable by this. With a wait, tells of an error
    /// as [`sync`](Self::sync) does.
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

impl Node {
    /// Makes the file's size durable where its flags ask for that.
    pub(crate) fn sync_size(&self) -> Result<()> {
        if self.has_flags(SYNC) {
            base::waiting::about_to_wait();
            self.sync(false)?;
        }
        Ok(())
    }

    /// Makes the names in this directory durable where its flags ask for that. The caller has no locks.
    pub(crate) fn sync_names(&self) -> Result<()> {
        if self.has_flags(SYNC | DIRSYNC) {
            base::waiting::about_to_wait();
            self.sync(false)?;
        }
        Ok(())
    }

    /// Whether it has one of these flags.
    fn has_flags(&self, flags: u32) -> bool {
        (self.attributes().flags | self.volume_flags()) & flags != 0
    }
}
