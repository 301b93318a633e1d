//! Layout of node blocks: the fixed fields of an inode, its extra attributes, and the footer of
//! every node.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The address of a hole.
pub const NULL_ADDRESS: u32 = 0;
/// The address of a block that is reserved and has no data.
pub const NEW_ADDRESS: u32 = 0xFFFF_FFFF;
/// The address in the first slot of a compressed cluster.
pub const COMPRESS_ADDRESS: u32 = 0xFFFF_FFFE;
/// The number of node numbers in an inode: two direct, two indirect, one double indirect.
pub const INODE_NIDS: usize = 5;

/// The fixed fields of an inode. Words with extra attributes, addresses or inline contents follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawInode {
    /// Type and permissions.
    pub mode: U16,
    /// Advice flags.
    pub advise: u8,
    /// Inline flags.
    pub inline: u8,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Links.
    pub links: U32,
    /// Size in bytes.
    pub size: U64,
    /// Blocks, including nodes.
    pub blocks: U64,
    /// Access time, in seconds.
    pub atime: U64,
    /// Time of the inode's change, in seconds.
    pub ctime: U64,
    /// Modification time, in seconds.
    pub mtime: U64,
    /// Nanoseconds of the access time.
    pub atime_nsec: U32,
    /// Nanoseconds of the time of the inode's change.
    pub ctime_nsec: U32,
    /// Nanoseconds of the modification time.
    pub mtime_nsec: U32,
    /// Generation, for file handles.
    pub generation: U32,
    /// Levels of a directory's hash table. For regular files, failures of cleaning a pinned file.
    pub current_depth: U32,
    /// Node with extended attributes, or 0.
    pub xattr_nid: U32,
    /// Flags as FS_IOC_GETFLAGS numbers most of them.
    pub flags: U32,
    /// Inode of the parent directory, for recovery.
    pub parent: U32,
    /// Length of `name`.
    pub name_length: U32,
    /// The last name, for recovery.
    pub name: [u8; NAME_BYTES_MAX],
    /// Exponent of the number of hash buckets on the first level of a directory.
    pub dir_level: u8,
    /// One extent, a hint that can be stale.
    pub extent: [U32; 3],
}

const _: () = assert!(size_of::<RawInode>() == 360);
const _: () = assert!(std::mem::offset_of!(RawInode, name) == 92);

/// The extra attributes, in the first words after the fixed fields. `size` says how many bytes
/// exist.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug, Default)]
#[repr(C)]
pub struct RawExtraAttributes {
    /// Bytes of the extra attributes.
    pub size: U16,
    /// Words of inline extended attributes.
    pub inline_xattr_words: U16,
    /// Project.
    pub project: U32,
    /// CRC of the inode.
    pub checksum: U32,
    /// Time of creation, in seconds.
    pub created: U64,
    /// Nanoseconds of the time of creation.
    pub created_nsec: U32,
    /// Blocks that compression saved.
    pub compressed_blocks: U64,
    /// Algorithm of compression.
    pub algorithm: u8,
    /// Exponent of the number of blocks in a cluster.
    pub log_cluster_size: u8,
    /// Flags of compression: bit 0 checksums; bits 8 to 15 level.
    pub compress_flags: U16,
}

const _: () = assert!(size_of::<RawExtraAttributes>() == 36);

/// The end of every node block.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawNodeFooter {
    /// The node's number.
    pub nid: U32,
    /// The inode of the node.
    pub inode: U32,
    /// Bit 0 cold, bit 1 fsync, bit 2 dentry; from bit 3 on the node's position in the file.
    pub flags: U32,
    /// Version of the checkpoint after which the node was written.
    pub checkpoint_version: U64,
    /// Block where the next node of the log will be.
    pub next_block: U32,
}

const _: () = assert!(size_of::<RawNodeFooter>() == 24);

/// Bits of `advise`.
pub(crate) mod advise {
    /// The data is unlikely to be overwritten soon.
    pub(crate) const COLD: u8 = 1;
    /// A recovery cannot add the name of the inode.
    pub(crate) const LOST_NAME: u8 = 2;
    pub(crate) const ENCRYPTED: u8 = 4;
    /// The name in the inode is encrypted.
    pub(crate) const ENCRYPTED_NAME: u8 = 8;
    /// Blocks past the end of the file are there on purpose.
    pub(crate) const KEEP_SIZE: u8 = 0x10;
    /// The data is likely to be overwritten soon.
    pub(crate) const HOT: u8 = 0x20;
    pub(crate) const VERITY: u8 = 0x40;
    /// Blocks past the end of the file were allocated for a direct write that has not ended. They
    /// have what they held before.
    pub(crate) const TRUNCATE: u8 = 0x80;
}
