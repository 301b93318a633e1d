//! A ring of io_uring with one entry, which the kernel and this process own in turns. Not here: the
//! contents of the entry (`delivery`), the thread that waits for it (`worker_pool`).
//!
//! The kernel accesses an entry's memory only while the ring's thread is in `io_uring_enter`: there
//! it takes the answer and stores the next request (SINGLE_ISSUER and DEFER_TASKRUN). Between two
//! calls, only this thread accesses the memory.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::IntoBytes;

use confine::ENABLE_RINGS;

use super::delivery::{ENTRY_BYTES, PAYLOAD_AT};
use crate::protocol::{RING_COMMIT_AND_FETCH, RING_REGISTER, RING_VECTORS, RingCommand};
use crate::transport::busy_poll::BusyPoll;

/// `IORING_ENTER_GETEVENTS`: makes the kernel process completions.
const GET_EVENTS: u32 = 1;
/// The byte offset of the number of vectors in a submission (`sqe->len`).
const SUBMISSION_LENGTH_AT: usize = 24;

/// The only file that a ring knows.
const DEVICE: types::Fixed = types::Fixed(0);

/// A command to the kernel, which then stores the next request in the entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Register the entry. It holds no answer.
    Register,
    /// Take the answer to the request with this commit id.
    Commit(u64),
}

/// A ring and its entry.
pub struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    queue: u16,
    memory: Memory,
}

impl Ring {
    /// Creates a ring for a queue. It is disabled. Once enabled, it accepts nothing but commands to
    /// `device`. Commands to other files could change sockets (SOCKET_URING_OP_SETSOCKOPT, from
    /// Linux 6.7 on).
    ///
    /// Errors: that of the host if io_uring is missing or forbidden.
    pub fn new(queue: u16, device: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(1)?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        let registered_file = squeue::Flags::FIXED_FILE.bits();
        ring.submitter().register_restrictions(&mut [
            Restriction::register_op(ENABLE_RINGS),
            Restriction::sqe_op(opcode::UringCmd80::CODE),
            Restriction::sqe_flags_allowed(registered_file),
            Restriction::sqe_flags_required(registered_file),
        ])?;
        Ok(Self { ring, queue, memory: Memory::new()? })
    }

    /// Returns the queue.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Enables the ring for the calling thread alone.
    pub fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Passes the entry to the kernel, waits until it is back with a request, and returns its
    /// memory. Only the thread that has enabled the ring may call this. After an error, the entry
    /// cannot be used again.
    pub fn exchange(&mut self, command: Command, poll: &BusyPoll) -> Result<&mut [u8], Errno> {
        let submission = self.submission(command);
        // SAFETY: the vectors, which the kernel reads on submission, live as long as the ring, and
        // so does the memory that they describe. No reference to it exists: that would borrow
        // `self`.
        let pushed = unsafe { self.ring.submission().push(&submission) };
        // The kernel does not have the ring's only entry.
        assert!(pushed.is_ok(), "the submission queue is full");
        let mut wait = poll.begin();
        let mut is_polling = true;
        let result = loop {
            // Needed even without a wait: the kernel fills the entry during this call.
            self.enter(usize::from(!is_polling))?;
            if let Some(completion) = self.ring.completion().next() {
                break completion.result();
            }
            is_polling = is_polling && poll.poll_again(&mut wait);
        };
        poll.end(&wait);
        if result < 0 {
            return Err(Errno::from_raw_os_error(-result));
        }
        // SAFETY: the entry is back, and the kernel does not access it until the next call of this
        // method, which needs `self` not to be borrowed any more.
        Ok(unsafe { self.memory.bytes() })
    }

