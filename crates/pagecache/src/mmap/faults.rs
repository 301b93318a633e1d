//! The fault server of a cache: threads that handle page faults in its map windows. It runs while
//! the cache has windows. Not here: the handling of a fault (`iomap`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use base::{Error, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::area::Area;
use super::userfault::{Addresses, Fault, Userfaults};
use crate::PAGE_SIZE;

/// The number of threads. Several, since devices handle several reads at once.
const THREADS: usize = 4;

/// The handler of a window's faults.
pub trait FaultHandler: Send + Sync {
    /// Handles a fault at `page` of the file, by a store or by a load. Ends it with
    /// [`MapWindow::show`], [`MapWindow::fail`] or [`MapWindow::wake`]. The faulting thread waits
    /// until then. It may hold any locks of its program, but none of this library.
    ///
    /// [`MapWindow::show`]: crate::MapWindow::show
    /// [`MapWindow::fail`]: crate::MapWindow::fail
    /// [`MapWindow::wake`]: crate::MapWindow::wake
    fn handle_fault(&self, page: u64, is_store: bool);
}

/// A cache's userfaultfd and the threads that read it.
#[derive(Debug)]
pub(crate) struct Faults {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    userfaults: Arc<Userfaults>,
    /// An eventfd that is readable once the threads must end.
    stop: OwnedFd,
    /// The windows by their first address.
    windows: Mutex<BTreeMap<usize, Registration>>,
}

/// A window and the handler of its faults.
struct Registration {
    area: Weak<Area>,
    handler: Weak<dyn FaultHandler>,
}

impl Faults {
    /// Starts the threads.
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

    /// Passes faults in `area` to `handler` from now on.
    pub(crate) fn register(&self, area: &Arc<Area>, handler: Weak<dyn FaultHandler>) {
        let registration = Registration { area: Arc::downgrade(area), handler };
        self.shared.windows.lock().insert(area.addresses().start, registration);
    }

    /// Removes the area at `addresses`.
    pub(crate) fn unregister(&self, addresses: &Addresses) {
        self.shared.windows.lock().remove(&addresses.start);
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        let written = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        debug_assert_eq!(written, Ok(8));
        for thread in self.threads.drain(..) {
            // One of the threads may drop the last window. It cannot wait for itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    /// Serves faults until the server stops.
    fn work(&self) {
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(self.userfaults.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            ];
            // A signal ends the wait early.
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
        let last = windows.range(..=fault.address).next_back();
        let found = last.and_then(|(_, registration)| {
            Some((registration.area.upgrade()?, registration.handler.upgrade()?))
        });
        drop(windows);
        let Some((area, handler)) = found else {
            // The window is being dropped. The faulting thread then finds that its memory is gone.
            let page = fault.address / PAGE_SIZE * PAGE_SIZE;
            let _ = self.userfaults.wake(&(page..page + PAGE_SIZE));
            return;
        };
        let page = area.page_at(fault.address);
        if catch_unwind(AssertUnwindSafe(|| handler.handle_fault(page, fault.is_store))).is_err() {
            // The panic hook has reported it.
            area.fail(page);
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({} windows)", self.windows.lock().len())
    }
}
