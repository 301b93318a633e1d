//! Changes of access times, and when they are written. Not here: which accesses change them
//! (`access.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::node::access::AccessTimes;
use crate::node::{Life, Node};
use crate::volume::Volume;
use crate::volume::clock::last_tick;
use crate::writeback::Expiry;

impl Volume {
    /// Returns whether every listing of a directory changes its access time.
    pub fn notes_every_listing(&self) -> bool {
        let access = self.shared.access;
        self.shared.writeback.is_some() && access.times == AccessTimes::Always && access.directories
    }
}

impl Node {
    /// Records an access to the contents, if the volume's [`AccessOptions`](crate::AccessOptions)
    /// say so. The new access time usually stays in memory for now. Returns whether it has changed.
    ///
    /// Open files and calls by path do this themselves. A server that lists a directory or reads a
    /// symbolic link by its node calls it explicitly.
    ///
    /// The caller must not hold the inode's lock.
    pub fn note_access(self: &Arc<Self>) -> bool {
        let options = self.volume().access;
        let Some(writeback) = self.volume().writeback.as_ref() else { return false };
        if options.times == AccessTimes::Never
            || self.volume().is_marked_clean.load(Ordering::Acquire)
        {
            return false;
        }
        let now = last_tick();
        let is_wanted = options.wants(&self.inode().attributes(), now);
        // A time that cannot be written would stay in memory for as long as the volume is open.
        let is_writable = self.volume().file_system.check_writable().is_ok();
        if !is_wanted || writeback.is_closed() || !is_writable {
            return false;
        }
        let expiry = if options.lazy { Expiry::Lazy } else { Expiry::Normal };
        let state = self.lock_state_shared();
        self.inode().note_accessed(now);
        let is_queued = state.life != Life::Named || writeback.note_access(self, expiry);
        drop(state);
        if !is_queued {
            if let Err(error) = self.inode().write_pending() {
                tracing::warn!("inode {}: {error}", self.number());
            }
        }
        true
    }
}
