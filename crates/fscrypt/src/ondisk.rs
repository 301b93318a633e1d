//! The layouts of encryption contexts, which are the values of an extended attribute of each
//! encrypted inode.
//!
//! Source: kernel documentation, `filesystems/fscrypt.rst`, "Encryption context".

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of a context with a key descriptor.
pub const VERSION_1: u8 = 1;
/// The version of a context with a key identifier.
pub const VERSION_2: u8 = 2;

/// The bits of `flags` with the padding of names: its binary logarithm, less 2.
pub const FLAGS_PADDING: u8 = 0x03;
/// The flag for initialization vectors with the file's nonce.
pub const FLAG_DIRECT_KEY: u8 = 0x04;
/// The flag for initialization vectors of 64 bits, with the inode number.
pub const FLAG_IV_INO_LBLK_64: u8 = 0x08;
/// The flag for initialization vectors of 32 bits, with the hash of the inode number.
pub const FLAG_IV_INO_LBLK_32: u8 = 0x10;

/// A context of version 1.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
pub struct RawContextV1 {
    /// [`VERSION_1`].
    pub version: u8,
    /// The mode of file contents.
    pub contents_encryption_mode: u8,
    /// The mode of names and of targets of symbolic links.
    pub filenames_encryption_mode: u8,
    /// Flags and padding.
    pub flags: u8,
    /// The name that user space gave to the master key.
    pub master_key_descriptor: [u8; 8],
    /// Random bytes, unique for each inode.
    pub nonce: [u8; 16],
}

const _: () = assert!(size_of::<RawContextV1>() == 28);

/// A context of version 2.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
pub struct RawContextV2 {
    /// [`VERSION_2`].
    pub version: u8,
    /// The mode of file contents.
    pub contents_encryption_mode: u8,
    /// The mode of names and of targets of symbolic links.
    pub filenames_encryption_mode: u8,
    /// Flags and padding.
    pub flags: u8,
    /// The binary logarithm of the size of data units, in bytes; 0: the block size.
    pub log2_data_unit_size: u8,
    /// Zeroes.
    pub reserved: [u8; 3],
    /// The hash of the master key.
    pub master_key_identifier: [u8; 16],
    /// Random bytes, unique for each inode.
    pub nonce: [u8; 16],
}

const _: () = assert!(size_of::<RawContextV2>() == 40);
