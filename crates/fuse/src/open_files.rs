//! The open files of a volume that can be written to, by the handles that the kernel has of them.
//! Where nothing is written no state hangs on an open file, and all have handle zero.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    pub file: vfs::File,
    /// What of a write is to be durable when it returns, by the flags of the open.
    pub sync: vfs::WriteSync,
    /// The kernel was told to keep nothing of it in its cache, whatever becomes of O_DIRECT.
    pub is_direct: bool,
}

/// The table.
#[derive(Debug, Default)]
pub struct OpenFiles {
    files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    last: AtomicU64,
}

impl OpenFiles {
    /// Adds a file and gives its handle, which is not zero.
    pub fn add(&self, file: OpenFile) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.files.lock().insert(handle, Arc::new(file));
        handle
    }

    /// The file of a handle.
    pub fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.files.lock().get(&handle).map(Arc::clone)
    }

    /// Closes a file.
    pub fn remove(&self, handle: u64) {
        let file = self.files.lock().remove(&handle);
        // Without the lock: the last user of a file without a name deletes it.
        drop(file);
    }

    /// Closes all files.
    pub fn clear(&self) {
        let files = std::mem::take(&mut *self.files.lock());
        drop(files);
    }
}
