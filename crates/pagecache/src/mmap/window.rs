//! Map windows: addresses that show pages of a file's memory.
//! Not here: moving pages there (`file_pages.rs`), and the threads (`faults.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use base::{Error, Result, Unsupported};
use parking_lot::RwLock;
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap, munmap};

use super::area::Area;
use super::faults::{FaultHandler, Faults};
use super::file_memory::FileMemory;
use crate::fill::LockedFolio;
use crate::mapping::Mapping;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// The addresses of all windows of this process, as end by start.
static WINDOWS: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());
/// The number of windows.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns whether any of these bytes are in a window, of any file. A thread that holds a lock must
/// not access such bytes, since serving the fault may need the lock.
pub fn is_mapped(bytes: *const [u8]) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 {
        return false;
    }
    let start = bytes.cast::<u8>() as usize;
    let end = start + bytes.len();
    let windows = WINDOWS.read();
    windows.range(..end).next_back().is_some_and(|(_, &window_end)| window_end > start)
}

/// A map window: addresses that show a range of a file. Dropping it unmaps them.
pub struct MapWindow {
    mapping: Arc<Mapping>,
    area: Arc<Area>,
    faults: Arc<Faults>,
}

impl MapWindow {
    /// Creates a window for `pages` of a file. It shows no pages yet, and must not be accessed
    /// before it is [served](Self::set_fault_handler).
    pub(crate) fn new(
        mapping: Arc<Mapping>,
        memory: &FileMemory,
        pages: Range<u64>,
        is_writable: bool,
    ) -> Result<Self> {
        if rustix::param::page_size() != PAGE_SIZE {
            let missing = "mapping files where the host's pages are not 4 KiB";
            return Err(Unsupported::Operation(missing).into());
        }
        let faults = mapping.cache().faults()?;
        let bytes = |pages: u64| pages.checked_mul(1 << PAGE_SHIFT).ok_or(Error::FileTooLarge);
        let (offset, length) = (bytes(pages.start)?, bytes(pages.end - pages.start)?);
        let length = usize::try_from(length).map_err(|_| Error::OutOfMemory)?;
        // Without any access at first. Otherwise, the kernel would show all pages at once if the
        // process has locked its memory, before the range is registered for faults.
        let no_access = ProtFlags::empty();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let any_address = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let start = unsafe { mmap(any_address, length, no_access, flags, memory.fd(), offset) };
        let start = start.map_err(|_| Error::OutOfMemory)? as usize;
        let area = Arc::new(Area::new(
            start..start + length,
            pages,
            is_writable,
            Arc::clone(faults.userfaults()),
        ));
        WINDOWS.write().insert(area.addresses().start, area.addresses().end);
        COUNT.fetch_add(1, Ordering::Release);
        let window = Self { mapping, area, faults };
        // Accesses by a forked child would create pages without a fault.
        window.area.advise(window.area.addresses(), Advice::LinuxDontFork);
        window.area.open().map_err(|_| Error::OutOfMemory)?;
        window.mapping.mapped.add(&window.area);
        Ok(window)
    }

    /// Passes the window's faults to `handler`.
    pub fn set_fault_handler(&self, handler: Weak<dyn FaultHandler>) {
        self.faults.register(&self.area, handler);
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        let start = std::ptr::with_exposed_provenance_mut(self.area.addresses().start);
        NonNull::new(start).expect("no mapping begins at address zero")
    }

    /// Returns the number of bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "no window is empty")]
    pub fn len(&self) -> usize {
        self.area.addresses().len()
    }

    /// Returns the pages of the file that the window covers.
    pub fn pages(&self) -> Range<u64> {
        self.area.pages().clone()
    }

    /// Returns whether programs can store to the window.
    pub fn is_writable(&self) -> bool {
        self.area.is_writable()
    }

    /// Shows uptodate `pages` of a folio that is in the [file's memory](Mapping::place), and wakes
    /// the threads that wait for the first of them. Stores to pages of `stored`, which begins with
    /// the same page, do not fault any more (W3).
    pub fn show(&self, folio: &LockedFolio, pages: &Range<u64>, stored: &Range<u64>) -> Result<()> {
        debug_assert!(self.mapping.holds(folio), "a folio of this file");
        self.area.show(pages, stored).map_err(|_| Error::OutOfMemory)
    }

    /// Wakes the threads that wait for `page` of the file. They repeat their accesses.
    pub fn wake(&self, page: u64) {
        self.area.wake(page);
    }

    /// Makes accesses to `page` of the file get SIGBUS, until the page is shown.
    pub fn fail(&self, page: u64) {
        // Nothing shows the page meanwhile, whose protection ends for a moment.
        let _folio = self.mapping.get_locked(page);
        self.area.fail(page);
    }

    /// Hides `pages` of the file. The next access to one is a fault again.
    pub fn hide(&self, pages: &Range<u64>) {
        self.area.hide(pages);
    }

    /// [Hides](Self::hide) all pages if any page has [failed](Self::fail), so that accesses are
    /// tried again.
    pub fn hide_failed(&self) {
        if self.area.take_failed() {
            self.area.hide(self.area.pages());
        }
    }
}

impl Drop for MapWindow {
    fn drop(&mut self) {
        self.mapping.mapped.remove(&self.area);
        let addresses = self.area.addresses();
        self.faults.unregister(addresses);
        WINDOWS.write().remove(&addresses.start);
        COUNT.fetch_sub(1, Ordering::Release);
        // SAFETY: the mapping belongs to this window, whose addresses are valid only while it
        // exists.
        let unmapped = unsafe { munmap(self.start().as_ptr().cast(), addresses.len()) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl fmt::Debug for MapWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?}, pages {:?})", self.mapping, self.area.pages())
    }
}
