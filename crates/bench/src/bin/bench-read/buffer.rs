//! Memory as the cache has it: page-aligned and, where the host gives them, in huge pages.
//! Comparing with memory in small pages would flatter the cache.

use std::ops::{Deref, DerefMut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of anonymous memory.
pub struct Buffer {
    start: *mut u8,
    length: usize,
}

// SAFETY: the memory belongs to the buffer alone.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared buffer is only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `length` bytes that are not zero, so that every page is there.
    pub fn new(length: usize) -> Self {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
        let start = start.expect("memory");
        // SAFETY: the mapping just made; the advice does not change what it holds.
        // Small pages do, too, where the host has no huge ones.
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
        // SAFETY: the mapping made in `new`, which nobody borrows any more.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}
