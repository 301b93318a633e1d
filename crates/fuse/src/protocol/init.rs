//! INIT, the first message: versions, features and limits (`fuse_init_in`, `fuse_init_out`).

use std::ops::{BitAnd, BitOr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Features. A feature is in force if both sides name it. Bits from 32 on are sent in `flags2`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct InitFlags(pub u64);

impl InitFlags {
    /// The kernel sends several reads of a file at once, such as readahead.
    pub const ASYNC_READ: Self = Self(1 << 0);
    /// OPEN with O_TRUNC truncates the file; no SETATTR follows.
    pub const ATOMIC_O_TRUNC: Self = Self(1 << 3);
    /// The server answers LOOKUP of "." and ".." in nodes that the kernel has forgotten.
    pub const EXPORT_SUPPORT: Self = Self(1 << 4);
    /// Writes may be larger than a page.
    pub const BIG_WRITES: Self = Self(1 << 5);
    /// Cached pages are dropped when the size or the time of change has changed.
    pub const AUTO_INVAL_DATA: Self = Self(1 << 12);
    /// The server supports READDIRPLUS.
    pub const DO_READDIRPLUS: Self = Self(1 << 13);
    /// The server applies the umask, since it knows default ACLs.
    pub const DONT_MASK: Self = Self(1 << 6);
    /// The kernel collects writes in its cache and sends them later.
    pub const WRITEBACK_CACHE: Self = Self(1 << 16);
    /// The kernel chooses between READDIR and READDIRPLUS by the program's behaviour.
    pub const READDIRPLUS_AUTO: Self = Self(1 << 14);
    /// The kernel splits direct I/O into requests that are in flight concurrently.
    pub const ASYNC_DIO: Self = Self(1 << 15);
    /// Set by the kernel if it takes ENOSYS as the answer to OPEN to mean that no OPEN is needed
    /// any more.
    pub const NO_OPEN_SUPPORT: Self = Self(1 << 17);
    /// Lookups and listings of one directory may be in flight concurrently.
    pub const PARALLEL_DIROPS: Self = Self(1 << 18);
    /// The kernel enforces POSIX ACLs that it reads as xattrs.
    pub const POSIX_ACL: Self = Self(1 << 20);
    /// Reads of /dev/fuse fail with ECONNABORTED after an abort, not with ENODEV.
    pub const ABORT_ERROR: Self = Self(1 << 21);
    /// `InitOut::max_pages` is valid.
    pub const MAX_PAGES: Self = Self(1 << 22);
    /// The kernel caches link targets.
    pub const CACHE_SYMLINKS: Self = Self(1 << 23);
    /// Set by the kernel if it takes ENOSYS as the answer to OPENDIR to mean that no OPENDIR is
    /// needed any more.
    pub const NO_OPENDIR_SUPPORT: Self = Self(1 << 24);
    /// Cached pages stay until the server says otherwise.
    pub const EXPLICIT_INVAL_DATA: Self = Self(1 << 25);
    /// The server clears setuid and setgid on a write, as requested by flags of the messages.
    pub const HANDLE_KILLPRIV_V2: Self = Self(1 << 28);
    /// SETXATTR has FUSE_SETXATTR_* flags.
    pub const SETXATTR_EXT: Self = Self(1 << 29);
    /// The messages have `flags2`.
    pub const INIT_EXT: Self = Self(1 << 30);
    /// Files that are opened for direct I/O can have shared mappings.
    pub const DIRECT_IO_ALLOW_MMAP: Self = Self(1 << 36);
    /// Idmapped mounts are allowed. Then only requests that create files name their caller. The
    /// kernel accepts this flag only with `default_permissions`.
    pub const ALLOW_IDMAP: Self = Self(1 << 40);
    /// Requests can come through io_uring.
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
    /// The maximum readahead that the kernel offers, in bytes.
    pub max_readahead: u32,
    /// Bits 0 to 31 of [`InitFlags`].
    pub flags: u32,
}
const _: () = assert!(size_of::<InitIn>() == 16);

/// The continuation of `fuse_init_in` if [`InitFlags::INIT_EXT`] is set (from 7.36 on).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InitInExtension {
    /// Bits 32 to 63 of [`InitFlags`].
    pub flags2: u32,
    /// Reserved.
    pub unused: [u32; 11],
}
const _: () = assert!(size_of::<InitIn>() + size_of::<InitInExtension>() == 64);

/// The reply to INIT (`fuse_init_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InitOut {
    /// The major version.
    pub major: u32,
    /// The server's minor version. The lesser of both sides' versions is in force.
    pub minor: u32,
    /// The maximum readahead, in bytes.
    pub max_readahead: u32,
    /// Bits 0 to 31 of [`InitFlags`].
    pub flags: u32,
    /// The maximum number of background requests (readahead, direct I/O) in flight.
    pub max_background: u16,
    /// The number of background requests from which on the kernel delays new ones.
    pub congestion_threshold: u16,
    /// The maximum length of a WRITE, in bytes.
    pub max_write: u32,
    /// The granularity of times, in nanoseconds.
    pub time_granularity: u32,
    /// The maximum length of the data of a request, in pages.
    pub max_pages: u16,
    /// Log2 of the alignment of mappings, for DAX.
    pub map_alignment: u16,
    /// Bits 32 to 63 of [`InitFlags`].
    pub flags2: u32,
    /// The maximum depth of stacked file systems, for passthrough.
    pub max_stack_depth: u32,
    /// The time after which an unanswered request ends the connection, in seconds; zero for never.
    pub request_timeout: u16,
    /// Zero.
    pub unused: [u16; 11],
}
const _: () = assert!(size_of::<InitOut>() == 64);
