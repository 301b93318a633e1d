//! The fields of each structure of ext4: their names, offsets and lengths in bytes, by the kernel's
//! documentation (`filesystems/ext4`).

/// A kind of structure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[expect(missing_docs, reason = "they have the names of the format")]
pub enum Structure {
    Superblock,
    Descriptor,
    /// The bitmap of a group's blocks or inodes.
    Bitmap,
    Inode,
    /// A node of an extent tree, in an inode or in a block.
    Extents,
    /// A block of pointers of a block map.
    Pointers,
    /// A directory entry.
    Entry,
    /// The first block of a hashed directory.
    Index,
    /// Another block of a hashed directory's index.
    IndexNode,
    /// A block of extended attributes.
    Attributes,
    JournalSuperblock,
    /// A block of the log.
    Log,
    OrphanFile,
    Mmp,
    QuotaFile,
}

/// A field: its name, offset and length.
pub type Field = (&'static str, usize, usize);

impl Structure {
    /// Returns the fields.
    pub fn fields(self) -> &'static [Field] {
        match self {
            Self::Superblock => SUPERBLOCK,
            Self::Descriptor => DESCRIPTOR,
            Self::Bitmap => BITMAP,
            Self::Inode => INODE,
            Self::Extents => EXTENTS,
            Self::Pointers => POINTERS,
            Self::Entry => ENTRY,
            Self::Index => INDEX,
            Self::IndexNode => INDEX_NODE,
            Self::Attributes => ATTRIBUTES,
            Self::JournalSuperblock => JOURNAL_SUPERBLOCK,
            Self::Log => LOG,
            Self::OrphanFile => ORPHAN_FILE,
            Self::Mmp => MMP,
            Self::QuotaFile => QUOTA_FILE,
        }
    }
}

const SUPERBLOCK: &[Field] = &[
    ("inodes", 0x00, 4),
    ("blocks", 0x04, 4),
    ("reserved blocks", 0x08, 4),
    ("free blocks", 0x0C, 4),
    ("free inodes", 0x10, 4),
    ("first data block", 0x14, 4),
    ("block size", 0x18, 4),
    ("cluster size", 0x1C, 4),
    ("blocks per group", 0x20, 4),
    ("clusters per group", 0x24, 4),
    ("inodes per group", 0x28, 4),
    ("mount time", 0x2C, 4),
    ("mount count", 0x34, 2),
    ("magic", 0x38, 2),
    ("state", 0x3A, 2),
    ("errors", 0x3C, 2),
    ("minor revision", 0x3E, 2),
    ("creator", 0x48, 4),
    ("revision", 0x4C, 4),
    ("reserved user", 0x50, 2),
    ("first inode", 0x54, 4),
    ("inode size", 0x58, 2),
    ("group of copy", 0x5A, 2),
    ("compatible features", 0x5C, 4),
    ("incompatible features", 0x60, 4),
    ("read-only features", 0x64, 4),
    ("uuid", 0x68, 4),
    ("label", 0x78, 4),
    ("reserved descriptor blocks", 0xCE, 2),
    ("journal inode", 0xE0, 4),
    ("journal device", 0xE4, 4),
    ("last orphan", 0xE8, 4),
    ("hash seed", 0xEC, 4),
    ("hash version", 0xFC, 1),
    ("journal backup type", 0xFD, 1),
    ("descriptor size", 0xFE, 2),
    ("default mount options", 0x100, 4),
    ("first meta group", 0x104, 4),
    ("journal map", 0x10C, 4),
    ("high half of blocks", 0x150, 4),
    ("least extra size", 0x15C, 2),
    ("wanted extra size", 0x15E, 2),
    ("flags", 0x160, 4),
    ("mmp interval", 0x166, 2),
    ("mmp block", 0x168, 4),
    ("flex groups", 0x174, 1),
    ("checksum type", 0x175, 1),
    ("user quota inode", 0x240, 4),
    ("group quota inode", 0x244, 4),
    ("overhead", 0x248, 4),
    ("orphan file inode", 0x280, 4),
];

const DESCRIPTOR: &[Field] = &[
    ("block bitmap", 0x00, 4),
    ("inode bitmap", 0x04, 4),
    ("inode table", 0x08, 4),
    ("free blocks", 0x0C, 2),
    ("free inodes", 0x0E, 2),
    ("directories", 0x10, 2),
    ("flags", 0x12, 2),
    ("block bitmap checksum", 0x18, 2),
    ("inode bitmap checksum", 0x1A, 2),
    ("unused inodes", 0x1C, 2),
    ("checksum", 0x1E, 2),
];

const BITMAP: &[Field] =
    &[("first byte", 0, 1), ("second byte", 1, 1), ("byte in the middle", 12, 1)];

