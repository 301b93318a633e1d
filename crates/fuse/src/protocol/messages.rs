//! The fixed parts of messages that do not change the volume, and of FALLOCATE and IOCTL. Not here:
//! INIT (`init`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// GETATTR (`fuse_getattr_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GetAttrIn {
    /// Whether `handle` is valid.
    pub flags: u32,
    /// Zero.
    pub padding: u32,
    /// An open file.
    pub handle: u64,
}

/// The code of a notification with an [`InvalidateInode`] (FUSE_NOTIFY_INVAL_INODE). A notification
/// has its code in place of an error, and the request id zero.
pub const NOTIFY_INVALIDATE_INODE: i32 = 2;

/// A notification that invalidates an inode in the kernel's cache (`fuse_notify_inval_inode_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InvalidateInode {
    /// The node.
    pub node: u64,
    /// The first byte of the data to invalidate. If negative, only the attributes are invalidated.
    pub offset: i64,
    /// The length in bytes. Zero means up to the end of the file.
    pub length: i64,
}

/// FORGET (`fuse_forget_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ForgetIn {
    /// The number of lookups to forget.
    pub lookups: u64,
}

/// BATCH_FORGET (`fuse_batch_forget_in`); `count` records [`ForgetOne`] follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct BatchForgetIn {
    /// The number of records.
    pub count: u32,
    /// Zero.
    pub padding: u32,
}

/// A record of BATCH_FORGET (`fuse_forget_one`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ForgetOne {
    /// The node.
    pub node: u64,
    /// The number of lookups to forget.
    pub lookups: u64,
}

/// INTERRUPT (`fuse_interrupt_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InterruptIn {
    /// The id of the interrupted request, whose caller has received a signal.
    pub unique: u64,
}

/// OPEN and OPENDIR (`fuse_open_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OpenIn {
    /// O_* flags of open(2).
    pub flags: u32,
    /// FUSE_OPEN_* flags (from 7.33 on).
    pub open_flags: u32,
}

/// The reply to OPEN and OPENDIR (`fuse_open_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OpenOut {
    /// The handle. Each request on the open file contains it.
    pub handle: u64,
    /// FOPEN_* flags.
    pub flags: u32,
    /// The backing file, for passthrough (from 7.40 on).
    pub backing: i32,
}
const _: () = assert!(size_of::<OpenOut>() == 16);

/// `ReadIn::lock_owner` is valid. The kernel sets this in every READ that does not fill its cache.
pub const READ_LOCK_OWNER: u32 = 1 << 1;

/// Reads and writes bypass the kernel's cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// The kernel's cached pages of the file stay valid.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// The kernel may cache the entries of the directory.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// The kernel sends no FLUSH when the file is closed.
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
/// Direct writes that do not extend the file may be in flight concurrently.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// READ, READDIR and READDIRPLUS (`fuse_read_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReadIn {
    /// The open file.
    pub handle: u64,
    /// The first byte, or the position in the directory.
    pub offset: u64,
    /// The maximum size of the reply's payload, in bytes.
    pub size: u32,
    /// [`READ_LOCK_OWNER`].
    pub read_flags: u32,
    /// The owner for mandatory locks.
    pub lock_owner: u64,
    /// O_* flags of the open file.
    pub flags: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<ReadIn>() == 40);

/// The beginning of an entry of READDIR (`fuse_dirent`). The name follows, padded to 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DirentHeader {
    /// The inode number that users see.
    pub inode: u64,
    /// The position of the next entry.
    pub next: u64,
    /// The length of the name, in bytes.
    pub name_length: u32,
    /// The type: DT_*, which is the type bits of the mode shifted right by 12.
    pub kind: u32,
}
const _: () = assert!(size_of::<DirentHeader>() == 24);

/// GETXATTR and LISTXATTR (`fuse_getxattr_in`); for GETXATTR the name follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GetXattrIn {
    /// The size of the caller's buffer, in bytes. Zero requests the size of the value.
    pub size: u32,
    /// Zero.
    pub padding: u32,
}

/// The reply to GETXATTR and LISTXATTR if `size` is zero (`fuse_getxattr_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GetXattrOut {
    /// The size in bytes.
    pub size: u32,
    /// Zero.
    pub padding: u32,
}

/// FALLOCATE (`fuse_fallocate_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FallocateIn {
    /// The open file.
    pub handle: u64,
    /// The first byte of the range.
    pub offset: u64,
    /// The length of the range, in bytes.
    pub length: u64,
    /// The flags of fallocate(2).
    pub mode: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<FallocateIn>() == 32);

/// LSEEK (`fuse_lseek_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct LseekIn {
    /// The open file.
    pub handle: u64,
    /// The first byte of the search.
    pub offset: u64,
    /// [`SEEK_DATA`] or [`SEEK_HOLE`].
    pub whence: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<LseekIn>() == 24);

/// Searches for data.
pub const SEEK_DATA: u32 = 3;
/// Searches for a hole.
pub const SEEK_HOLE: u32 = 4;

/// The reply to LSEEK (`fuse_lseek_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct LseekOut {
    /// The position that was found.
    pub offset: u64,
}

/// BMAP (`fuse_bmap_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct BmapIn {
    /// The block of the file.
    pub block: u64,
    /// The size of blocks, in bytes.
    pub block_size: u32,
    /// Zero.
    pub padding: u32,
}
const _: () = assert!(size_of::<BmapIn>() == 16);

/// The reply to BMAP (`fuse_bmap_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct BmapOut {
    /// The block of the device, or zero if the block of the file has none.
    pub block: u64,
}

/// IOCTL (`fuse_ioctl_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IoctlIn {
    /// The open file.
    pub handle: u64,
    /// FUSE_IOCTL_* flags.
    pub flags: u32,
    /// The command.
    pub command: u32,
    /// The argument.
    pub argument: u64,
    /// The size of the input data, in bytes.
    pub in_size: u32,
    /// The maximum size of the output data, in bytes.
    pub out_size: u32,
}
const _: () = assert!(size_of::<IoctlIn>() == 32);

/// The beginning of the reply to IOCTL (`fuse_ioctl_out`). The output data follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IoctlOut {
    /// The return value of ioctl(2).
    pub result: i32,
    /// FUSE_IOCTL_* flags.
    pub flags: u32,
    /// The number of input vectors, for unrestricted ioctls.
    pub in_vectors: u32,
    /// The number of output vectors, for unrestricted ioctls.
    pub out_vectors: u32,
}
const _: () = assert!(size_of::<IoctlOut>() == 16);
