//! Changes of how the data of a file is stored, while none of it is dirty or in flight.

use std::sync::Arc;

use base::locks::RankedWriteGuard;
use base::{Error, Result};
use iomap::{ErrorCount, WritableFile};

use crate::node::rights;
use crate::node::{Life, Node, NodeState};

impl Node {
    /// Calls `change` with the inode locked, while the file has no dirty data, and none is in
    /// flight.
    ///
    /// Errors: `NotPermitted` for immutable and append-only files; `Unsupported` during an atomic
    /// write; errors of writing the dirty data; those of `change`.
    pub(crate) fn change_quiesced<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&Self) -> Result<R>,
    ) -> Result<R> {
        let (file, state) = self.lock_for_change()?;
        rights::may_overwrite(&self.attributes())?;
        state.atomic.check_none()?;
        quiesce(file)?;
        let changed = change(self)?;
        if state.life == Life::Named {
            self.note_change();
        }
        Ok(changed)
    }

    /// Locks the inode, and returns its state for writing. Errors: `ReadOnly`; `ShutDown` after an
    /// error of the volume.
    pub(crate) fn lock_for_change(
        &self,
    ) -> Result<(&Arc<WritableFile>, RankedWriteGuard<'_, NodeState>)> {
        self.volume().begin_change()?;
        let Some(file) = self.writable()? else { return Err(Error::ReadOnly) };
        let state = self.lock();
        // The volume may have been closed before the lock was taken.
        self.writeback()?;
        Ok((file, state))
    }
}

/// Writes all dirty data of a file back, and waits for all of its I/O. The caller holds the inode's
/// lock. Returns the number of the file's errors so far. Errors: those of this writeback.
pub(crate) fn quiesce(file: &Arc<WritableFile>) -> Result<ErrorCount> {
    let errors = file.errors().count();
    iomap::quiesce_cache(file, 0..file.size());
    file.errors().check_since(errors)?;
    Ok(errors)
}
