//! Accesses that change access times, derived from the kernel's requests.
//!
//! The kernel asks for contents once and caches them. If it may have them cached, opening a file or directory
//! read-only counts as an access, too.

use rustix::fs::OFlags;

use crate::node_table::Known;
use crate::server::Server;

impl Server {
    /// Records an access if a file or directory is opened with `flags`.
    pub(super) fn note_open(&self, id: u64, known: &Known, flags: OFlags) {
        if flags & OFlags::ACCMODE != OFlags::RDONLY || flags.contains(OFlags::NOATIME) {
            return;
        }
        let may_be_read_unseen = known.is_cached() || known.node.attributes().size == 0;
        if may_be_read_unseen && known.node.note_access() {
            // The kernel invalidates the access time itself only after requests to read.
            self.note_stale(id);
        }
    }

    /// Records a read through a file or directory that was opened with `flags`.
    pub(super) fn note_read(&self, known: &Known, flags: u32) {
        let flags = OFlags::from_bits_retain(flags);
        // The kernel reads a page before a program writes a part of it.
        let is_to_write = flags & OFlags::ACCMODE == OFlags::WRONLY;
        if !is_to_write && !flags.contains(OFlags::NOATIME) {
            known.node.note_access();
        }
    }
}
