//! Asynchronous writes of files that are open for direct I/O, through io_submit(2).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;

/// The operation of `struct iocb` that writes.
const IOCB_CMD_PWRITE: u16 = 1;
/// The alignment of memory for direct I/O.
const ALIGNMENT: usize = 4096;

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    /// `aio_data` of the call.
    data: u64,
    call: u64,
    result: i64,
    result2: i64,
}

/// Asynchronous writes to a file. Dropping this waits for the writes in flight.
pub struct AsyncWrites<'f> {
    file: &'f File,
    context: libc::c_ulong,
    /// The writes in flight, by `aio_data`.
    in_flight: BTreeMap<u64, Write>,
    /// The number of writes so far.
    submitted: u64,
}

/// A write in flight.
struct Write {
    at: u64,
    length: usize,
    /// Memory that contains the data at an aligned address. The kernel reads it until the write has
    /// ended.
    memory: Vec<u8>,
}

impl Write {
    fn new(at: u64, data: &[u8]) -> Self {
        let mut write = Self { at, length: data.len(), memory: vec![0; data.len() + ALIGNMENT] };
        let start = write.memory.as_ptr().align_offset(ALIGNMENT);
        write.memory[start..][..data.len()].copy_from_slice(data);
        write
    }

    fn call(&self, file: &File, number: u64) -> libc::iocb {
        let start = self.memory.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: all fields are numbers, and zero is valid.
        let mut call: libc::iocb = unsafe { std::mem::zeroed() };
        call.aio_data = number;
        call.aio_lio_opcode = IOCB_CMD_PWRITE;
        call.aio_fildes = file.as_raw_fd() as u32;
        call.aio_buf = self.memory[start..].as_ptr() as u64;
        call.aio_nbytes = self.length as u64;
        call.aio_offset = self.at as i64;
        call
    }
}

impl<'f> AsyncWrites<'f> {
    /// Prepares writes to `file`, of which at most `in_flight_max` are in flight.
    pub fn new(file: &'f File, in_flight_max: u32) -> Self {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes to `context` only.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, in_flight_max, &raw mut context) };
        assert_eq!(result, 0, "io_setup: {}", Error::last_os_error());
        Self { file, context, in_flight: BTreeMap::new(), submitted: 0 }
    }

    /// Submits writes of whole blocks, each with its offset, by one system call.
    pub fn submit(&mut self, writes: &[(u64, &[u8])]) {
        let mut calls = Vec::with_capacity(writes.len());
        for (at, data) in writes {
            let write = Write::new(*at, data);
            calls.push(write.call(self.file, self.submitted));
            self.in_flight.insert(self.submitted, write);
            self.submitted += 1;
        }
        let mut pointers: Vec<_> = calls.iter_mut().map(|call| &raw mut *call).collect();
        // SAFETY: the kernel reads these calls now, and their data until the writes have ended.
        // `in_flight` owns the data until `wait` has seen their ends, or the context has been
        // destroyed.
        let submitted = unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, pointers.len(), pointers.as_mut_ptr())
        };
        assert_eq!(submitted, writes.len() as i64, "io_submit: {}", Error::last_os_error());
    }

    /// Waits until a write ends, and returns the offset and the length of each write that has
    /// ended. Returns none if no write is in flight.
    pub fn wait(&mut self) -> Vec<(u64, usize)> {
        if self.in_flight.is_empty() {
            return Vec::new();
        }
        let mut events = vec![Event::default(); self.in_flight.len()];
        let no_timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel writes at most this many events, which have the layout of
        // `struct io_event`.
        let count = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                1_i64,
                events.len(),
                events.as_mut_ptr(),
                no_timeout,
            )
        };
        assert!(count >= 1, "io_getevents: {}", Error::last_os_error());
        events.truncate(count as usize);
        let ended = events.iter().map(|event| {
            let write = self.in_flight.remove(&event.data).expect("a write in flight");
            assert_eq!(event.result, write.length as i64, "the write at {}", write.at);
            (write.at, write.length)
        });
        ended.collect()
    }
}

impl Drop for AsyncWrites<'_> {
    fn drop(&mut self) {
        // Waits for the writes in flight, whose data is freed afterwards.
        // SAFETY: nothing uses the context afterwards.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
