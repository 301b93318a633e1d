//! Windows: addresses that show pages of a file's memory.
//! Not here: bringing pages there (`place.rs`), and threads (`faults.rs`).

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

use super::faults::{Faults, ServeFault};
use super::file_memory::FileMemory;
use super::userfault::{Addresses, Userfaults};
use crate::fill::LockedFolio;
use crate::mapping::Mapping;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// The addresses of all windows of this process: ends by starts; and how many there are.
static WINDOWS: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How often a page that others show meanwhile is failed again.
const ATTEMPTS_MAX: u32 = 16;

/// Whether some of these bytes lie in a window of whatever file. They are not to be touched by who
/// holds a lock: serving that may need it.
pub fn is_mapped(bytes: *const [u8]) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 {
        return false;
    }
    let start = bytes.cast::<u8>() as usize;
    let end = start + bytes.len();
    let windows = WINDOWS.read();
    windows.range(..end).next_back().is_some_and(|(_, &window_end)| window_end > start)
}

/// A range of a file as memory. Dropping it takes the memory away.
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
    can_be_stored_to: bool,
    /// Whether there are, or were, pages that meet SIGBUS.
    has_failed: AtomicBool,
    userfaults: Arc<Userfaults>,
}

impl MapWindow {
    /// A window onto `pages` of a file. Nothing is shown yet, and nobody may touch it before it is
    /// [served](Self::serve_by).
    pub(crate) fn new(
        mapping: Arc<Mapping>,
        memory: &FileMemory,
        pages: Range<u64>,
        can_be_stored_to: bool,
    ) -> Result<Self> {
        if rustix::param::page_size() != PAGE_SIZE {
            let missing = "mapping files where the host's pages are not 4 KiB";
            return Err(Unsupported::Operation(missing).into());
        }
        let faults = mapping.cache().faults()?;
        let bytes = |pages: u64| pages.checked_mul(1 << PAGE_SHIFT).ok_or(Error::FileTooLarge);
        let (offset, length) = (bytes(pages.start)?, bytes(pages.end - pages.start)?);
        let length = usize::try_from(length).map_err(|_| Error::OutOfMemory)?;
        // Without any access at first, so that a process that locks all its memory shows no pages that
        // nobody was asked for.
        let (none, flags) = (ProtFlags::empty(), MapFlags::SHARED | MapFlags::NORESERVE);
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let start = unsafe { mmap(nowhere, length, none, flags, memory.fd(), offset) };
        let start = start.map_err(|_| Error::OutOfMemory)? as usize;
        let area = Arc::new(Area {
            addresses: start..start + length,
            pages,
            can_be_stored_to,
            has_failed: AtomicBool::new(false),
            userfaults: Arc::clone(faults.userfaults()),
        });
        WINDOWS.write().insert(area.addresses.start, area.addresses.end);
        COUNT.fetch_add(1, Ordering::Release);
        let window = Self { mapping, area, faults };
        // A child of this process would make pages that nobody hears of.
        window.area.advise(&window.area.addresses, Advice::LinuxDontFork);
        window.area.open().map_err(|_| Error::OutOfMemory)?;
        window.mapping.mapped.add(&window.area);
        Ok(window)
    }

    /// Has its faults served by `by`.
    pub fn serve_by(&self, by: Weak<dyn ServeFault>) {
        self.faults.serve(&self.area, by);
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        let start = std::ptr::with_exposed_provenance_mut(self.area.addresses.start);
        NonNull::new(start).expect("no mapping begins at address zero")
    }

    /// The number of bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "no window is empty")]
    pub fn len(&self) -> usize {
        self.area.addresses.len()
    }

    /// The pages of the file that it is for.
    pub fn pages(&self) -> Range<u64> {
        self.area.pages.clone()
    }

    /// Whether it can be stored to.
    pub fn can_be_stored_to(&self) -> bool {
        self.area.can_be_stored_to
    }

    /// Shows `pages` of a folio that is [placed](Mapping::place), all uptodate, those of `stored` so that
    /// they can be stored to (W3), and wakes who waits for them.
    pub fn show(&self, folio: &LockedFolio, pages: &Range<u64>, stored: &Range<u64>) -> Result<()> {
        debug_assert!(self.mapping.holds(folio), "a folio of this file");
        self.area.show(pages, stored).map_err(|_| Error::OutOfMemory)
    }

