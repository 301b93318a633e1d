//! Writeback of data that replaces other data, so that a crash leaves the old or the new data (`auto_da_alloc`
//! of ext4). Not here: writeback of a file (`iomap`), and commits that wait for it (the format).
//!
//! Programs replace a file's contents in two ways without an fsync. Data stays in the cache for up to 30 s,
//! while the change of the name, or the truncation, is durable within 5: a crash in between would leave an
//! empty file where the old contents were.
//!
//! - *A new file is renamed over the old one.* The rename writes the new file back first, and waits for
//!   the end of I/O. So whatever commit makes the rename durable comes after that of the data: the name
//!   stands for all of the old contents or all of the new.
//! - *The file is truncated to zero and written again.* The first close that finds data writes it back. A commit
//!   that is asked for meanwhile waits for that ([`FileSystem::delay_commits`]), so that a truncation that is not
//!   durable yet becomes so together with the new contents. A commit between the truncation and the
//!   close leaves the file empty until the next one. Later closes write nothing back. (In the kernel, those after
//!   the first one do not, even if that found no data.)
//!
//! An error in writing back is kept for the next fsync, and stops neither.
//!
//! [`FileSystem::delay_commits`]: crate::FileSystem::delay_commits

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use base::attributes::FileType;

use crate::node::Node;

/// The state of a regular file that its close depends on.
#[derive(Debug, Default)]
pub(crate) struct Replacing {
    /// The file was truncated to zero while it had data, and no close has written it back since.
    was_emptied: AtomicBool,
    /// The number of handles that are open for writing.
    writers: AtomicU32,
}

impl Replacing {
    /// Returns the number of handles that are open for writing.
    pub(crate) fn writer_count(&self) -> u32 {
        self.writers.load(Ordering::Acquire)
    }
}

impl Node {
    /// Writes the file back, since it is about to replace another file. The caller holds no lock.
    pub(crate) fn write_back_before_rename(&self) {
        if self.volume().auto_da_alloc
            && self.kind() == FileType::Regular
            && !self.is_written_back()
        {
            self.write_back_and_wait();
        }
    }

    /// Notes that the file, which had data, was truncated to zero.
    pub(crate) fn note_emptied(&self) {
        self.replacing.was_emptied.store(true, Ordering::Release);
    }

    /// Notes that the file was opened for writing.
    pub(crate) fn note_opened_for_writing(&self) {
        self.replacing.writers.fetch_add(1, Ordering::AcqRel);
        self.inode().opened_for_writing();
    }

    /// Notes that a handle for writing was closed, and writes back the data that replaces truncated data. The
    /// caller holds no lock.
    pub(crate) fn note_closed_for_writing(&self) {
        let replacing = &self.replacing;
        let writers = replacing.writers.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(writers > 0, "a handle was closed twice");
        let is_last = writers == 1;
        if replacing.was_emptied.load(Ordering::Acquire) {
            let has_data = self.may_write_back_replaced();
            // A truncation while this is written back is noted anew.
            let ends = has_data || is_last;
            let is_first = ends && replacing.was_emptied.swap(false, Ordering::AcqRel);
            if is_first && has_data {
                let mut work = || self.write_back_and_wait();
                self.volume().file_system.delay_commits(&mut work);
            }
        }
        self.inode().closed_for_writing();
    }

    fn may_write_back_replaced(&self) -> bool {
        self.volume().auto_da_alloc
            && !self.is_written_back()
            // The data of a file without a name need not reach the device.
            && self.attributes().links > 0
            && self.writeback().is_ok()
            && self.volume().file_system.check_writable().is_ok()
    }
}
