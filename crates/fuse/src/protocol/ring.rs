//! The records of the transport over io_uring (from 7.42 on): the headers of an entry, and the
//! commands on entries. An entry's payload is in separate memory.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The maximum size of a message header, and of an operation's fixed part, in bytes.
pub const RING_PART_BYTES: usize = 128;

/// The command (`sqe->cmd_op`) that registers an entry: passes it to the kernel for the first time.
pub const RING_REGISTER: u32 = 1;
/// The command that answers an entry's request and passes the entry to the kernel for the next one.
pub const RING_COMMIT_AND_FETCH: u32 = 2;
/// The number of vectors that describe the memory of an entry: the headers and the payload.
pub const RING_VECTORS: u32 = 2;

/// The headers of an entry (`fuse_uring_req_header`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RingHeader {
    /// The request's `InHeader`, replaced by the reply's `OutHeader`.
    pub message: [u8; RING_PART_BYTES],
    /// The operation's fixed part.
    pub operation: [u8; RING_PART_BYTES],
    /// The entry's own header.
    pub entry: RingEntry,
}
const _: () = assert!(size_of::<RingHeader>() == 288);

/// The header of an entry itself (`fuse_uring_ent_in_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RingEntry {
    /// Zero.
    pub flags: u64,
    /// The commit id: names the request in the command with its answer.
    pub commit: u64,
    /// The size of the request's payload in bytes, replaced by that of the reply's payload.
    pub payload_bytes: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub reserved: u64,
}
const _: () = assert!(size_of::<RingEntry>() == 32);

/// The arguments of a command, in the last 80 bytes of its submission (`fuse_uring_cmd_req`).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct RingCommand {
    /// Zero.
    pub flags: u64,
    /// [`RingEntry::commit`], or zero to register an entry.
    pub commit: u64,
    /// The queue, which has the number of its processor.
    pub queue: u16,
    /// Zero.
    pub padding: [u8; 6],
}
const _: () = assert!(size_of::<RingCommand>() == 24);
