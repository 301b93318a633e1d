//! Shared mapping of a file. Not here: the data that is stored.

use std::fs::File;
use std::ops::Range;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// A mapping of the start of a file.
pub struct Window {
    start: *mut u8,
    length: usize,
}

impl Window {
    /// Maps the first `length` bytes. The mapping may be longer than the file.
    pub fn new(file: &File, length: u64) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let (null, length) = (std::ptr::null_mut(), length as usize);
        // SAFETY: this is a new mapping without references to it.
        let start =
            unsafe { rustix::mm::mmap(null, length, protection, MapFlags::SHARED, file, 0) };
        Self { start: start.unwrap().cast(), length }
    }

    /// Reads a range within the file.
    pub fn load(&self, range: &Range<u64>) -> Vec<u8> {
        let mut found = vec![0xEE; (range.end - range.start) as usize];
        assert!(range.end <= self.length as u64);
        // SAFETY: the range is in the mapping. Only the kernel changes it, in calls of this thread.
        unsafe {
            let from = self.start.add(range.start as usize);
            from.copy_to_nonoverlapping(found.as_mut_ptr(), found.len());
        }
        found
    }

    /// Stores bytes within the file. Stores after the end of the file are not tested: on FUSE
    /// mounts, the kernel would show them when the file grows.
    pub fn store(&self, at: u64, data: &[u8]) {
        assert!(at as usize + data.len() <= self.length);
        // SAFETY: the range is in the mapping, which has no references.
        unsafe { self.start.add(at as usize).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    /// Flushes stores with msync(2).
    pub fn sync(&self, flags: MsyncFlags) {
        // SAFETY: this is the whole mapping, and msync does not unmap pages.
        unsafe { rustix::mm::msync(self.start.cast(), self.length, flags).unwrap() };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping has no references.
        unsafe { rustix::mm::munmap(self.start.cast(), self.length).unwrap() };
    }
}