const INODE: &[Field] = &[
    ("mode", 0x00, 2),
    ("uid", 0x02, 2),
    ("size", 0x04, 4),
    ("change time", 0x0C, 4),
    ("deletion time", 0x14, 4),
    ("links", 0x1A, 2),
    ("blocks", 0x1C, 4),
    ("flags", 0x20, 4),
    ("version", 0x24, 4),
    ("map", 0x28, 4),
    ("map", 0x2C, 4),
    ("map", 0x30, 4),
    ("map", 0x34, 4),
    ("map", 0x38, 4),
    ("map", 0x3C, 4),
    ("map", 0x58, 4),
    ("map", 0x5C, 4),
    ("generation", 0x64, 4),
    ("attribute block", 0x68, 4),
    ("high half of the size", 0x6C, 4),
    ("fragment address", 0x70, 4),
    ("high half of blocks", 0x74, 2),
    ("high half of the attribute block", 0x76, 2),
];

const EXTENTS: &[Field] = &[
    ("magic", 0, 2),
    ("entries", 2, 2),
    ("maximum of entries", 4, 2),
    ("depth", 6, 2),
    ("generation", 8, 4),
    ("file block", 12, 4),
    ("length", 16, 2),
    ("high half of the block", 18, 2),
    ("block", 20, 4),
    ("second file block", 24, 4),
    ("second length", 28, 2),
    ("second block", 32, 4),
];

const POINTERS: &[Field] = &[("first block", 0, 4), ("second block", 4, 4), ("tenth block", 36, 4)];

const ENTRY: &[Field] = &[
    ("inode", 0, 4),
    ("length", 4, 2),
    ("name length", 6, 1),
    ("file type", 7, 1),
    ("name", 8, 1),
];

const INDEX: &[Field] = &[
    ("dot inode", 0, 4),
    ("dot length", 4, 2),
    ("dot-dot inode", 12, 4),
    ("dot-dot length", 16, 2),
    ("reserved", 24, 4),
    ("hash version", 28, 1),
    ("information length", 29, 1),
    ("levels", 30, 1),
    ("flags", 31, 1),
    ("limit", 32, 2),
    ("count", 34, 2),
    ("block", 36, 4),
    ("second hash", 40, 4),
    ("second block", 44, 4),
];

const INDEX_NODE: &[Field] = &[
    ("inode", 0, 4),
    ("length", 4, 2),
    ("limit", 8, 2),
    ("count", 10, 2),
    ("block", 12, 4),
    ("second hash", 16, 4),
    ("second block", 20, 4),
];

const ATTRIBUTES: &[Field] = &[
    ("magic", 0, 4),
    ("references", 4, 4),
    ("blocks", 8, 4),
    ("hash", 12, 4),
    ("name length", 32, 1),
    ("name index", 33, 1),
    ("value offset", 34, 2),
    ("value inode", 36, 4),
    ("value size", 40, 4),
    ("entry hash", 44, 4),
    ("name", 48, 1),
    ("value", 1020, 4),
];

const JOURNAL_SUPERBLOCK: &[Field] = &[
    ("magic", 0, 4),
    ("block type", 4, 4),
    ("header sequence", 8, 4),
    ("block size", 12, 4),
    ("blocks", 16, 4),
    ("first", 20, 4),
    ("sequence", 24, 4),
    ("start", 28, 4),
    ("error", 32, 4),
    ("compatible features", 36, 4),
    ("incompatible features", 40, 4),
    ("read-only features", 44, 4),
    ("uuid", 48, 4),
    ("users", 64, 4),
    ("checksum type", 80, 1),
    ("fast commit blocks", 84, 4),
];

/// Those of descriptors and of commits. The fields of fast commits are among the first words, too.
const LOG: &[Field] = &[
    ("magic", 0, 4),
    ("block type", 4, 4),
    ("sequence", 8, 4),
    ("first block", 12, 4),
    ("first flags", 16, 4),
    ("third word", 20, 4),
    ("fourth word", 24, 4),
];

const ORPHAN_FILE: &[Field] =
    &[("first orphan", 0, 4), ("second orphan", 4, 4), ("magic", 1016, 4), ("checksum", 1020, 4)];

const MMP: &[Field] = &[
    ("magic", 0, 4),
    ("sequence", 4, 4),
    ("time", 8, 4),
    ("node name", 16, 4),
    ("interval", 112, 2),
    ("checksum", 1020, 4),
];

const QUOTA_FILE: &[Field] = &[
    ("magic", 0, 4),
    ("version", 4, 4),
    ("grace of blocks", 8, 4),
    ("flags", 16, 4),
    ("blocks", 20, 4),
    ("free block", 24, 4),
    ("free entry", 28, 4),
    ("root of the tree", 1024, 4),
    ("block of the tree", 2048, 4),
];
