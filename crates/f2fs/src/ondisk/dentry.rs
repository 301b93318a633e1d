//! Layout of directory entries: in a block of a directory, and in the inode of an inline directory.
//! Source: kernel documentation, `filesystems/f2fs.rst`, "Directory Structure".

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a name in one slot.
pub const SLOT_NAME_BYTES: usize = 8;

/// An entry. A long name occupies several slots, and only the entry of its first slot counts.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawDentry {
    /// Hash of the name.
    pub hash_code: U32,
    /// Inode number.
    pub ino: U32,
    /// Bytes of the name.
    pub name_len: U16,
    /// File type code.
    pub file_type: u8,
}
const _: () = assert!(size_of::<RawDentry>() == 11);

/// The positions of the parts of a dentry area. The area is a block, or the space in an inode, and
/// has in this order: a bitmap of used slots (the lowest bit of a byte first), unused bytes, the
/// entries, the names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DentryLayout {
    /// Number of slots.
    pub slots: usize,
    /// Bytes of the bitmap, which begins at byte 0.
    pub bitmap_bytes: usize,
    /// Offset of the entries, in bytes.
    pub entries_at: usize,
    /// Offset of the names, in bytes.
    pub names_at: usize,
}

impl DentryLayout {
    /// Returns the layout of an area of `bytes` bytes, at most 2^28. Each slot takes an entry, a
    /// part of a name and one bit.
    pub const fn of(bytes: usize) -> Self {
        const SLOT_BYTES: usize = size_of::<RawDentry>() + SLOT_NAME_BYTES;
        let slots = bytes * 8 / (SLOT_BYTES * 8 + 1);
        let names_at = bytes - slots * SLOT_NAME_BYTES;
        Self {
            slots,
            bitmap_bytes: slots.div_ceil(8),
            entries_at: names_at - slots * size_of::<RawDentry>(),
            names_at,
        }
    }
}

const _: () = {
    let block = DentryLayout::of(4096);
    assert!(block.slots == 214 && block.bitmap_bytes == 27 && block.entries_at == 27 + 3);
    let block = DentryLayout::of(16_384);
    assert!(block.slots == 856 && block.bitmap_bytes == 107 && block.entries_at == 107 + 13);
    let inline = DentryLayout::of(3488);
    assert!(inline.slots == 182 && inline.bitmap_bytes == 23 && inline.entries_at == 23 + 7);
};
