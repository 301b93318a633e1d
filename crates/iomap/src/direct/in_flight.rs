//! How many direct requests of a file have not ended. Not here: the requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// The count of one file.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    lock: Mutex<()>,
    none: Condvar,
}

impl InFlight {
    /// One more. The caller holds the inode's lock.
    pub(crate) fn begin(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// One has ended: the format knows, and the cache has nothing from before it.
    pub(crate) fn end(&self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Who found the last one in flight waits by now.
            drop(self.lock.lock());
            self.none.notify_all();
        }
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Waits until there are none. The caller holds the inode's lock alone.
    pub(crate) fn wait_none(&self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        base::waiting::about_to_wait();
        let mut guard = self.lock.lock();
        while self.count.load(Ordering::Acquire) > 0 {
            self.none.wait(&mut guard);
        }
    }
}
