//! The threads that have touched pages of windows served, for one cache; there are some while it has
//! windows. Not here: how a page is served.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use base::{Error, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::userfault::{Addresses, Fault, Userfaults};
use super::window::Area;
use crate::PAGE_SIZE;

/// How many pages are served at a time: devices do several reads at once.
const THREADS: usize = 4;

/// Somebody who serves a window's faults.
pub trait ServeFault: Send + Sync {
    /// A thread waits for having touched `page` of the file; `is_store` says how. Has it shown, or failed, or tried again. The thread may hold any lock of its program's, but
    /// none of this library's.
    fn serve(&self, page: u64, is_store: bool);
}

/// A cache's userfaultfd and the threads that read it.
#[derive(Debug)]
pub(crate) struct Faults {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    userfaults: Arc<Userfaults>,
    /// Readable once the threads are to end.
    stop: OwnedFd,
    /// By the first address.
    windows: Mutex<BTreeMap<usize, Served>>,
}

struct Served {
    area: Weak<Area>,
    by: Weak<dyn ServeFault>,
}

impl Faults {
    pub(crate) fn start() -> Result<Arc<Self>> {
        let userfaults = Arc::new(Userfaults::new()?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|_| Error::OutOfMemory)?;
        let shared = Arc::new(Shared { userfaults, stop, windows: Mutex::default() });
        let mut faults = Self { shared, threads: Vec::new() };
        for _ in 0..THREADS {
            let shared = Arc::clone(&faults.shared);
            let thread = thread::Builder::new().name("bifolio-fault".into());
            let thread = thread.spawn(move || shared.work());
            faults.threads.push(thread.map_err(|error| Error::thread_spawn(&error))?);
        }
        Ok(Arc::new(faults))
    }

    pub(crate) fn userfaults(&self) -> &Arc<Userfaults> {
        &self.shared.userfaults
    }

    /// Has the faults of `area` served from now on.
    pub(crate) fn serve(&self, area: &Arc<Area>, by: Weak<dyn ServeFault>) {
        let served = Served { area: Arc::downgrade(area), by };
        self.shared.windows.lock().insert(area.addresses().start, served);
    }

    /// Forgets an area.
    pub(crate) fn forget(&self, addresses: &Addresses) {
        self.shared.windows.lock().remove(&addresses.start);
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let written = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        debug_assert_eq!(written, Ok(8));
        for thread in self.threads.drain(..) {
            // The last window may be dropped by one of them.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(self.userfaults.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            ];
            // Signals make it come early.
            let _ = poll(&mut ready, None);
            if !ready[1].revents().is_empty() {
                return;
            }
            while let Some(fault) = self.userfaults.next() {
                self.serve(fault);
            }
        }
    }

    fn serve(&self, fault: Fault) {
        let windows = self.windows.lock();
        let served = windows.range(..=fault.address).next_back().map(|(_, served)| served);
        let found = served.and_then(|served| Some((served.area.upgrade()?, served.by.upgrade()?)));
        drop(windows);
        let Some((area, by)) = found else {
            // Whoever touches a window that is being dropped finds that it is gone.
            let page = fault.address / PAGE_SIZE * PAGE_SIZE;
            let _ = self.userfaults.wake(&(page..page + PAGE_SIZE));
            return;
        };
        let page = area.page_at(fault.address);
        if catch_unwind(AssertUnwindSafe(|| by.serve(page, fault.is_store))).is_err() {
            // It was reported where it happened.
            area.fail(page);
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({} windows)", self.windows.lock().len())
    }
}
