//! Memory like the cache's: page-aligned and, if the host supports them, in huge pages. A
//! comparison with memory in small pages would favour the cache.

use std::ops::{Deref, DerefMut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Anonymous memory.
pub struct Buffer {
    start: *mut u8,
    length: usize,
}

// SAFETY: the memory belongs to the buffer alone.
unsafe impl Send for Buffer {}
// SAFETY: as above. A shared buffer is only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Creates a buffer of `length` bytes. They are not zero, so that all pages are present.
    pub fn new(length: usize) -> Self {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses changes no other memory.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
        let start = start.expect("memory");
        // SAFETY: the mapping was just created, and the advice does not change its contents.
        // Ignores errors: a host without huge pages uses small ones.
        let _ = unsafe { madvise(start, length, Advice::LinuxHugepage) };
        let mut buffer = Self { start: start.cast(), length };
        buffer.fill(0xA5);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is this long, readable, and lives as long as the buffer.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and writable; the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this is the mapping from `new`, and no borrow of it exists any more.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}
