//! The layout of the descriptor, `struct fsverity_descriptor`.
//! Source: <https://docs.kernel.org/filesystems/fsverity.html#fs-verity-descriptor>.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The descriptor, which the signature follows.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
pub(crate) struct RawDescriptor {
    /// Always 1.
    pub version: u8,
    /// 1 for SHA-256, 2 for SHA-512.
    pub hash_algorithm: u8,
    /// log2 of the size of blocks of data and of the tree, in bytes.
    pub log_blocksize: u8,
    /// The length of the salt in bytes.
    pub salt_size: u8,
    /// The length of the signature in bytes. Zero in the descriptor that the file digest is
    /// computed of.
    pub sig_size: U32,
    /// The size of the file in bytes.
    pub data_size: U64,
    /// The root hash, and zeroes.
    pub root_hash: [u8; 64],
    /// The salt, and zeroes.
    pub salt: [u8; 32],
    /// Zeroes.
    pub reserved: [u8; 144],
}

const _: () = assert!(size_of::<RawDescriptor>() == 256);
const _: () = assert!(std::mem::offset_of!(RawDescriptor, data_size) == 8);
const _: () = assert!(std::mem::offset_of!(RawDescriptor, root_hash) == 16);
const _: () = assert!(std::mem::offset_of!(RawDescriptor, salt) == 80);
