//! The one error type of the library: typed, and located in the image.
//! Not here: errno (the table is in `vfs`), texts for the command line.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::units::{DeviceOffset, FileBlock, FsBlock, GroupNumber, InodeNumber};

/// `std::result::Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Cloned freely: several waiters can share the failure of one read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The image contradicts itself or its format.
    #[error(transparent)]
    Corrupt(#[from] Box<Corrupt>),
    /// The image is sound but uses something that is not implemented.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// No such name, or no such inode in use.
    #[error("no such file or directory")]
    NotFound,
    /// A path leads through, or an operation needs, something that is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The operation does not apply to a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The operation does not apply to this type of inode.
    #[error("wrong type of file: {0}")]
    WrongType(&'static str),
    /// A name is longer than the format allows.
    #[error("file name too long")]
    NameTooLong,
    /// More symbolic links in one path than allowed.
    #[error("too many levels of symbolic links")]
    SymlinkLoop,
    /// The inode has no such extended attribute.
    #[error("no such extended attribute")]
    NoAttribute,
    /// No data (SEEK_DATA) or no position (SEEK_HOLE) at or after the offset asked for.
    #[error("no such offset: it lies at or past the end of the file")]
    NoSuchOffset,
    /// The caller asked for something that makes no sense; the text says what.
    #[error("invalid argument: {0}")]
    InvalidArgument(&'static str),
    /// The host did not let the image be opened.
    #[error("cannot open {}: {}", path.display(), std::io::Error::from_raw_os_error(*errno))]
    Open {
        /// The image.
        path: PathBuf,
        /// The host's error number. EBUSY when somebody else uses the image, ENOTBLK when it is
        /// neither a regular file nor a block device.
        errno: i32,
    },
    /// The partition table has no such entry.
    #[error("no partition {number}: the {table} partition table has {existing}")]
    NoPartition {
        /// The number asked for; the first is 1.
        number: u32,
        /// The kind of table: "GPT" or "MBR".
        table: &'static str,
        /// The partitions there are, such as "1, 2, 5", or "none".
        existing: String,
    },
    /// The volume says that somebody else writes it, on this host or another.
    #[error("the volume is in use by {by}")]
    InUse {
        /// Who, as the volume has it.
        by: String,
    },
    /// The volume or device is read-only.
    #[error("read-only")]
    ReadOnly,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// The directory has entries other than "." and "..".
    #[error("directory not empty")]
    NotEmpty,
    /// It would have to wait, and the caller does not want to.
    #[error("it would have to wait")]
    WouldBlock,
    /// No free blocks, or no free inodes, that the caller may use.
    #[error("no space left on the volume")]
    NoSpace,
    /// The inode has as many names as the format can count.
    #[error("too many links")]
    TooManyLinks,
    /// Larger than the format, or this kind of block map, allows.
    #[error("file too large")]
    FileTooLarge,
    /// The inode's flags or the caller's rights forbid it.
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// The volume met an error that it could not keep consistent through, and takes no more writes.
    #[error("the volume takes no more writes after an error: {0}")]
    ShutDown(Arc<Error>),
    /// Something was changed, but the change did not become durable, and never will.
    #[error("changes were lost after an error: {0}")]
    Lost(Arc<Error>),
    /// A wait was abandoned: its caller had no more patience ([`Patience`](crate::Patience)), or the request
    /// was cancelled ([`cancellation`](crate::cancellation)).
    #[error("interrupted")]
    Interrupted,
    /// The cache limit is too small for what is in use at once.
    #[error("out of cache memory")]
    OutOfMemory,
}

impl Error {
    /// A [`Error::Corrupt`] in `structure` at `place`.
    #[cold]
    pub fn corrupt(structure: &'static str, place: Place, problem: Problem) -> Self {
        Self::Corrupt(Box::new(Corrupt { structure, place, problem }))
    }
}

/// A failed device operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoError {
    /// What was tried.
    pub operation: IoOperation,
    /// Where it began.
    pub offset: DeviceOffset,
    /// How many bytes it covered.
    pub length: u64,
    /// The host's error number, where there was one (EIO otherwise).
    pub errno: i32,
}

/// The operations of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoOperation {
    /// Read into memory.
    Read,
    /// Write from memory.
    Write,
    /// Make earlier completed writes durable.
    Flush,
    /// Declare a range unused.
    Discard,
    /// Make a range read as zeroes.
    WriteZeroes,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.operation {
            IoOperation::Read => "read",
            IoOperation::Write => "write",
            IoOperation::Flush => "flush",
            IoOperation::Discard => "discard",
            IoOperation::WriteZeroes => "write zeroes",
        };
        write!(
            f,
            "device {what} of {} bytes at offset {} failed: {}",
            self.length,
            self.offset,
            std::io::Error::from_raw_os_error(self.errno)
        )
    }
}

