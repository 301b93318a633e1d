//! Layouts of the fast-commit area, little-endian. Not here: the effects of the tags.
//!
//! The area is a sequence of tags, each a [`RawTagHeader`] and its value. No tag crosses the end of
//! a block. Source: Linux kernel documentation, filesystems/ext4/journal.rst, "Fast Commits".

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A run of blocks is mapped in a file.
pub const TAG_ADD_RANGE: u16 = 1;
/// A range of a file is not mapped.
pub const TAG_DEL_RANGE: u16 = 2;
/// A new inode has a name.
pub const TAG_CREATE: u16 = 3;
/// An inode has a name.
pub const TAG_LINK: u16 = 4;
/// An inode does not have a name.
pub const TAG_UNLINK: u16 = 5;
/// The contents of an inode.
pub const TAG_INODE: u16 = 6;
/// Padding up to the end of the block.
pub const TAG_PAD: u16 = 7;
/// The end of one fast commit, with its checksum.
pub const TAG_TAIL: u16 = 8;
/// The start of the fast commits that follow one transaction.
pub const TAG_HEAD: u16 = 9;

/// `ext4_fc_tl`.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawTagHeader {
    /// One of the `TAG_` constants.
    pub fc_tag: U16,
    /// Bytes in the value.
    pub fc_len: U16,
}
const _: () = assert!(size_of::<RawTagHeader>() == 4);

/// `ext4_fc_head`: the value of [`TAG_HEAD`].
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawHead {
    /// Features of the area; none is defined.
    pub fc_features: U32,
    /// The id of the transaction that was running.
    pub fc_tid: U32,
}
const _: () = assert!(size_of::<RawHead>() == 8);

/// `ext4_fc_add_range`: the value of [`TAG_ADD_RANGE`].
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawAddRange {
    /// The inode.
    pub fc_ino: U32,
    /// An extent as in an extent tree's leaf.
    pub fc_ex: [u8; 12],
}
const _: () = assert!(size_of::<RawAddRange>() == 16);

/// `ext4_fc_del_range`: the value of [`TAG_DEL_RANGE`].
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawDelRange {
    /// The inode.
    pub fc_ino: U32,
    /// The first block of the file.
    pub fc_lblk: U32,
    /// The number of blocks.
    pub fc_len: U32,
}
const _: () = assert!(size_of::<RawDelRange>() == 12);

/// `ext4_fc_dentry_info`: the value of [`TAG_CREATE`], [`TAG_LINK`] and [`TAG_UNLINK`]; the name
/// follows, to the end of the value.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawName {
    /// The directory.
    pub fc_parent_ino: U32,
    /// The inode.
    pub fc_ino: U32,
}
const _: () = assert!(size_of::<RawName>() == 8);

/// `ext4_fc_inode`: the value of [`TAG_INODE`]; the inode's bytes follow, up to
/// the end of its extra fields and of the value.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawInodeImage {
    /// The inode.
    pub fc_ino: U32,
}
const _: () = assert!(size_of::<RawInodeImage>() == 4);

/// `ext4_fc_tail`: the value of [`TAG_TAIL`]; zeroes follow to the end of the block.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
pub struct RawTail {
    /// The id of the transaction that was running.
    pub fc_tid: U32,
    /// The crc32c, from 0, of all tags since the previous tail, and of this tag up to and including
    /// `fc_tid`.
    pub fc_crc: U32,
}
const _: () = assert!(size_of::<RawTail>() == 8);
