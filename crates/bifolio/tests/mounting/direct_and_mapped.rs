//! Direct and mapped reads and writes of files on mounts.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// Alignment of memory, offsets and lengths for direct I/O.
pub const ALIGNMENT: usize = 4096;

/// Writes `data` at offset `at` through a shared mapping of the whole file.
pub fn write_mapped(file: &File, at: usize, data: &[u8]) {
    let length = file.metadata().unwrap().len() as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    assert!(at + data.len() <= length);
    // SAFETY: this is a new mapping without references. It contains the range, and the file is not
    // truncated concurrently.
    unsafe {
        let null = std::ptr::null_mut();
        let start = rustix::mm::mmap(null, length, protection, MapFlags::SHARED, file, 0).unwrap();
        start.cast::<u8>().add(at).copy_from_nonoverlapping(data.as_ptr(), data.len());
        rustix::mm::msync(start, length, MsyncFlags::SYNC).unwrap();
        rustix::mm::munmap(start, length).unwrap();
    }
}

/// Opens a file for direct I/O.
pub fn open_direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Writes whole blocks to a file of [`open_direct`].
pub fn write_direct(file: &File, at: u64, data: &[u8]) -> Result<usize, Errno> {
    let mut memory = vec![0; data.len() + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    memory[start..][..data.len()].copy_from_slice(data);
    errno(file.write_at(&memory[start..][..data.len()], at))
}

/// Reads from a file of [`open_direct`]. Returns fewer bytes at the end of the file.
pub fn read_direct(file: &File, at: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut memory = vec![0; length + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let read = errno(file.read_at(&mut memory[start..][..length], at))?;
    Ok(memory[start..][..read].to_vec())
}

fn errno<T>(result: std::io::Result<T>) -> Result<T, Errno> {
    result.map_err(|error| Errno::from_io_error(&error).expect("the kernel gave a number"))
}

/// Shared mapping of a file, for reading and writing.
pub struct Mapped {
    start: *mut u8,
    length: usize,
}

impl Mapped {
    /// Maps the first `length` bytes of `file`.
    pub fn new(file: &File, length: usize) -> Self {
        let (null, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: this is a new mapping without references.
        let start =
            unsafe { rustix::mm::mmap(null, length, protection, MapFlags::SHARED, file, 0) };
        Self { start: start.unwrap().cast(), length }
    }

    /// Stores `data` at offset `at`.
    pub fn store(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.length);
        // SAFETY: the range is in the mapping, which has no references.
        unsafe { self.start.add(at).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    /// Writes what was stored to the file.
    pub fn sync(&self) -> Result<(), Errno> {
        // SAFETY: this is the whole mapping.
        unsafe { rustix::mm::msync(self.start.cast(), self.length, MsyncFlags::SYNC) }
    }

    /// Reads bytes at offset `at`.
    pub fn load(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.length);
        let mut data = vec![0; length];
        // SAFETY: the range is in the mapping, and no other thread stores to it.
        unsafe { data.as_mut_ptr().copy_from_nonoverlapping(self.start.add(at), length) };
        data
    }

    /// Fills the mapping with `byte`.
    pub fn fill(&self, byte: u8) {
        // SAFETY: this is the whole mapping, which has no references.
        unsafe { self.start.write_bytes(byte, self.length) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, which has no references.
        unsafe { rustix::mm::munmap(self.start.cast(), self.length) }.unwrap();
    }
}