    fn submission(&self, command: Command) -> squeue::Entry128 {
        let (operation, commit) = match command {
            Command::Register => (RING_REGISTER, 0),
            Command::Commit(number) => (RING_COMMIT_AND_FETCH, number),
        };
        let message = RingCommand { flags: 0, commit, queue: self.queue, padding: [0; 6] };
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCommand>()].copy_from_slice(message.as_bytes());
        let mut submission = opcode::UringCmd80::new(DEVICE, operation)
            .cmd(bytes)
            .addr(Some(self.memory.vectors.as_ptr() as u64))
            .build();
        // SAFETY: a submission is 128 bytes of plain numbers in the kernel's layout. The crate has
        // no setter for this number.
        unsafe {
            (&raw mut submission)
                .cast::<u8>()
                .add(SUBMISSION_LENGTH_AT)
                .cast::<u32>()
                .write(RING_VECTORS);
        }
        submission
    }

    /// Submits pending submissions, and waits for `count` completions.
    fn enter(&mut self, count: usize) -> Result<(), Errno> {
        loop {
            let submissions = self.ring.submission().len() as u32;
            // SAFETY: no argument is passed, and the submissions are valid (see `exchange`).
            let entered = unsafe {
                self.ring.submitter().enter::<()>(submissions, count as u32, GET_EVENTS, None)
            };
            let Err(error) = entered else { return Ok(()) };
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                // Out of memory for now.
                Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                errno => return Err(errno.unwrap_or(Errno::IO)),
            }
        }
    }
}
const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// The memory of an entry. Untouched pages take no memory.
struct Memory {
    start: NonNull<u8>,
    /// The description for the kernel. Boxed, so that it does not move.
    vectors: Box<[libc::iovec; RING_VECTORS as usize]>,
}

// SAFETY: the pointers lead to memory that only the owner uses.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps the memory.
    fn new() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                ENTRY_BYTES,
                protection,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: within the mapping.
        let payload = unsafe { start.add(PAYLOAD_AT) };
        let vectors = Box::new([
            libc::iovec { iov_base: start.as_ptr().cast(), iov_len: PAYLOAD_AT },
            libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: ENTRY_BYTES - PAYLOAD_AT },
        ]);
        Ok(Self { start, vectors })
    }

    /// Returns all of the memory.
    ///
    /// # Safety
    ///
    /// The kernel must not write to the memory while the result is in use.
    unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the slice is the whole mapping, which is zeroes at first, and borrows `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), ENTRY_BYTES) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing borrows from the memory. If the kernel still has the entry, it accesses
        // the memory only within calls of the ring's thread, of which there are no more; otherwise
        // it would find the memory unmapped, and fail.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), ENTRY_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixDatagram;

    use io_uring::squeue::Flags;
    use testkit::ring_escapes::{self, SET_OPTION, SUBMISSIONS};

    use super::*;

    /// `IORING_OP_LAST` is lower.
    const OPERATIONS: u8 = 128;

    fn errno(outcome: io::Result<i64>) -> Option<i32> {
        outcome.unwrap_err().raw_os_error()
    }

    #[test]
    fn a_ring_accepts_commands_to_its_device_and_nothing_else() {
        let device = super::super::device::open_device().unwrap();
        let ring = Ring::new(0, device.as_fd()).unwrap();
        ring.enable().unwrap();
        let parameters = ring.ring.params().clone();
        let mut user = ring_escapes::Ring::of(&ring.ring, parameters).unwrap();
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        for submission in SUBMISSIONS {
            let refused = ring_escapes::attempt(&mut user, submission, &file);
            assert_eq!(errno(refused.map(|()| 0)), Some(libc::EACCES), "{}", submission.0);
        }
        let socket = OwnedFd::from(UnixDatagram::unbound().unwrap());
        let refused = ring_escapes::attempt(&mut user, &SET_OPTION, &socket);
        assert_eq!(errno(refused.map(|()| 0)), Some(libc::EACCES));
        for operation in 0..OPERATIONS {
            for flags in [Flags::empty(), Flags::FIXED_FILE] {
                let expected: &[_] = match (operation, flags) {
                    // The device has no connection, or the kernel no FUSE over io_uring.
                    (opcode::UringCmd80::CODE, Flags::FIXED_FILE) => {
                        &[libc::EPERM, libc::ENOTCONN, libc::EOPNOTSUPP]
                    }
                    // The kernel may be too old for the operation.
                    _ => &[libc::EACCES, libc::EINVAL],
                };
                let found = errno(user.submit_number(operation, flags)).unwrap();
                assert!(expected.contains(&found), "operation {operation}: {found}");
            }
        }
        let found = user.register_file().unwrap_err();
        assert_eq!(found.raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn a_ring_without_restrictions_accepts_other_operations() {
        let mut user = ring_escapes::Ring::unrestricted().unwrap();
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        for submission in SUBMISSIONS {
            let accepted = ring_escapes::attempt(&mut user, submission, &file);
            accepted.unwrap_or_else(|error| panic!("{}: {error}", submission.0));
        }
        let socket = OwnedFd::from(UnixDatagram::unbound().unwrap());
        ring_escapes::attempt(&mut user, &SET_OPTION, &socket).unwrap();
        user.register_file().unwrap();
    }
}
