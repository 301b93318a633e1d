//! What travels through io_uring instead of /dev/fuse (since 7.42): the headers of an entry and the
//! commands about it. The payload lies in memory of its own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most bytes of a header, and of an operation's fixed part.
pub const RING_PART_BYTES: usize = 128;

/// The command (`sqe->cmd_op`) that gives an entry to the kernel.
pub const RING_REGISTER: u32 = 1;
/// The command that answers an entry's request and gives the entry back.
pub const RING_COMMIT_AND_FETCH: u32 = 2;
/// The memory of an entry comes as so many vectors: the headers, and the payload.
pub const RING_VECTORS: u32 = 2;

/// The headers of an entry (`fuse_uring_req_header`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RingHeader {
    /// The request's `InHeader`, and then the reply's `OutHeader`.
    pub message: [u8; RING_PART_BYTES],
    /// The operation's fixed part.
    pub operation: [u8; RING_PART_BYTES],
    /// The rest.
    pub entry: RingEntry,
}
const _: () = assert!(size_of::<RingHeader>() == 288);

/// What is said about an entry itself (`fuse_uring_ent_in_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RingEntry {
    /// Zero.
    pub flags: u64,
    /// What the answer is to be committed by.
    pub commit: u64,
    /// The bytes of the payload: first the request's, then the reply's.
    pub payload_bytes: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub reserved: u64,
}
const _: () = assert!(size_of::<RingEntry>() == 32);

/// What a command says besides, in the last 80 bytes of its submission (`fuse_uring_cmd_req`).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct RingCommand {
    /// Zero.
    pub flags: u64,
    /// [`RingEntry::commit`]; zero when an entry is registered.
    pub commit: u64,
    /// The queue, which is the number of a processor.
    pub queue: u16,
    /// Zero.
    pub padding: [u8; 6],
}
const _: () = assert!(size_of::<RingCommand>() == 24);
