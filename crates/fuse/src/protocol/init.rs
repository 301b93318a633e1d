//! The first message: versions, features and limits (`fuse_init_in`, `fuse_init_out`).

use std::ops::{BitAnd, BitOr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Features that both sides must name to be in force. Bits 32 and up travel in `flags2`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct InitFlags(pub u64);

impl InitFlags {
    /// The kernel reads ahead without waiting for each read.
    pub const ASYNC_READ: Self = Self(1 << 0);
    /// Open with O_TRUNC truncates; no SETATTR follows.
    pub const ATOMIC_O_TRUNC: Self = Self(1 << 3);
    /// The server answers LOOKUP of "." and ".." in nodes that the kernel has forgotten.
    pub const EXPORT_SUPPORT: Self = Self(1 << 4);
    /// Writes may be larger than a page.
    pub const BIG_WRITES: Self = Self(1 << 5);
    /// Cached pages are dropped when the size or the time of change has changed.
    pub const AUTO_INVAL_DATA: Self = Self(1 << 12);
    /// READDIRPLUS is there.
    pub const DO_READDIRPLUS: Self = Self(1 << 13);
    /// The kernel leaves the umask to the server, which knows of default ACLs.
    pub const DONT_MASK: Self = Self(1 << 6);
    /// The kernel caches writes, and sends them later.
    pub const WRITEBACK_CACHE: Self = Self(1 << 16);
    /// The kernel chooses between READDIR and READDIRPLUS by use.
    pub const READDIRPLUS_AUTO: Self = Self(1 << 14);
    /// Direct I/O is split into requests under way at once.
    pub const ASYNC_DIO: Self = Self(1 << 15);
    /// Informs: ENOSYS as the answer to OPEN means that no OPEN is needed, ever.
    pub const NO_OPEN_SUPPORT: Self = Self(1 << 17);
    /// Lookups and readdirs of one directory may be under way at once.
    pub const PARALLEL_DIROPS: Self = Self(1 << 18);
    /// The kernel enforces POSIX ACLs that it reads as xattrs.
    pub const POSIX_ACL: Self = Self(1 << 20);
    /// Reading the device after an abort gives ECONNABORTED, not ENODEV.
    pub const ABORT_ERROR: Self = Self(1 << 21);
    /// `InitOut::max_pages` counts.
    pub const MAX_PAGES: Self = Self(1 << 22);
    /// Link targets are cached.
    pub const CACHE_SYMLINKS: Self = Self(1 << 23);
    /// Informs: ENOSYS as the answer to OPENDIR means that no OPENDIR is needed, ever.
    pub const NO_OPENDIR_SUPPORT: Self = Self(1 << 24);
    /// Cached pages stay until the server says otherwise.
    pub const EXPLICIT_INVAL_DATA: Self = Self(1 << 25);
    /// Clearing setuid and setgid on write is the server's task, as the message flags say.
    pub const HANDLE_KILLPRIV_V2: Self = Self(1 << 28);
    /// SETXATTR has flags of its own.
    pub const SETXATTR_EXT: Self = Self(1 << 29);
    /// The messages have `flags2`.
    pub const INIT_EXT: Self = Self(1 << 30);
    /// Shared mappings of files opened for direct I/O work.
    pub const DIRECT_IO_ALLOW_MMAP: Self = Self(1 << 36);
    /// Idmapped mounts are allowed. Then only requests that create files name their caller. The kernel
    /// accepts this flag only with `default_permissions`.
    pub const ALLOW_IDMAP: Self = Self(1 << 40);
    /// Requests can travel through io_uring.
    pub const OVER_IO_URING: Self = Self(1 << 41);

    /// Returns whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these flags without those of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for InitFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for InitFlags {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl std::fmt::Debug for InitFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InitFlags({:#x})", self.0)
    }
}

/// The part of `fuse_init_in` that every supported kernel sends.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InitIn {
    /// The kernel's major version.
    pub major: u32,
    /// The kernel's minor version.
    pub minor: u32,
    /// The most that the kernel would read ahead, in bytes.
    pub max_readahead: u32,
    /// Bits 0 to 31 of [`InitFlags`].
    pub flags: u32,
}
const _: () = assert!(size_of::<InitIn>() == 16);

/// The continuation of `fuse_init_in` if [`InitFlags::INIT_EXT`] is set (since 7.36).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InitInExtension {
    /// Bits 32 to 63 of [`InitFlags`].
    pub flags2: u32,
    /// Reserved.
    pub unused: [u32; 11],
}
const _: () = assert!(size_of::<InitIn>() + size_of::<InitInExtension>() == 64);

/// `fuse_init_out`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InitOut {
    /// The major version to speak.
    pub major: u32,
    /// The server's minor version; both sides speak the lesser one.
    pub minor: u32,
    /// The most to read ahead, in bytes.
    pub max_readahead: u32,
    /// Bits 0 to 31 of [`InitFlags`].
    pub flags: u32,
    /// Background requests (readahead, direct I/O) under way at once.
    pub max_background: u16,
    /// Background requests from which on the kernel holds new ones back.
    pub congestion_threshold: u16,
    /// The most that one WRITE carries, in bytes.
    pub max_write: u32,
    /// The granularity of times, in nanoseconds.
    pub time_granularity: u32,
    /// The most that one request carries, in pages.
    pub max_pages: u16,
    /// For DAX: log2 of the alignment of mappings.
    pub map_alignment: u16,
    /// Bits 32 to 63 of [`InitFlags`].
    pub flags2: u32,
    /// For passthrough: how deep file systems may stack.
    pub max_stack_depth: u32,
    /// Seconds after which an unanswered request ends the connection; 0 for never.
    pub request_timeout: u16,
    /// Zero.
    pub unused: [u16; 11],
}
const _: () = assert!(size_of::<InitOut>() == 64);
