//! Changes of how the data of a file is stored, while none of it is dirty or in flight.

use std::sync::Arc;

use base::{Error, Result};

use crate::node::{Life, Node};
use crate::rights;

impl Node {
    /// Calls `change` with the inode locked, while the file has no dirty data, and none is in flight.
    ///
    /// Errors: `NotPermitted` for immutable and append-only files; `Unsupported` during an atomic write; writeback errors of
    /// earlier data; those of `change`.
    pub(crate) fn change_quiesced<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&Self) -> Result<R>,
    ) -> Result<R> {
        self.volume().file_system.check_writable()?;
        let Some(file) = self.writable()? else { return Err(Error::ReadOnly) };
        let state = self.lock();
        // The volume may have been closed before the lock was taken.
        let writeback = self.writeback()?;
        rights::may_overwrite(&self.attributes())?;
        state.atomic.check_none()?;
        let errors = file.errors().cursor();
        iomap::quiesce_cache(file, 0..file.size());
        file.errors().check(&errors)?;
        let changed = change(self)?;
        if state.life == Life::Named {
            writeback.note(self);
        }
        Ok(changed)
    }
}
