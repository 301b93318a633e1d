//! The fixed parts of messages that change the volume.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// SETATTR (`fuse_setattr_in`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SetAttrIn {
    /// The valid fields (FATTR_*).
    pub valid: u32,
    /// Zero.
    pub padding: u32,
    /// An open file.
    pub handle: u64,
    /// The size in bytes.
    pub size: u64,
    /// The owner for mandatory locks.
    pub lock_owner: u64,
    /// Last access, in seconds; the bits of a signed number.
    pub accessed: u64,
    /// Last change of the contents, in seconds.
    pub modified: u64,
    /// Last change of the inode, in seconds.
    pub changed: u64,
    /// Nanoseconds of the last access.
    pub accessed_nanoseconds: u32,
    /// Nanoseconds of the last change of the contents.
    pub modified_nanoseconds: u32,
    /// Nanoseconds of the last change of the inode.
    pub changed_nanoseconds: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Zero.
    pub unused4: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Zero.
    pub unused5: u32,
}
const _: () = assert!(size_of::<SetAttrIn>() == 88);

/// `mode` is valid.
pub const FATTR_MODE: u32 = 1 << 0;
/// `uid` is valid.
pub const FATTR_UID: u32 = 1 << 1;
/// `gid` is valid.
pub const FATTR_GID: u32 = 1 << 2;
/// `size` is valid.
pub const FATTR_SIZE: u32 = 1 << 3;
/// `accessed` is valid.
pub const FATTR_ATIME: u32 = 1 << 4;
/// `modified` is valid.
pub const FATTR_MTIME: u32 = 1 << 5;
/// `handle` is valid.
pub const FATTR_FH: u32 = 1 << 6;
/// Set the time of the last access to now.
pub const FATTR_ATIME_NOW: u32 = 1 << 7;
/// Set the time of the last change of the contents to now.
pub const FATTR_MTIME_NOW: u32 = 1 << 8;
/// `changed` is valid.
pub const FATTR_CTIME: u32 = 1 << 10;
/// Clear setuid and setgid.
pub const FATTR_KILL_SUIDGID: u32 = 1 << 11;

/// MKNOD (`fuse_mknod_in`); the name follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct MkNodIn {
    /// Type and permissions.
    pub mode: u32,
    /// The device number of a device file, for [`decode_device`].
    pub device: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Zero.
    pub padding: u32,
}

/// Returns the major and minor number of a device number in the protocol's form.
pub const fn decode_device(device: u32) -> (u32, u32) {
    (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00)
}

/// MKDIR (`fuse_mkdir_in`); the name follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct MkDirIn {
    /// Permissions.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
}

/// CREATE and TMPFILE (`fuse_create_in`); a name follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CreateIn {
    /// O_* flags of open(2).
    pub flags: u32,
    /// Type and permissions.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// FUSE_OPEN_* flags.
    pub open_flags: u32,
}

/// For OPEN and CREATE: clear setuid and setgid if the file is truncated.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;

/// RENAME (`fuse_rename_in`); the old and the new name follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RenameIn {
    /// The new directory's node.
    pub directory: u64,
}

/// RENAME2 (`fuse_rename2_in`); the old and the new name follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Rename2In {
    /// The new directory's node.
    pub directory: u64,
    /// RENAME_* flags of renameat2(2).
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}

/// LINK (`fuse_link_in`); the new name follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct LinkIn {
    /// The file's node.
    pub node: u64,
}

/// SETXATTR (`fuse_setxattr_in`); the name and the value follow, after [`SetXattrInExtension`] if
/// SETXATTR_EXT is in force.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SetXattrIn {
    /// The length of the value in bytes.
    pub size: u32,
    /// XATTR_* flags of setxattr(2).
    pub flags: u32,
}

/// The continuation of `fuse_setxattr_in` if SETXATTR_EXT is in force.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SetXattrInExtension {
    /// FUSE_SETXATTR_* flags.
    pub extra_flags: u32,
    /// Zero.
    pub padding: u32,
}

/// Clear setgid when an ACL is set.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// FSYNC and FSYNCDIR (`fuse_fsync_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FsyncIn {
    /// The open file.
    pub handle: u64,
    /// [`FSYNC_FDATASYNC`].
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}

/// Sync the data, and only the metadata that is needed to read it.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;

/// RELEASE and RELEASEDIR (`fuse_release_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReleaseIn {
    /// The open file.
    pub handle: u64,
    /// O_* flags of the open file.
    pub flags: u32,
    /// FUSE_RELEASE_* flags.
    pub release_flags: u32,
    /// The owner for locks.
    pub lock_owner: u64,
}

/// WRITE (`fuse_write_in`); the data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct WriteIn {
    /// The open file.
    pub handle: u64,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub size: u32,
    /// FUSE_WRITE_* flags.
    pub write_flags: u32,
    /// The owner for mandatory locks.
    pub lock_owner: u64,
    /// O_* flags of the open file.
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<WriteIn>() == 40);

/// The data comes from the kernel's cache. No program waits for the write, and the handle may be
/// any open file of the node.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `WriteIn::lock_owner` is valid. The kernel sets this in every WRITE that bypasses its cache.
pub const WRITE_LOCK_OWNER: u32 = 1 << 1;
/// Clear setuid and setgid.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// The reply to WRITE (`fuse_write_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct WriteOut {
    /// The number of bytes written.
    pub size: u32,
    /// Zero.
    pub padding: u32,
}

/// COPY_FILE_RANGE and COPY_FILE_RANGE_64 (`fuse_copy_file_range_in`). The header has the node of
/// the source.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CopyFileRangeIn {
    /// The open file to read from.
    pub handle: u64,
    /// The first byte to read.
    pub offset: u64,
    /// The node to write to.
    pub to_node: u64,
    /// The open file to write to.
    pub to_handle: u64,
    /// The first byte to write.
    pub to_offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// Zero.
    pub flags: u64,
}
const _: () = assert!(size_of::<CopyFileRangeIn>() == 56);

/// The reply to COPY_FILE_RANGE_64 (`fuse_copy_file_range_out`). The reply to COPY_FILE_RANGE is
/// [`WriteOut`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CopyFileRangeOut {
    /// The number of bytes copied.
    pub length: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::encode_device;

    #[test]
    fn decoding_reverses_the_encoding_of_device_numbers() {
        for (major, minor) in [(0, 0), (8, 1), (259, 0x12345), (0xfff, 0xf_ffff)] {
            assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
        }
    }
}