    /// Has those who wait for `page` of the file try again.
    pub fn wake(&self, page: u64) {
        self.area.wake(page);
    }

    /// Has those who touch `page` of the file meet SIGBUS until something else is shown there.
    pub fn fail(&self, page: u64) {
        self.area.fail(page);
    }

    /// Shows nothing of `pages` of the file any more, until it is touched again.
    pub fn hide(&self, pages: &Range<u64>) {
        self.area.hide(pages);
    }

    /// [`hide`](Self::hide), if something has failed.
    pub fn forgive(&self) {
        if self.area.has_failed.swap(false, Ordering::AcqRel) {
            self.area.hide(&self.area.pages);
        }
    }
}

impl Area {
    /// Has touches of new memory be faults, and then allows them.
    fn open(&self) -> Result<(), Errno> {
        let start = std::ptr::with_exposed_provenance_mut(self.addresses.start);
        let write =
            if self.can_be_stored_to { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: the memory is the window's. What is locked could not be hidden.
        let _ = unsafe { munlock(start, self.addresses.len()) };
        self.userfaults.register(&self.addresses, self.can_be_stored_to)?;
        // SAFETY: as above.
        unsafe { mprotect(start, self.addresses.len(), MprotectFlags::READ | write) }
    }

    pub(crate) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(crate) fn pages(&self) -> &Range<u64> {
        &self.pages
    }

    /// The page of the file at an address, which is one of the area's.
    pub(crate) fn page_at(&self, address: usize) -> u64 {
        self.pages.start + ((address - self.addresses.start) >> PAGE_SHIFT) as u64
    }

    /// The addresses of those of `pages` that the window has; perhaps none.
    fn of(&self, pages: &Range<u64>) -> Addresses {
        let at = |page: u64| {
            let page = page.clamp(self.pages.start, self.pages.end);
            self.addresses.start + ((page - self.pages.start) << PAGE_SHIFT) as usize
        };
        at(pages.start)..at(pages.end)
    }

    fn show(&self, pages: &Range<u64>, stored: &Range<u64>) -> Result<(), Errno> {
        let can_be_stored_to = self.can_be_stored_to;
        let (range, stored) = (self.of(pages), self.of(stored));
        let mut at = range.start;
        if !stored.is_empty() {
            at = stored.start;
            while at < stored.end {
                at = self.userfaults.show(&(at..stored.end), false)?;
                if at < stored.end {
                    // It is shown already.
                    self.userfaults.protect(&(at..at + PAGE_SIZE), false)?;
                    at += PAGE_SIZE;
                }
            }
        }
        if self.userfaults.show(&(at..range.end), can_be_stored_to)? == at && at < range.end {
            self.userfaults.wake(&(at..at + PAGE_SIZE))?;
        }
        Ok(())
    }

    /// Protects from stores what is shown of `pages`.
    pub(crate) fn protect(&self, pages: &Range<u64>) {
        let range = self.of(pages);
        if !self.can_be_stored_to || range.is_empty() {
            return;
        }
        if self.userfaults.protect(&range, true).is_err() {
            // It is as good, but for the time it takes to show them again.
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
                // It is shown, or was, and is known to be protected. Both have to go.
                Err(Errno::EXIST) => {
                    self.hide(&(page..page + 1));
                    if self.can_be_stored_to {
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
        // SAFETY: the memory is the window's, which is a mapping of a file's memory: what is not shown
        // any more is still there.
        let advised = unsafe { madvise(start, range.len(), advice) };
        debug_assert_eq!(advised, Ok(()));
    }
}

impl Drop for MapWindow {
    fn drop(&mut self) {
        self.mapping.mapped.remove(&self.area);
        let addresses = self.area.addresses();
        self.faults.forget(addresses);
        WINDOWS.write().remove(&addresses.start);
        COUNT.fetch_sub(1, Ordering::Release);
        // SAFETY: the mapping is ours. Who still has addresses in it was told that they end with this.
        let unmapped = unsafe { munmap(self.start().as_ptr().cast(), addresses.len()) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl fmt::Debug for MapWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?}, pages {:?})", self.mapping, self.area.pages)
    }
}
