//! Layout of the inode (kernel documentation, "Index Nodes"): 128 bytes, and extra fields, whose
//! number depends on the volume's inode size and on the inode's own `extra_isize`.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The part that every inode has.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawInode {
    /// Type and permissions.
    pub mode: U16,
    /// Owner, low half.
    pub uid: U16,
    /// Size in bytes, low half.
    pub size_lo: U32,
    /// Last access, seconds since 1970, low 32 bits, signed. Of an attribute inode: the hash of
    /// its value.
    pub atime: U32,
    /// Last inode change, likewise. Of an attribute inode: the high half of its reference count.
    pub ctime: U32,
    /// Last change of the contents, likewise.
    pub mtime: U32,
    /// Deletion time, or the next inode of the orphan list.
    pub dtime: U32,
    /// Group, low half.
    pub gid: U16,
    /// Hard links.
    pub links_count: U16,
    /// Blocks in use, low half; units of 512 bytes, or of blocks with the flag HUGE_FILE.
    pub blocks_lo: U32,
    /// Flags.
    pub flags: U32,
    /// Version, low half. Of an attribute inode: the low half of its reference count.
    pub version_lo: U32,
    /// Block map, extent tree root, inline data, symbolic link target or device number.
    pub block: [u8; 60],
    /// Generation, for NFS.
    pub generation: U32,
    /// Block of the extended attributes, low half.
    pub file_acl_lo: U32,
    /// Size in bytes, high half.
    pub size_high: U32,
    /// Fragment address, obsolete.
    pub obso_faddr: U32,
    /// Blocks in use, high half.
    pub blocks_high: U16,
    /// Block of the extended attributes, high half.
    pub file_acl_high: U16,
    /// Owner, high half.
    pub uid_high: U16,
    /// Group, high half.
    pub gid_high: U16,
    /// Checksum, low half (`metadata_csum`).
    pub checksum_lo: U16,
    /// Padding.
    pub reserved: U16,
}

/// The fields after byte 128. The inode's own `extra_isize` is the number of their bytes that are
/// present.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Default, Debug)]
#[repr(C)]
pub struct RawInodeExtra {
    /// Bytes in use from byte 128 on; extended attributes may follow them.
    pub extra_isize: U16,
    /// Checksum, high half (`metadata_csum`).
    pub checksum_hi: U16,
    /// Of `ctime`: bits 0 and 1 are bits 32 and 33 of the seconds, the rest are nanoseconds.
    pub ctime_extra: U32,
    /// Of `mtime`, likewise.
    pub mtime_extra: U32,
    /// Of `atime`, likewise.
    pub atime_extra: U32,
    /// Creation, seconds since 1970, low 32 bits, signed.
    pub crtime: U32,
    /// Of `crtime`, likewise.
    pub crtime_extra: U32,
    /// Version, high half.
    pub version_hi: U32,
    /// Project id.
    pub projid: U32,
}

/// Bytes in the part that every inode has.
pub const BASE_BYTES: usize = size_of::<RawInode>();
/// Offset of the low half of the checksum.
pub const CHECKSUM_LO_OFFSET: usize = offset_of!(RawInode, checksum_lo);
/// Offset of the high half of the checksum.
pub const CHECKSUM_HI_OFFSET: usize = BASE_BYTES + offset_of!(RawInodeExtra, checksum_hi);
/// Offset of the block map, or of the data that replaces it.
pub const BLOCK_OFFSET: usize = offset_of!(RawInode, block);

const _: () = {
    assert!(BASE_BYTES == 128);
    assert!(size_of::<RawInodeExtra>() == 32);
    assert!(offset_of!(RawInode, flags) == 0x20);
    assert!(BLOCK_OFFSET == 0x28);
    assert!(offset_of!(RawInode, generation) == 0x64);
    assert!(CHECKSUM_LO_OFFSET == 0x7C);
    assert!(CHECKSUM_HI_OFFSET == 0x82);
    assert!(BASE_BYTES + offset_of!(RawInodeExtra, crtime) == 0x90);
    assert!(BASE_BYTES + offset_of!(RawInodeExtra, projid) == 0x9C);
};
