//! The table of a writable volume's open files, by their handles. On a read-only volume, open files
//! have no state, and their handle is zero.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::InodeNumber;
use parking_lot::Mutex;

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: vfs::File,
    /// The part of each write that is durable when the write returns, by the flags of the open.
    pub sync: vfs::WriteSync,
    /// Whether the kernel caches no data for this open file, even after a change of O_DIRECT.
    pub is_direct: bool,
    /// Whether the file was opened with O_DIRECT.
    pub is_opened_direct: bool,
    /// Whether the kernel may hold data of the file that the server has not received.
    pub kernel_may_hold_data: bool,
    /// Whether data from the kernel's cache may overwrite the file: it was opened for writing while
    /// it was not append-only, or the kernel collects its writes.
    pub may_overwrite: bool,
}

/// The table of open files.
#[derive(Debug, Default)]
pub struct OpenFiles {
    table: Mutex<Table>,
    last: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<u64, Arc<OpenFile>>,
    /// The number of open files through which the kernel may hold data, by inode.
    holders: HashMap<InodeNumber, u32>,
}

impl Table {
    /// Removes one holder of `inode`. Returns whether it was the last one.
    fn remove_holder(&mut self, inode: InodeNumber) -> bool {
        let Entry::Occupied(mut holders) = self.holders.entry(inode) else { return false };
        *holders.get_mut() -= 1;
        let is_last = *holders.get() == 0;
        if is_last {
            holders.remove();
        }
        is_last
    }
}

impl OpenFiles {
    /// Adds a file. Returns its handle, which is not zero.
    pub fn add(&self, file: OpenFile) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut table = self.table.lock();
        if file.kernel_may_hold_data {
            *table.holders.entry(file.file.node().number()).or_default() += 1;
        }
        table.files.insert(handle, Arc::new(file));
        handle
    }

    /// Returns the file of a handle.
    pub fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.table.lock().files.get(&handle).map(Arc::clone)
    }

    /// Returns whether the kernel may hold data of an inode that the server has not received.
    pub fn kernel_may_hold_data(&self, inode: InodeNumber) -> bool {
        self.table.lock().holders.contains_key(&inode)
    }

    /// Returns whether one of an inode's open files may overwrite it from the kernel's cache. Looks
    /// at all open files.
    pub fn may_overwrite(&self, inode: InodeNumber) -> bool {
        let table = self.table.lock();
        table
            .files
            .values()
            .any(|opened| opened.may_overwrite && opened.file.node().number() == inode)
    }

    /// Returns whether a file is open for writing. Looks at all open files.
    pub fn has_writers(&self) -> bool {
        self.table.lock().files.values().any(|opened| opened.file.mode().write)
    }

    /// Closes a file. Returns whether it was the inode's last one through which the kernel may hold
    /// data.
    pub fn remove(&self, handle: u64) -> bool {
        let mut table = self.table.lock();
        let file = table.files.remove(&handle);
        let holder = file.as_ref().filter(|file| file.kernel_may_hold_data);
        let is_last = holder.is_some_and(|file| table.remove_holder(file.file.node().number()));
        // Dropped without the lock, since the last user of a file without a name deletes it.
        drop(table);
        drop(file);
        is_last
    }

    /// Closes all files.
    pub fn clear(&self) {
        let table = std::mem::take(&mut *self.table.lock());
        drop(table);
    }
}
