//! Accesses that change access times, derived from the kernel's requests.
//!
//! The kernel requests contents once and caches them. While it may have contents cached, opening
//! the file or directory read-only counts as an access, too.

use rustix::fs::OFlags;

use crate::node_table::KnownNode;
use crate::server::Server;

impl Server {
    /// Records the open of a file or directory with `flags` as an access, if the server would not
    /// see its reads.
    pub(super) fn record_open(&self, id: u64, known: &KnownNode, flags: OFlags) {
        if flags & OFlags::ACCMODE != OFlags::RDONLY || flags.contains(OFlags::NOATIME) {
            return;
        }
        let may_be_read_unseen = known.is_cached() || known.node.attributes().size == 0;
        if may_be_read_unseen && known.node.note_access() {
            // Only after a request to read does the kernel invalidate the access time itself.
            self.invalidate_attributes(id);
        }
    }

    /// Records a read through a file or directory that was opened with `flags`.
    pub(super) fn record_read(&self, known: &KnownNode, flags: u32) {
        let flags = OFlags::from_bits_retain(flags);
        // The kernel reads a page before a program writes a part of it. Such a read is not an
        // access.
        let is_to_write = flags & OFlags::ACCMODE == OFlags::WRONLY;
        if !is_to_write && !flags.contains(OFlags::NOATIME) {
            known.node.note_access();
        }
    }
}
