//! The addresses of a map window: what they show, and what faults there.
//! Not here: the windows (`window.rs`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MprotectFlags, madvise, mprotect, munlock};

use super::userfault::{Addresses, Userfaults};
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// The number of attempts to poison a page that other threads concurrently show.
const ATTEMPTS_MAX: u32 = 16;

/// The addresses of a window.
#[derive(Debug)]
pub(crate) struct Area {
    addresses: Addresses,
    /// Pages of the file.
    pages: Range<u64>,
    is_writable: bool,
    /// Whether pages were poisoned. Reset by [`take_failed`](Self::take_failed).
    has_failed: AtomicBool,
    userfaults: Arc<Userfaults>,
}

impl Area {
    /// Returns the area at `addresses`, which shows no pages yet.
    pub(super) fn new(
        addresses: Addresses,
        pages: Range<u64>,
        is_writable: bool,
        userfaults: Arc<Userfaults>,
    ) -> Self {
        Self { addresses, pages, is_writable, has_failed: AtomicBool::new(false), userfaults }
    }

    /// Registers the new memory for faults, and then permits access to it.
    pub(super) fn open(&self) -> Result<(), Errno> {
        let start = std::ptr::with_exposed_provenance_mut(self.addresses.start);
        let write = if self.is_writable { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // Locked pages could not be hidden.
        // SAFETY: the memory belongs to the window.
        let _ = unsafe { munlock(start, self.addresses.len()) };
        self.userfaults.register(&self.addresses, self.is_writable)?;
        // SAFETY: as above.
        unsafe { mprotect(start, self.addresses.len(), MprotectFlags::READ | write) }
    }

    pub(super) fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Returns whether pages were poisoned since the last call.
    pub(super) fn take_failed(&self) -> bool {
        self.has_failed.swap(false, Ordering::AcqRel)
    }

    pub(super) fn pages(&self) -> &Range<u64> {
        &self.pages
    }

    /// Returns the page of the file at an address of the area.
    pub(super) fn page_at(&self, address: usize) -> u64 {
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

    /// Shows pages, and then wakes the threads that wait for the first one. A thread that waits for
    /// another page has a fault of its own. If it were woken here, its store might fault a second
    /// time, at a protected page, and one of both faults would be handled when the store is long
    /// done.
    pub(super) fn show(&self, pages: &Range<u64>, stored: &Range<u64>) -> Result<(), Errno> {
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
    pub(super) fn protect(&self, pages: &Range<u64>) {
        let range = self.of(pages);
        if !self.is_writable || range.is_empty() {
            return;
        }
        if self.userfaults.protect(&range, true).is_err() {
            // Hidden pages are protected as well. They only need to be shown again.
            self.hide(pages);
        }
    }

    pub(super) fn wake(&self, page: u64) {
        let woken = self.userfaults.wake(&self.of(&(page..page + 1)));
        debug_assert_eq!(woken, Ok(()));
    }

    pub(super) fn fail(&self, page: u64) {
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

    pub(super) fn hide(&self, pages: &Range<u64>) {
        self.advise(&self.of(pages), Advice::LinuxDontNeed);
    }

    pub(super) fn advise(&self, range: &Addresses, advice: Advice) {
        if range.is_empty() {
            return;
        }
        let start = std::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the memory belongs to the window and is a mapping of a file's memory, where pages
        // that are not shown any more continue to exist.
        let advised = unsafe { madvise(start, range.len(), advice) };
        debug_assert_eq!(advised, Ok(()));
    }

    /// Returns whether the window has any of `pages`.
    pub(super) fn has_any(&self, pages: &Range<u64>) -> bool {
        let own = self.pages();
        own.start < pages.end && pages.start < own.end
    }
}