impl std::error::Error for IoError {}

/// An inconsistency: which structure, where, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corrupt {
    /// The structure's name in the field's standard terms, such as "extent header".
    pub structure: &'static str,
    /// Where it lies.
    pub place: Place,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "corrupt {}{}: {}", self.structure, self.place, self.problem)
    }
}

impl std::error::Error for Corrupt {}

/// Where in the image something lies. Every part is optional: say what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The block group.
    pub group: Option<GroupNumber>,
    /// The inode.
    pub inode: Option<InodeNumber>,
    /// The block of the file.
    pub file_block: Option<FileBlock>,
    /// The block of the volume.
    pub block: Option<FsBlock>,
    /// The byte within the innermost structure named above (or the volume).
    pub byte: Option<u64>,
}

impl Place {
    /// In an inode.
    pub fn inode(inode: InodeNumber) -> Self {
        Self { inode: Some(inode), ..Self::default() }
    }

    /// In a block of the volume.
    pub fn block(block: FsBlock) -> Self {
        Self { block: Some(block), ..Self::default() }
    }

    /// In a block group.
    pub fn group(group: GroupNumber) -> Self {
        Self { group: Some(group), ..Self::default() }
    }

    /// At a byte of the volume.
    pub fn byte(byte: u64) -> Self {
        Self { byte: Some(byte), ..Self::default() }
    }

    /// The same place, and in this inode.
    pub fn in_inode(self, inode: InodeNumber) -> Self {
        Self { inode: Some(inode), ..self }
    }

    /// The same place, and in this block of the file.
    pub fn at_file_block(self, file_block: FileBlock) -> Self {
        Self { file_block: Some(file_block), ..self }
    }

    /// The same place, and in this block of the volume.
    pub fn at_block(self, block: FsBlock) -> Self {
        Self { block: Some(block), ..self }
    }

    /// The same place, and at this byte within it.
    pub fn at_byte(self, byte: u64) -> Self {
        Self { byte: Some(byte), ..self }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lead = " at ";
        let mut part = |f: &mut fmt::Formatter<'_>, name: &str, value: Option<u64>| {
            let Some(value) = value else { return Ok(()) };
            write!(f, "{lead}{name} {value}")?;
            lead = ", ";
            Ok(())
        };
        part(f, "group", self.group.map(|group| group.0.into()))?;
        part(f, "inode", self.inode.map(|inode| inode.0))?;
        part(f, "file block", self.file_block.map(|block| block.0))?;
        part(f, "block", self.block.map(|block| block.0))?;
        part(f, "byte", self.byte)
    }
}

