//! Writeback of files that replace other files, so that a crash leaves the old or the new contents
//! (`auto_da_alloc` of ext4). Not here: writeback of a file (`iomap`), and commits that wait for it
//! (the format).
//!
//! Programs replace a file's contents in two ways without an fsync. The data may stay in the cache
//! for longer than the change of the name, or the truncation, takes to become durable. A crash in
//! between would leave an empty file in place of the old contents.
//!
//! - *A new file is renamed over the old one.* The rename writes the new file back first, and waits
//!   for the end of I/O. So every commit that makes the rename durable makes the data durable, too:
//!   the name has the complete old or the complete new contents.
//! - *The file is truncated to zero and written again.* The first close that finds data writes it
//!   back. A commit that is requested during this writeback waits for it
//!   ([`FileSystem::delay_commits`]). So a truncation that is not durable yet becomes durable
//!   together with the new contents. A commit between the truncation and the close leaves the file
//!   empty until the next commit. Later closes write nothing back. (In the kernel, only the first
//!   close does, even if it finds no data.)
//!
//! An error of the writeback fails neither the rename nor the close. The next fsync reports it.
//!
//! [`FileSystem::delay_commits`]: crate::FileSystem::delay_commits

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use base::attributes::FileType;

use crate::node::Node;

/// The state of a regular file that decides about writeback when it is closed.
#[derive(Debug, Default)]
pub(crate) struct Replacing {
    /// Whether the file was truncated to zero while it had data, and no close has written it back
    /// since.
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

    /// Records that the file, which had data, was truncated to zero.
    pub(crate) fn note_emptied(&self) {
        self.replacing.was_emptied.store(true, Ordering::Release);
    }

    /// Records that the file was opened for writing.
    pub(crate) fn note_opened_for_writing(&self) {
        self.replacing.writers.fetch_add(1, Ordering::AcqRel);
        self.inode().opened_for_writing();
    }

    /// Records that a handle for writing was closed, and writes back the data that replaces
    /// truncated data. The caller holds no lock.
    pub(crate) fn note_closed_for_writing(&self) {
        let replacing = &self.replacing;
        let writers = replacing.writers.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(writers > 0, "a handle was closed twice");
        let is_last = writers == 1;
        if replacing.was_emptied.load(Ordering::Acquire) {
            let has_data = self.may_write_back_replaced();
            // A truncation during the writeback sets the flag again.
            let clears_flag = has_data || is_last;
            let is_first = clears_flag && replacing.was_emptied.swap(false, Ordering::AcqRel);
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
            // Data of a file without a name need not be written back.
            && self.attributes().links > 0
            && self.writeback().is_ok()
            && self.volume().file_system.check_writable().is_ok()
    }
}
