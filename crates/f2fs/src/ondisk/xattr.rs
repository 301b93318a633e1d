//! Layouts of extended attributes. The ACLs stored in them are in `fs::acl`.
//! Source: the kernel's `fs/f2fs/xattr.h`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first four bytes of an inode's attributes.
pub const XATTR_MAGIC: u32 = 0xF2F5_2011;

/// The start of an inode's attributes.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawXattrHeader {
    /// [`XATTR_MAGIC`].
    pub magic: U32,
    /// 1.
    pub refcount: U32,
    /// 0.
    pub reserved: [U32; 4],
}
const _: () = assert!(size_of::<RawXattrHeader>() == 24);

/// The start of an attribute's entry. The name follows, then the value, then padding to a multiple
/// of 4.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawXattrEntry {
    /// Number of the prefix that belongs before the name.
    pub name_index: u8,
    /// Bytes of the name.
    pub name_len: u8,
    /// Bytes of the value.
    pub value_size: U16,
}
const _: () = assert!(size_of::<RawXattrEntry>() == 4);

/// The version of [`RawVerityLocation`].
pub const VERITY_LOCATION_VERSION: u32 = 1;

/// The value of the attribute of files with fs-verity: the position of their descriptor.
/// Source: kernel documentation, `filesystems/fsverity.rst`, and the kernel's `fs/f2fs/verity.c`.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawVerityLocation {
    /// [`VERITY_LOCATION_VERSION`].
    pub version: U32,
    /// Bytes of the descriptor, with its signature.
    pub size: U32,
    /// Byte of the file at which the descriptor begins.
    pub position: U64,
}
const _: () = assert!(size_of::<RawVerityLocation>() == 16);
