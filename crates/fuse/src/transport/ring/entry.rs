//! A ring of io_uring with one entry that travels between the kernel and this process. Not here:
//! what is in the entry (`delivery`), who waits for it (`crew`).
//!
//! The kernel touches an entry's memory only while the thread that the ring belongs to is in
//! `io_uring_enter`, where it takes an answer and leaves the next request (SINGLE_ISSUER and
//! DEFER_TASKRUN). Between two calls the memory is this thread's alone.
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

use super::delivery::{ENTRY_BYTES, PAYLOAD_AT};
use crate::protocol::{RING_COMMIT_AND_FETCH, RING_REGISTER, RING_VECTORS, RingCommand};
use crate::transport::busy_poll::BusyPoll;

/// `IORING_REGISTER_ENABLE_RINGS`: the one thing that can still be asked of a ring by
/// `io_uring_register` once it is made.
pub const ENABLE_RINGS: u8 = 12;
/// `IORING_ENTER_GETEVENTS`: completions that are there are handed over.
const GET_EVENTS: u32 = 1;
/// Where the number of vectors lies in a submission (`sqe->len`).
const SUBMISSION_LENGTH_AT: usize = 24;

/// What is wanted from the kernel before it leaves the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// To take the entry for the first time.
    Register,
    /// To take the answer to what is to be committed by this number.
    Commit(u64),
}

/// A ring and its entry.
pub struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    queue: u16,
    memory: Memory,
}

impl Ring {
    /// Makes a ring for a queue. It does nothing before it is enabled, and then it passes on
    /// commands to open devices, and nothing else. Fails where io_uring is missing or forbidden.
    pub fn new(queue: u16) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(1)?;
        ring.submitter().register_restrictions(&mut [
            Restriction::register_op(ENABLE_RINGS),
            Restriction::sqe_op(opcode::UringCmd80::CODE),
            Restriction::sqe_flags_allowed(0),
        ])?;
        Ok(Self { ring, queue, memory: Memory::new()? })
    }

    /// The queue.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Makes the ring the calling thread's.
    pub fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Gives the entry to the kernel and waits until it is back, with a request. Only the thread
    /// that has enabled the ring may. After a failure the entry is of no more use.
    pub fn exchange(
        &mut self,
        device: BorrowedFd<'_>,
        command: Command,
        poll: &BusyPoll,
    ) -> Result<&mut [u8], Errno> {
        let submission = self.submission(device, command);
        // SAFETY: the vectors, which the kernel reads on submission, live as long as the ring, and
        // so does the memory that they name. Nobody has a reference to it: that would borrow `self`.
        let pushed = unsafe { self.ring.submission().push(&submission) };
        // Its only entry is not with the kernel.
        assert!(pushed.is_ok(), "the submission queue is full");
        let mut wait = poll.begin();
        let mut looking = true;
        let result = loop {
            // Even without waiting, this is what has the kernel fill the entry.
            self.enter(usize::from(!looking))?;
            if let Some(completion) = self.ring.completion().next() {
                break completion.result();
            }
            looking = looking && poll.look_again(&mut wait);
        };
        poll.end(&wait);
        if result < 0 {
            return Err(Errno::from_raw_os_error(-result));
        }
        // SAFETY: the entry is back, and the kernel leaves it alone until it is given to it again,
        // for which `self` must not be borrowed any more.
        Ok(unsafe { self.memory.bytes() })
    }

    fn submission(&self, device: BorrowedFd<'_>, command: Command) -> squeue::Entry128 {
        let (operation, commit) = match command {
            Command::Register => (RING_REGISTER, 0),
            Command::Commit(number) => (RING_COMMIT_AND_FETCH, number),
        };
        let message = RingCommand { flags: 0, commit, queue: self.queue, padding: [0; 6] };
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCommand>()].copy_from_slice(message.as_bytes());
        let mut submission = opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), operation)
            .cmd(bytes)
            .addr(Some(self.memory.vectors.as_ptr() as u64))
            .build();
        // SAFETY: a submission is 128 bytes of plain numbers, laid out as the kernel has it; the
        // crate has no setter for this one.
        unsafe {
            (&raw mut submission)
                .cast::<u8>()
                .add(SUBMISSION_LENGTH_AT)
                .cast::<u32>()
                .write(RING_VECTORS);
        }
        submission
    }

    /// Submits what has not been submitted yet, and waits for so many completions.
    fn enter(&mut self, count: usize) -> Result<(), Errno> {
        loop {
            let submissions = self.ring.submission().len() as u32;
            // SAFETY: no argument is passed, and what is submitted is valid (see `exchange`).
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

/// The memory of an entry. What is not touched of it takes no memory.
struct Memory {
    start: NonNull<u8>,
    /// As the kernel wants to have it described. Boxed, so that it does not move.
    vectors: Box<[libc::iovec; RING_VECTORS as usize]>,
}

// SAFETY: the pointers are to memory that only the owner uses.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where there was none.
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

    /// All of it.
    ///
    /// # Safety
    ///
    /// The kernel does not write to it meanwhile.
    unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: all of the mapping, zeroes at first, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), ENTRY_BYTES) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing is borrowed from it. Should the kernel still have the entry, then it finds
        // that its memory has gone, or, since it writes only on behalf of a thread that has left,
        // does not look.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), ENTRY_BYTES) };
    }
}
