//! The protocol's records of inodes' attributes, directory entries and free space.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The attributes that `stat` reports (`fuse_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Attr {
    /// The inode number that users see.
    pub inode: u64,
    /// The size in bytes.
    pub size: u64,
    /// The allocated space, in units of 512 bytes.
    pub blocks: u64,
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
    /// The number of names.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device file, as returned by [`encode_device`].
    pub device: u32,
    /// The preferred size of transfers, in bytes.
    pub block_size: u32,
    /// Flags for submounts and DAX.
    pub flags: u32,
}
const _: () = assert!(size_of::<Attr>() == 88);

/// Returns a device number in the protocol's form: the kernel's "new" encoding.
pub const fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// The reply to GETATTR (`fuse_attr_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct AttrOut {
    /// The time for which the attributes are valid, in seconds.
    pub valid: u64,
    /// The nanoseconds of that time.
    pub valid_nanoseconds: u32,
    /// Zero.
    pub padding: u32,
    /// The attributes.
    pub attr: Attr,
}
const _: () = assert!(size_of::<AttrOut>() == 104);

/// The reply to LOOKUP, and part of each entry of READDIRPLUS (`fuse_entry_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct EntryOut {
    /// The node; zero for "no such name" (LOOKUP) or "not looked up" (READDIRPLUS).
    pub node: u64,
    /// The inode's generation.
    pub generation: u64,
    /// The time for which the name is valid, in seconds.
    pub entry_valid: u64,
    /// The time for which the attributes are valid, in seconds.
    pub attr_valid: u64,
    /// The nanoseconds of `entry_valid`.
    pub entry_valid_nanoseconds: u32,
    /// The nanoseconds of `attr_valid`.
    pub attr_valid_nanoseconds: u32,
    /// The attributes.
    pub attr: Attr,
}
const _: () = assert!(size_of::<EntryOut>() == 128);

/// A point in time in [`Statx`] (`fuse_sx_time`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatxTime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after that second.
    pub nanoseconds: u32,
    /// Zero.
    pub reserved: i32,
}

/// The attributes that `statx` reports (`fuse_statx`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Statx {
    /// The valid fields (STATX_*).
    pub mask: u32,
    /// The preferred size of transfers, in bytes.
    pub block_size: u32,
    /// STATX_ATTR_*.
    pub attributes: u64,
    /// The number of names.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Type and permissions.
    pub mode: u16,
    /// Zero.
    pub spare0: u16,
    /// The inode number.
    pub inode: u64,
    /// The size in bytes.
    pub size: u64,
    /// The allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// The bits of `attributes` that the file system supports.
    pub attributes_mask: u64,
    /// Last access.
    pub accessed: StatxTime,
    /// Creation.
    pub created: StatxTime,
    /// Last change of the inode.
    pub changed: StatxTime,
    /// Last change of the contents.
    pub modified: StatxTime,
    /// The major number of a device file.
    pub device_major: u32,
    /// The minor number of a device file.
    pub device_minor: u32,
    /// Ignored, since the kernel knows the mount's device.
    pub mount_major: u32,
    /// Ignored.
    pub mount_minor: u32,
    /// Zero.
    pub spare2: [u64; 14],
}
const _: () = assert!(size_of::<Statx>() == 256);

/// STATX_BASIC_STATS: all fields that `stat` has.
pub const STATX_BASIC_STATS: u32 = 0x7ff;
/// STATX_BTIME: the time of creation.
pub const STATX_BTIME: u32 = 0x800;

/// STATX (`fuse_statx_in`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatxIn {
    /// Whether `handle` is valid.
    pub getattr_flags: u32,
    /// Zero.
    pub reserved: u32,
    /// An open file.
    pub handle: u64,
    /// AT_STATX_* flags.
    pub flags: u32,
    /// The requested fields (STATX_*).
    pub mask: u32,
}
const _: () = assert!(size_of::<StatxIn>() == 24);

/// The reply to STATX (`fuse_statx_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatxOut {
    /// The time for which the attributes are valid, in seconds.
    pub valid: u64,
    /// The nanoseconds of that time.
    pub valid_nanoseconds: u32,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub spare: [u64; 2],
    /// The attributes.
    pub statx: Statx,
}
const _: () = assert!(size_of::<StatxOut>() == 288);

/// The reply to STATFS (`fuse_statfs_out`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatFsOut {
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that are not reserved for root.
    pub blocks_available: u64,
    /// All inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// The size of a block, in bytes.
    pub block_size: u32,
    /// The maximum length of a name, in bytes.
    pub name_bytes_max: u32,
    /// The size of a fragment, in bytes: the unit of the counts above.
    pub fragment_size: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub spare: [u32; 6],
}
const _: () = assert!(size_of::<StatFsOut>() == 80);
