//! Reading and writing files of mounts in other ways than by read(2) and write(2) through the cache.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// What memory, positions and lengths of direct I/O are multiples of here.
pub const ALIGNMENT: usize = 4096;

/// Writes `data` at byte `at` through a shared mapping of all of the file.
pub fn write_mapped(file: &File, at: usize, data: &[u8]) {
    let length = file.metadata().unwrap().len() as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    assert!(at + data.len() <= length);
    // SAFETY: a new mapping of a file that nobody truncates meanwhile; `at` and what follows lie in
    // it, and nothing refers to it.
    unsafe {
        let null = std::ptr::null_mut();
        let start = rustix::mm::mmap(null, length, protection, MapFlags::SHARED, file, 0).unwrap();
        start.cast::<u8>().add(at).copy_from_nonoverlapping(data.as_ptr(), data.len());
        rustix::mm::msync(start, length, MsyncFlags::SYNC).unwrap();
        rustix::mm::munmap(start, length).unwrap();
    }
}

/// The file, to be read and written around the cache.
pub fn open_direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Writes whole blocks through a file of [`open_direct`].
pub fn write_direct(file: &File, at: u64, data: &[u8]) -> Result<usize, Errno> {
    let mut memory = vec![0; data.len() + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    memory[start..][..data.len()].copy_from_slice(data);
    errno(file.write_at(&memory[start..][..data.len()], at))
}

/// What such a file has there: fewer bytes where it ends.
pub fn read_direct(file: &File, at: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut memory = vec![0; length + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    let read = errno(file.read_at(&mut memory[start..][..length], at))?;
    Ok(memory[start..][..read].to_vec())
}

fn errno<T>(result: std::io::Result<T>) -> Result<T, Errno> {
    result.map_err(|error| Errno::from_io_error(&error).expect("the kernel gave a number"))
}

/// A program's mapping of all of a file, for reading and writing.
pub struct Mapped {
    start: *mut u8,
    length: usize,
}

impl Mapped {
    /// Maps the first `length` bytes of `file`.
    pub fn new(file: &File, length: usize) -> Self {
        let (null, protection) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping of a file that nobody truncates.
        let start =
            unsafe { rustix::mm::mmap(null, length, protection, MapFlags::SHARED, file, 0) };
        Self { start: start.unwrap().cast(), length }
    }

    /// Stores `data` at byte `at`.
    pub fn store(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.length);
        // SAFETY: it lies in the mapping, to which nothing refers.
        unsafe { self.start.add(at).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    /// What is there at byte `at`.
    pub fn load(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.length);
        let mut data = vec![0; length];
        // SAFETY: it lies in the mapping, and nobody else stores to it meanwhile.
        unsafe { data.as_mut_ptr().copy_from_nonoverlapping(self.start.add(at), length) };
        data
    }

    /// Stores `byte` everywhere.
    pub fn fill(&self, byte: u8) {
        // SAFETY: all of the mapping, to which nothing refers.
        unsafe { self.start.write_bytes(byte, self.length) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: all of the mapping, to which nothing refers.
        unsafe { rustix::mm::munmap(self.start.cast(), self.length) }.unwrap();
    }
}
