//! Asynchronous direct writes of files on mounts, through io_submit(2).

use std::fs::File;
use std::os::fd::AsRawFd;

use super::direct_and_mapped::ALIGNMENT;

/// The operation of `struct iocb` that writes.
const IOCB_CMD_PWRITE: u16 = 1;

/// Writes whole blocks to a file of `open_direct` asynchronously, and waits for the end of the write.
pub fn write_async(file: &File, at: u64, data: &[u8]) {
    let mut memory = vec![0; data.len() + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    memory[start..][..data.len()].copy_from_slice(data);
    let context = Context::new();
    context.submit_write(file, at, &memory[start..][..data.len()]);
    assert_eq!(context.wait(), data.len() as i64);
}

/// A context of the kernel for one asynchronous call.
struct Context(libc::c_ulong);

impl Context {
    fn new() -> Self {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes to `context` only.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) }, 0);
        Self(context)
    }

    /// Submits a write. `data` must live until the end of the context, which waits for the write.
    fn submit_write(&self, file: &File, at: u64, data: &[u8]) {
        // SAFETY: all fields are numbers, and zero is valid.
        let mut call: libc::iocb = unsafe { std::mem::zeroed() };
        call.aio_lio_opcode = IOCB_CMD_PWRITE;
        call.aio_fildes = file.as_raw_fd() as u32;
        call.aio_buf = data.as_ptr() as u64;
        call.aio_nbytes = data.len() as u64;
        call.aio_offset = at as i64;
        let mut calls = [&raw mut call];
        // SAFETY: the kernel reads one call, and `data` until the write has ended.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1, calls.as_mut_ptr()) };
        assert_eq!(submitted, 1, "{}", std::io::Error::last_os_error());
    }

    /// Waits for the call and returns its result.
    fn wait(&self) -> i64 {
        // The fields of `struct io_event`; the third is the result.
        let mut event = [0_i64; 4];
        let no_timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel writes one event, which has this size.
        let count = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.0, 1, 1, event.as_mut_ptr(), no_timeout)
        };
        assert_eq!(count, 1, "{}", std::io::Error::last_os_error());
        event[2]
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Waits for the call.
        // SAFETY: nothing uses the context afterwards.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
