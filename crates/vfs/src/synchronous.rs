//! Writes that are durable when they return, and parts of a file that are written to the device.
//! Not here: writing into the cache (`data.rs`), and making a whole file durable.

use std::ops::Range;

use base::Result;

use crate::data::WriteAt;
use crate::file::File;
use crate::rights::Privileges;

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

    /// [`write`](Self::write), and what `sync` says, or what the file was opened for if that is
    /// more, is durable when it returns. When it is not, for an error of the device, the data is in
    /// the cache all the same, as with the kernel.
    pub fn write_durably(
        &self,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
        sync: WriteSync,
    ) -> Result<usize> {
        let written = self.write_cached(at, data, privileges)?;
        let range = match at {
            _ if written == 0 => 0..0,
            WriteAt::Offset(at) | WriteAt::FromCache(at) => {
                at.0..at.0.saturating_add(written as u64)
            }
            // Others may have added to it since.
            WriteAt::End => 0..u64::MAX,
        };
        self.make_durable(range, sync)?;
        Ok(written)
    }

    /// Makes durable what was written to `range`, as far as `sync` says, or what the file was opened
    /// for if that is more. Tells of an error as [`sync`](Self::sync) does.
    pub fn make_durable(&self, range: Range<u64>, sync: WriteSync) -> Result<()> {
        match self.sync.max(sync) {
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
            node.wait_for_writeback(range.clone());
        }
        if how.write {
            node.start_writeback(range.clone());
        }
        if how.wait_after {
            node.wait_for_writeback(range);
        }
        if how.wait_before || how.wait_after { node.check_errors(self.errors()) } else { Ok(()) }
    }
}
