//! The names of extended attributes that ext4 has besides those of all formats.

use fs::xattr::{NameIndex, NameTable, Prefix};

/// The name under [`NameIndex::SYSTEM`] whose value is inline data, and not an attribute.
pub const INLINE_DATA_NAME: &[u8] = b"data";

/// The names of attributes. The kernel and e2fsprogs agree on them.
pub const NAMES: NameTable = NameTable {
    own: &[
        Prefix::of_names(NameIndex::SYSTEM, b"system."),
        Prefix::complete(NameIndex(8), b"system.richacl"),
        Prefix::of_names(NameIndex(10), b"gnu."),
    ],
    hidden: &[(NameIndex::SYSTEM, INLINE_DATA_NAME)],
};
