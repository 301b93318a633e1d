//! The kernel's userfaultfd, as far as windows need it: reading faults, showing pages, protecting
//! them. Numbers and layouts are those of `linux/userfaultfd.h`; see userfaultfd(2) and
//! ioctl_userfaultfd(2). Not here: the choice of what is shown.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::{Result, Unsupported};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// Memory addresses.
pub(crate) type Addresses = Range<usize>;

/// The group of the ioctls.
const GROUP: u8 = 0xAA;
/// The version of the interface.
const VERSION: u64 = 0xAA;
/// UFFD_USER_MODE_ONLY, which unprivileged processes must set.
const USER_MODE_ONLY: u32 = 1;

/// Features: faults for write protection; missing and minor faults of memory files; write
/// protection of memory files; poisoned pages, which came with Linux 6.6.
const FEATURES: u64 = 1 << 0 | 1 << 5 | 1 << 10 | 1 << 12 | 1 << 14;

/// Mode of a registered range: accesses to pages that do not exist are faults.
const MISSING: u64 = 1;
/// Mode of a registered range: stores to protected pages are faults.
const WRITE_PROTECT: u64 = 2;
/// Mode of a registered range: accesses to pages that exist but are not shown are faults.
const MINOR: u64 = 4;

/// UFFDIO_WRITEPROTECT_MODE_WP.
const PROTECT: u64 = 1;
/// UFFDIO_WRITEPROTECT_MODE_DONTWAKE.
const UNPROTECT_ASLEEP: u64 = 2;
/// UFFDIO_CONTINUE_MODE_DONTWAKE.
const CONTINUE_ASLEEP: u64 = 1;
/// UFFDIO_CONTINUE_MODE_WP.
const CONTINUE_PROTECTED: u64 = 2;

/// `uffd_msg.event` of a fault.
const EVENT_PAGEFAULT: u8 = 0x12;
/// The flag of a fault by a store.
const FLAG_WRITE: u64 = 1;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Bytes {
    start: u64,
    length: u64,
}

#[repr(C)]
struct Register {
    range: Bytes,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    range: Bytes,
    mode: u64,
}

/// The argument of UFFDIO_CONTINUE and UFFDIO_POISON.
#[repr(C)]
struct Fill {
    range: Bytes,
    mode: u64,
    done: i64,
}

impl Bytes {
    fn of(range: &Addresses) -> Self {
        Self { start: range.start as u64, length: range.len() as u64 }
    }
}

/// A fault. The thread that caused it waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) address: usize,
    pub(crate) is_store: bool,
}

/// One userfaultfd.
#[derive(Debug)]
pub(crate) struct Userfaults(OwnedFd);

impl Userfaults {
    /// Opens a userfaultfd. Returns `Unsupported` if the host has none, or an older version.
    pub(crate) fn new() -> Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        let user_only = flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: only new memory of windows is registered with it.
        let all = unsafe { userfaultfd(flags) };
        // SAFETY: as above.
        let fd = all.or_else(|_| unsafe { userfaultfd(user_only) });
        let missing = "mapping files, which needs the userfaultfd of Linux 6.6 or later";
        let fd = fd.map_err(|_| Unsupported::Operation(missing))?;
        let mut api = Api { api: VERSION, features: FEATURES, ioctls: 0 };
        let faults = Self(fd);
        faults
            .update::<{ opcode::read_write::<Api>(GROUP, 0x3F) }, _>(&mut api)
            .map_err(|_| Unsupported::Operation(missing))?;
        Ok(faults)
    }

    /// Registers a range of new memory: accesses to pages that are not shown become faults. If it
    /// `is_writable`, stores to protected pages do, too.
    pub(crate) fn register(&self, range: &Addresses, is_writable: bool) -> Result<(), Errno> {
        let mode = MISSING | MINOR | if is_writable { WRITE_PROTECT } else { 0 };
        let mut register = Register { range: Bytes::of(range), mode, ioctls: 0 };
        self.update::<{ opcode::read_write::<Register>(GROUP, 0x00) }, _>(&mut register)
    }

    /// Shows existing pages, `protected` or not, up to the first page that is already shown.
    /// Threads that wait for them go on waiting. Returns the address after the last page shown.
    pub(crate) fn show(&self, range: &Addresses, protected: bool) -> Result<usize, Errno> {
        let mode = CONTINUE_ASLEEP | if protected { CONTINUE_PROTECTED } else { 0 };
        let mut at = range.start;
        while at < range.end {
            let mut fill = Fill { range: Bytes::of(&(at..range.end)), mode, done: 0 };
            let shown = self.update::<{ opcode::read_write::<Fill>(GROUP, 0x07) }, _>(&mut fill);
            match shown {
                Ok(()) => at = range.end,
                Err(Errno::AGAIN) if fill.done > 0 => at += fill.done as usize,
                Err(Errno::EXIST) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(at)
    }

    /// Protects pages from stores, or ends the protection. Threads that wait for that go on
    /// waiting.
    pub(crate) fn protect(&self, range: &Addresses, protected: bool) -> Result<(), Errno> {
        let mode = if protected { PROTECT } else { UNPROTECT_ASLEEP };
        let mut protect = WriteProtect { range: Bytes::of(range), mode };
        self.update::<{ opcode::read_write::<WriteProtect>(GROUP, 0x06) }, _>(&mut protect)
    }

    /// Poisons pages that are not shown: accesses get SIGBUS.
    pub(crate) fn poison(&self, range: &Addresses) -> Result<(), Errno> {
        let mut fill = Fill { range: Bytes::of(range), mode: 0, done: 0 };
        self.update::<{ opcode::read_write::<Fill>(GROUP, 0x08) }, _>(&mut fill)
    }

    /// Wakes the threads that wait for pages. They repeat their accesses.
    pub(crate) fn wake(&self, range: &Addresses) -> Result<(), Errno> {
        // SAFETY: UFFDIO_WAKE reads a `uffdio_range`.
        unsafe {
            let wake = Setter::<{ opcode::read::<Bytes>(GROUP, 0x02) }, _>::new(Bytes::of(range));
            ioctl(&self.0, wake)
        }
    }

    /// Returns the next fault, if there is one.
    pub(crate) fn next(&self) -> Option<Fault> {
        let mut message = [0; 32];
        loop {
            match rustix::io::read(&self.0, &mut message) {
                Ok(32) if message[0] == EVENT_PAGEFAULT => break,
                // No other events were requested.
                Ok(_) => return None,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&message[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        Some(Fault { address: word(16) as usize, is_store: word(8) & FLAG_WRITE != 0 })
    }

    fn update<const OPCODE: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: callers pass the operation's argument type.
        unsafe { ioctl(&self.0, Updater::<OPCODE, T>::new(argument)) }
    }
}

impl AsFd for Userfaults {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Register>() == 32);
const _: () = assert!(size_of::<WriteProtect>() == 24 && size_of::<Fill>() == 32);
