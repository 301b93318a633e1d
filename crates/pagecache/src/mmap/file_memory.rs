//! The memory of one file that is mapped: a page of the file at its own offset.
//! Not here: which pages are in it (`place.rs`), and who sees them (`window.rs`).

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

use crate::PAGE_SHIFT;

/// Owns the memory, together with all who have it mapped.
#[derive(Debug)]
pub(crate) struct FileMemory {
    memory: OwnedFd,
    /// The file's size, in bytes.
    size: AtomicU64,
    /// The memory's, in pages.
    pages: AtomicU64,
}

impl FileMemory {
    /// The memory of a file of `size` bytes, without any pages.
    pub(crate) fn new(size: u64) -> Result<Self> {
        let memory = memfd_create("bifolio", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL);
        let memory = memory.map_err(|_| Error::OutOfMemory)?;
        let memory = Self { memory, size: AtomicU64::new(size), pages: AtomicU64::new(0) };
        memory.resize()?;
        Ok(memory)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// The file's size, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The index of the page after the one with the file's last byte.
    pub(crate) fn pages_end(&self) -> u64 {
        self.size().div_ceil(1 << PAGE_SHIFT)
    }

    /// Says how large the file is now. Where it has become larger, the memory follows; where not, it
    /// has to be [cut off](Self::resize) when no folio has pages past the end any more.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        if self.pages_end() > self.pages.load(Ordering::Relaxed) {
            // If the host refuses, what is touched there gives SIGBUS.
            let _ = self.resize();
        }
    }

    /// Has the memory end where the file does.
    pub(crate) fn resize(&self) -> Result<()> {
        let pages = self.pages_end();
        ftruncate(&self.memory, pages << PAGE_SHIFT).map_err(|_| Error::OutOfMemory)?;
        self.pages.store(pages, Ordering::Relaxed);
        Ok(())
    }

    /// Makes pages exist, as zeroes, so that using them cannot fail any more.
    pub(crate) fn make(&self, pages: &Range<u64>) -> Result<()> {
        self.fallocate(FallocateFlags::KEEP_SIZE, pages)
    }

    /// Takes pages away from all who see them.
    pub(crate) fn punch(&self, pages: &Range<u64>) {
        let punched = self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, pages);
        debug_assert_eq!(punched, Ok(()));
    }

    fn fallocate(&self, flags: FallocateFlags, pages: &Range<u64>) -> Result<()> {
        let (offset, length) = (pages.start << PAGE_SHIFT, (pages.end - pages.start) << PAGE_SHIFT);
        loop {
            match fallocate(&self.memory, flags, offset, length) {
                // A signal came; there may be many.
                Err(rustix::io::Errno::INTR) => {}
                done => return done.map_err(|_| Error::OutOfMemory),
            }
        }
    }
}
