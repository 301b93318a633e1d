//! A file in memory, shared with everybody who has it open. Not here: what is stored there.

use std::fs::File;
use std::ops::Range;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// The first bytes of a file, at addresses.
pub struct Window {
    start: *mut u8,
    length: usize,
}

impl Window {
    /// More than the file has may be asked for; the bytes are there once the file has them.
    pub fn new(file: &File, length: u64) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (null, length) = (std::ptr::null_mut(), length as usize);
        // SAFETY: a new mapping, which nothing refers to.
        let start =
            unsafe { rustix::mm::mmap(null, length, protection, MapFlags::SHARED, file, 0) };
        Self { start: start.unwrap().cast(), length }
    }

    /// What is there, which the file has.
    pub fn load(&self, range: &Range<u64>) -> Vec<u8> {
        let mut found = vec![0xEE; (range.end - range.start) as usize];
        assert!(range.end <= self.length as u64);
        // SAFETY: in the mapping. Only the kernel changes it, in calls of this thread.
        unsafe {
            let from = self.start.add(range.start as usize);
            from.copy_to_nonoverlapping(found.as_mut_ptr(), found.len());
        }
        found
    }

    /// Stores bytes where the file has some. Of those behind its last byte the kernel, on mounts, would
    /// show what is in the last page when the file grows.
    pub fn store(&self, at: u64, data: &[u8]) {
        assert!(at as usize + data.len() <= self.length);
        // SAFETY: in the mapping, and nothing refers to it.
        unsafe { self.start.add(at as usize).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    /// Has the kernel write what was stored.
    pub fn sync(&self, flags: MsyncFlags) {
        // SAFETY: the whole mapping, of which nothing is taken away.
        unsafe { rustix::mm::msync(self.start.cast(), self.length, flags).unwrap() };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping.
        unsafe { rustix::mm::munmap(self.start.cast(), self.length).unwrap() };
    }
}