/// What is wrong with a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The magic number is not the format's.
    Magic {
        /// What the image says.
        found: u64,
        /// What the format says.
        expected: u64,
    },
    /// The stored checksum is not the contents'.
    Checksum {
        /// What the image says.
        stored: u32,
        /// What the contents give.
        computed: u32,
    },
    /// A field lies outside what the format or the volume allows.
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The least allowed value.
        min: u64,
        /// The greatest allowed value.
        max: u64,
    },
    /// Two places that must agree do not.
    Mismatch {
        /// What disagrees.
        field: &'static str,
        /// The value found.
        found: u64,
        /// The value that the other place gives.
        expected: u64,
    },
    /// A field's value has no meaning in the format.
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// The structure is longer than what holds it.
    Truncated {
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        available: u64,
    },
    /// Entries that must ascend, or must not overlap, do not.
    Disorder {
        /// What must be in order.
        field: &'static str,
        /// The earlier entry's value.
        previous: u64,
        /// The value that follows it.
        found: u64,
    },
    /// A chain or tree leads back into itself.
    Cycle,
    /// Something the format requires is not there.
    Missing(&'static str),
    /// Something the format allows only once is there again.
    Repeated(&'static str),
    /// A map refers to blocks of the volume's own metadata.
    SystemZone {
        /// The first block.
        first: u64,
        /// The last block.
        last: u64,
    },
    /// Blocks from the place on belong to more than one owner.
    Shared {
        /// How many.
        blocks: u64,
    },
    /// Units from the place on are in use, but a bitmap has them as free.
    MarkedFree {
        /// How many.
        count: u64,
    },
    /// Units from the place on are in use according to a bitmap, but by nothing.
    MarkedUsed {
        /// How many.
        count: u64,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { found, expected } => {
                write!(f, "magic number is {found:#x}, not {expected:#x}")
            }
            Self::Checksum { stored, computed } => {
                write!(f, "checksum is {stored:#010x}, but the contents give {computed:#010x}")
            }
            Self::Range { field, found, min, max } => {
                write!(f, "{field} is {found}, outside {min} to {max}")
            }
            Self::Mismatch { field, found, expected } => {
                write!(f, "{field} is {found}, but must be {expected}")
            }
            Self::Invalid { field, found } => write!(f, "{field} has no meaning: {found:#x}"),
            Self::Truncated { needed, available } => {
                write!(f, "needs {needed} bytes, but only {available} are there")
            }
            Self::Disorder { field, previous, found } => {
                write!(f, "{field} {found} does not follow {previous}")
            }
            Self::Cycle => write!(f, "leads back into itself"),
            Self::Missing(what) => write!(f, "{what} is missing"),
            Self::Repeated(what) => write!(f, "{what} is there more than once"),
            Self::SystemZone { first, last } => {
                write!(f, "refers to the volume's own metadata in blocks {first} to {last}")
            }
            Self::Shared { blocks } => write!(f, "{blocks} from here on belong to others too"),
            Self::MarkedFree { count } => write!(f, "{count} in use from here on count as free"),
            Self::MarkedUsed { count } => {
                write!(f, "{count} from here on count as used by nothing")
            }
        }
    }
}

/// Something sound that is not implemented, by its standard name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// Features that the format marks as incompatible.
    Features {
        /// Their names, or hexadecimal bits for unknown ones.
        names: Vec<String>,
    },
    /// One use of a feature, on one inode.
    Inode {
        /// The inode.
        inode: InodeNumber,
        /// The feature's name.
        feature: &'static str,
    },
    /// The contents of an encrypted inode, for which there is no key.
    Encrypted(InodeNumber),
    /// No known file system was found.
    Format,
    /// No partition table was found.
    PartitionTable,
    /// Writing a volume whose first superblock is damaged.
    DamagedSuperblock {
        /// The block with a sound copy of it.
        copy: FsBlock,
        /// The size of blocks.
        block_size: u32,
    },
    /// An operation that is not there.
    Operation(&'static str),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Features { names } => write!(f, "unsupported features: {}", names.join(", ")),
            Self::Inode { inode, feature } => {
                write!(f, "inode {inode} uses the feature {feature}, which is not supported yet")
            }
            Self::Encrypted(inode) => {
                write!(f, "inode {inode} uses the feature encrypt, which is not supported yet")
            }
            Self::DamagedSuperblock { copy, block_size } => write!(
                f,
                "the superblock is damaged, and by its copy in block {copy} the volume is only \
                 read; `e2fsck -b {copy} -B {block_size}` mends it"
            ),
            Self::Format => write!(f, "no known file system found"),
            Self::PartitionTable => write!(f, "no partition table (GPT or MBR) found"),
            Self::Operation(what) => write!(f, "unsupported operation: {what}"),
        }
    }
}

impl std::error::Error for Unsupported {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corrupt_error_names_structure_place_and_values() {
        let error = Error::corrupt(
            "extent header",
            Place::inode(InodeNumber(12)).at_block(FsBlock(99)).at_byte(0),
            Problem::Magic { found: 0, expected: 0xf30a },
        );
        assert_eq!(
            error.to_string(),
            "corrupt extent header at inode 12, block 99, byte 0: magic number is 0x0, not 0xf30a"
        );
    }
}
