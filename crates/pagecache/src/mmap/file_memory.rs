//! The memory of a mapped file: a memfd with each page of the file at the same offset.
//! Not here: moving folios' pages there (`file_pages.rs`), and showing them (`window.rs`).

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

use crate::PAGE_SHIFT;

/// The memory of a mapped file. Its pages exist as long as this, or mappings of it.
#[derive(Debug)]
pub(crate) struct FileMemory {
    memory: OwnedFd,
    /// The file's size, in bytes.
    size: AtomicU64,
    /// The memory's size, in pages.
    pages: AtomicU64,
}

impl FileMemory {
    /// Creates the memory of a file of `size` bytes, without any pages.
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

    /// Returns the file's size, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Returns the index of the page after the one with the file's last byte.
    pub(crate) fn pages_end(&self) -> u64 {
        self.size().div_ceil(1 << PAGE_SHIFT)
    }

    /// Sets the file's size. Enlarges the memory if the file is larger now. If it is smaller, the
    /// caller [truncates](Self::resize) the memory once no folio has pages past the end.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        if self.pages_end() > self.pages.load(Ordering::Relaxed) {
            // If the host refuses, accesses to the new pages get SIGBUS.
            let _ = self.resize();
        }
    }

    /// Sets the memory's size to the file's, in whole pages.
    pub(crate) fn resize(&self) -> Result<()> {
        let pages = self.pages_end();
        ftruncate(&self.memory, pages << PAGE_SHIFT).map_err(|_| Error::OutOfMemory)?;
        self.pages.store(pages, Ordering::Relaxed);
        Ok(())
    }

    /// Allocates zeroed pages, so that accesses to them cannot fail.
    pub(crate) fn allocate(&self, pages: &Range<u64>) -> Result<()> {
        self.fallocate(FallocateFlags::KEEP_SIZE, pages)
    }

    /// Frees pages, and removes them from all mappings of the memory.
    pub(crate) fn punch(&self, pages: &Range<u64>) {
        let punched = self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, pages);
        debug_assert_eq!(punched, Ok(()));
    }

    fn fallocate(&self, flags: FallocateFlags, pages: &Range<u64>) -> Result<()> {
        let (offset, length) = (pages.start << PAGE_SHIFT, (pages.end - pages.start) << PAGE_SHIFT);
        loop {
            match fallocate(&self.memory, flags, offset, length) {
                // Interrupted by a signal. There may be many.
                Err(rustix::io::Errno::INTR) => {}
                done => return done.map_err(|_| Error::OutOfMemory),
            }
        }
    }
}
