//! Attempts to escape through a ring of io_uring: operations that a server's rings do not accept.
//! Not here: attempts by system calls (`escapes`).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use io_uring::squeue::{Entry, Entry128, Flags};
use io_uring::{IoUring, Parameters, cqueue, opcode, types};

use crate::host::escapes::reached;

/// The number of descriptors among which a ring is searched for.
const DESCRIPTORS: RawFd = 1024;

/// A ring with entries of 64 bytes. The rings of servers have larger ones, whose first bytes are
/// the same.
pub struct Ring(IoUring);

impl Ring {
    /// Creates a ring as a server's are, but without restrictions, and enables it.
    pub fn unrestricted() -> io::Result<Self> {
        let ring = disabled()?;
        ring.submitter().register_enable_rings()?;
        let parameters = ring.params().clone();
        Self::of(&ring, parameters)
    }

    /// Returns another owner of a ring with one entry.
    pub fn of(ring: &impl AsRawFd, parameters: Parameters) -> io::Result<Self> {
        // SAFETY: the number is that of the ring, which is open.
        let ring = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        let ring = rustix::io::fcntl_dupfd_cloexec(ring, 3)?.into_raw_fd();
        // SAFETY: this owns the descriptor, and the parameters are those of the ring. Its first
        // entry, the only one, is at the same place whatever the size of entries is.
        Ok(Self(unsafe { IoUring::from_fd(ring, parameters)? }))
    }

    /// Searches the open files for a ring that is not enabled yet, and enables it for the calling
    /// thread. `parameters` are those of the program's rings.
    pub fn taken(parameters: Parameters) -> io::Result<Self> {
        let enable = |number: &RawFd| {
            let none = std::ptr::null::<u8>();
            // SAFETY: the call takes a number. Only a ring that is disabled accepts it.
            let enabled = unsafe {
                libc::syscall(libc::SYS_io_uring_register, *number, ENABLE_RINGS, none, 0)
            };
            enabled == 0
        };
        let found = (0..DESCRIPTORS).find(enable);
        Self::of(&found.ok_or(io::ErrorKind::NotFound)?, parameters)
    }

    /// Submits an entry, and returns its result.
    pub fn submit(&mut self, entry: &Entry) -> io::Result<i64> {
        // SAFETY: what the entry refers to lives for ever.
        unsafe { self.0.submission().push(entry) }.map_err(io::Error::other)?;
        self.0.submit_and_wait(1)?;
        let completion = self.0.completion().next().ok_or(io::ErrorKind::UnexpectedEof)?;
        match completion.result() {
            result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            result => Ok(result.into()),
        }
    }

    /// Submits an entry with the number of any operation, for the ring's first registered file if
    /// the flags say so, or else without a file.
    pub fn submit_number(&mut self, operation: u8, flags: Flags) -> io::Result<i64> {
        let file = if flags.contains(Flags::FIXED_FILE) { 0 } else { -1 };
        let entry = opcode::Read::new(types::Fd(file), std::ptr::null_mut(), 0).build();
        let mut entry = entry.flags(flags);
        // SAFETY: an entry is plain numbers in the kernel's layout, and the first byte is that of
        // the operation.
        unsafe { (&raw mut entry).cast::<u8>().write(operation) };
        self.submit(&entry)
    }

    /// Tries to register a file for the ring.
    pub fn register_file(&self) -> io::Result<()> {
        self.0.submitter().register_files(&[0])
    }
}

/// `IORING_REGISTER_ENABLE_RINGS`.
const ENABLE_RINGS: u32 = 12;

fn disabled() -> io::Result<IoUring<Entry128, cqueue::Entry>> {
    let mut builder = IoUring::builder();
    builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun();
    builder.build(1)
}

/// Returns whether the host lets any program create rings.
pub fn offered() -> bool {
    // 1: privileged programs only. Older kernels have no switch.
    let switch = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    switch.map_or(true, |text| text.trim() == "0") && disabled().is_ok()
}

/// Returns the parameters of a server's rings, for a program that may create none later.
pub fn parameters() -> io::Result<Parameters> {
    Ok(disabled()?.params().clone())
}

/// An attempt: its name, its entry for an open file, and the error of the kernel which shows that
/// the operation was accepted.
pub type Submission = (&'static str, fn(types::Fd) -> Entry, i32);

/// The attempts.
pub const SUBMISSIONS: &[Submission] = &[
    ("do nothing through a ring", |_| opcode::Nop::new().build(), 0),
    ("open a file through a ring", |_| opcode::OpenAt::new(cwd(), c"/".as_ptr()).build(), 0),
    ("read a file through a ring", |file| opcode::Read::new(file, memory(), 1).build(), 0),
    ("write to a file through a ring", |file| opcode::Write::new(file, memory(), 0).build(), 0),
    (
        "create a socket through a ring",
        |_| opcode::Socket::new(libc::AF_UNIX, libc::SOCK_DGRAM, 0).build(),
        0,
    ),
    (
        "connect through a ring",
        // An empty address.
        |file| opcode::Connect::new(file, memory().cast(), 0).build(),
        libc::ENOTSOCK,
    ),
    ("send through a ring", |file| opcode::Send::new(file, memory(), 1).build(), libc::ENOTSOCK),
    (
        "let another thread do an operation of a ring",
        // The operation that servers need, which a regular file does not have.
        |file| command(file).flags(Flags::ASYNC),
        libc::EOPNOTSUPP,
    ),
];

/// The attempt to change an open socket. Before Linux 6.7, sockets have no commands.
pub const SET_OPTION: Submission =
    ("set an option of a socket through a ring", set_option, libc::EOPNOTSUPP);

/// Returns a command that sets the buffer size of a socket.
fn set_option(socket: types::Fd) -> Entry {
    /// `SOCKET_URING_OP_SETSOCKOPT`.
    const SET_SOCKET_OPTION: u32 = 3;
    /// The byte offsets of the option's level, name, length and value in an entry.
    const AT: [usize; 4] = [16, 20, 44, 48];
    let value: &'static i32 = Box::leak(Box::new(8192));
    let mut entry = opcode::UringCmd16::new(socket, SET_SOCKET_OPTION).build();
    let bytes = (&raw mut entry).cast::<u8>();
    let numbers = [libc::SOL_SOCKET as u32, libc::SO_SNDBUF as u32, size_of::<i32>() as u32];
    for (at, number) in AT.into_iter().zip(numbers) {
        // SAFETY: an entry is 64 bytes of plain numbers in the kernel's layout, aligned to 8 bytes.
        unsafe { bytes.add(at).cast::<u32>().write(number) };
    }
    // SAFETY: as above.
    unsafe { bytes.add(AT[3]).cast::<*const i32>().write(value) };
    entry
}

/// Tries a submission for `file`.
pub fn attempt(ring: &mut Ring, submission: &Submission, file: &OwnedFd) -> io::Result<()> {
    let (_, entry, accepted) = submission;
    reached(ring.submit(&entry(types::Fd(file.as_raw_fd()))), *accepted)
}

/// Returns a command to an open device: the operation that servers need.
pub fn command(file: types::Fd) -> Entry {
    opcode::UringCmd16::new(file, 0).build()
}

fn cwd() -> types::Fd {
    types::Fd(libc::AT_FDCWD)
}

/// Returns memory for any entry.
fn memory() -> *mut u8 {
    Box::leak(Box::new([0_u8; 128])).as_mut_ptr()
}
