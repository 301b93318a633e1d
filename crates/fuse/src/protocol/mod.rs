//! The FUSE protocol (ABI 7.31 to 7.45), as documented in Linux's include/uapi/linux/fuse.h.
//! Numbers are native-endian, and records are padded to 8 bytes. Not here: the operations.

mod attributes;
mod changes;
mod init;
mod messages;
mod opcode;
mod ring;

pub use attributes::*;
pub use changes::*;
pub use init::*;
pub use messages::*;
pub use opcode::Opcode;
pub use ring::*;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest supported minor version (Linux 6.18).
pub const MINOR: u32 = 45;
/// The oldest supported minor version (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// The node id of the root directory.
pub const ROOT_NODE: u64 = 1;

/// The header of a request (`fuse_in_header`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InHeader {
    /// The length of the request in bytes, including this header.
    pub length: u32,
    /// The operation; see [`Opcode`].
    pub opcode: u32,
    /// The request's id, which its reply repeats.
    pub unique: u64,
    /// The node of the file that the operation is about.
    pub node: u64,
    /// The caller's user id for access to files.
    pub uid: u32,
    /// The caller's group id for access to files.
    pub gid: u32,
    /// The caller's thread id.
    pub pid: u32,
    /// The length of the extensions at the end, in units of 8 bytes (from 7.38 on).
    pub extension_length: u16,
    /// Zero.
    pub padding: u16,
}
const _: () = assert!(size_of::<InHeader>() == 40);

/// The header of a reply (`fuse_out_header`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OutHeader {
    /// The length of the reply in bytes, including this header.
    pub length: u32,
    /// Zero, or a negated error number, from -511 to -1. An error has no payload.
    pub error: i32,
    /// The request's id.
    pub unique: u64,
}
const _: () = assert!(size_of::<OutHeader>() == 16);

/// Returns `length` rounded up to the alignment of records.
pub const fn align(length: usize) -> usize {
    length.next_multiple_of(8)
}
