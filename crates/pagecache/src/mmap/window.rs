//! Map windows: addresses that show pages of a file's memory.
//! Not here: moving pages there (`file_pages.rs`), and the threads (`faults.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use base::{Error, Result, Unsupported};
use parking_lot::RwLock;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munlock, munmap,
};

use super::faults::{FaultHandler, Faults};
use super::file_memory::FileMemory;
use super::userfault::{Addresses, Userfaults};
use crate::fill::LockedFolio;
use crate::mapping::Mapping;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// The addresses of all windows of this process, as end by start.
static WINDOWS: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());
/// The number of windows.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of attempts to poison a page that other threads concurrently show.
const ATTEMPTS_MAX: u32 = 16;

/// Returns whether any of these bytes are in a window, of any file. A thread that holds a lock must not access such
/// bytes, since serving the fault may need the lock.
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

/// The addresses of a window.
#[derive(Debug)]
pub(crate) struct Area {
    addresses: Addresses,
    /// Pages of the file.
    pages: Range<u64>,
    is_writable: bool,
    /// Whether pages were poisoned. Reset by [`MapWindow::hide_failed`].
    has_failed: AtomicBool,
    userfaults: Arc<Userfaults>,
}

impl MapWindow {
    /// Creates a window for `pages` of a file. It shows no pages yet, and must not be accessed before it is
    /// [served](Self::set_fault_handler).
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
        let area = Arc::new(Area {
            addresses: start..start + length,
            pages,
            is_writable,
            has_failed: AtomicBool::new(false),
            userfaults: Arc::clone(faults.userfaults()),
        });
        WINDOWS.write().insert(area.addresses.start, area.addresses.end);
        COUNT.fetch_add(1, Ordering::Release);
        let window = Self { mapping, area, faults };
        // Accesses by a forked child would create pages without a fault.
        window.area.advise(&window.area.addresses, Advice::LinuxDontFork);
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
        let start = std::ptr::with_exposed_provenance_mut(self.area.addresses.start);
        NonNull::new(start).expect("no mapping begins at address zero")
    }

    /// Returns the number of bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "no window is empty")]
    pub fn len(&self) -> usize {
        self.area.addresses.len()
    }

    /// Returns the pages of the file that the window covers.
    pub fn pages(&self) -> Range<u64> {
        self.area.pages.clone()
    }

    /// Returns whether programs can store to the window.
    pub fn is_writable(&self) -> bool {
        self.area.is_writable
    }

    /// Shows uptodate `pages` of a folio that is in the [file's memory](Mapping::place), and wakes the threads that
    /// wait for the first of them. Stores to pages of `stored`, which begins with the same page, do not fault any more (W3).
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

    /// [Hides](Self::hide) all pages if any page has [failed](Self::fail), so that accesses are tried again.
    pub fn hide_failed(&self) {
        if self.area.has_failed.swap(false, Ordering::AcqRel) {
            self.area.hide(&self.area.pages);
        }
    }
}

impl Area {
    /// Registers the new memory for faults, and then permits access to it.
    fn open(&self) -> Result<(), Errno> {
        let start = std::ptr::with_exposed_provenance_mut(self.addresses.start);
        let write = if self.is_writable { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // Locked pages could not be hidden.
        // SAFETY: the memory belongs to the window.
        let _ = unsafe { munlock(start, self.addresses.len()) };
        self.userfaults.register(&self.addresses, self.is_writable)?;
        // SAFETY: as above.
        unsafe { mprotect(start, self.addresses.len(), MprotectFlags::READ | write) }
    }

    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(crate) fn pages(&self) -> &Range<u64> {
        &self.pages
    }

    /// Returns the page of the file at an address of the area.
    pub(crate) fn page_at(&self, address: usize) -> u64 {
        self.pages.start + ((address - self.addresses.start) >> PAGE_SHIFT) as u64
    }

    /// Returns the addresses of the part of `pages` that is in the window. May be empty.
    fn of(&self, pages: &Range<u64>) -> Addresses {
        let at = |page: u64| {
            let page = page.clamp(self.pages.start, self.pages.end);
            self.addresses.start + ((page - self.pages.start) << PAGE_SHIFT) as usize
        };
        at(pages.start)..at(pages.end)
    }

    /// Shows pages, and then wakes the threads that wait for the first one. A thread that waits for another page has a fault
    /// of its own. If it were woken here, its store might fault a second time, at a protected page, and one of both faults
    /// would be handled when the store is long done.
    fn show(&self, pages: &Range<u64>, stored: &Range<u64>) -> Result<(), Errno> {
        let (range, stored) = (self.of(pages), self.of(stored));
        let mut at = stored.start;
        while at < stored.end {
            at = self.userfaults.show(&(at..stored.end), false)?;
            if at < stored.end {
                // The page is already shown, and may be protected.
                self.userfaults.protect(&(at..at + PAGE_SIZE), false)?;
                at += PAGE_SIZE;
            }
        }
        self.userfaults.show(&(at.max(range.start)..range.end), self.is_writable)?;
        self.userfaults.wake(&(range.start..range.start + PAGE_SIZE))
    }

    /// Protects the shown pages of `pages` from stores.
    pub(crate) fn protect(&self, pages: &Range<u64>) {
        let range = self.of(pages);
        if !self.is_writable || range.is_empty() {
            return;
        }
        if self.userfaults.protect(&range, true).is_err() {
            // Hidden pages are protected as well. They only need to be shown again.
            self.hide(pages);
        }
    }

    fn wake(&self, page: u64) {
        let woken = self.userfaults.wake(&self.of(&(page..page + 1)));
        debug_assert_eq!(woken, Ok(()));
    }

    pub(crate) fn fail(&self, page: u64) {
        let range = self.of(&(page..page + 1));
        self.has_failed.store(true, Ordering::Release);
        for _ in 0..ATTEMPTS_MAX {
            match self.userfaults.poison(&range) {
                Ok(()) => return,
                // The page is shown, or the kernel still knows it as protected. End both.
                Err(Errno::EXIST) => {
                    self.hide(&(page..page + 1));
                    if self.is_writable {
                        let _ = self.userfaults.protect(&range, false);
                    }
                }
                Err(_) => break,
            }
        }
        self.wake(page);
    }

    fn hide(&self, pages: &Range<u64>) {
        self.advise(&self.of(pages), Advice::LinuxDontNeed);
    }

    fn advise(&self, range: &Addresses, advice: Advice) {
        if range.is_empty() {
            return;
        }
        let start = std::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the memory belongs to the window and is a mapping of a file's memory, where pages
        // that are not shown any more continue to exist.
        let advised = unsafe { madvise(start, range.len(), advice) };
        debug_assert_eq!(advised, Ok(()));
    }
}

impl Drop for MapWindow {
    fn drop(&mut self) {
        self.mapping.mapped.remove(&self.area);
        let addresses = self.area.addresses();
        self.faults.unregister(addresses);
        WINDOWS.write().remove(&addresses.start);
        COUNT.fetch_sub(1, Ordering::Release);
        // SAFETY: the mapping belongs to this window, whose addresses are valid only while it exists.
        let unmapped = unsafe { munmap(self.start().as_ptr().cast(), addresses.len()) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl fmt::Debug for MapWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?}, pages {:?})", self.mapping, self.area.pages)
    }
}
