//! The error type of the library. An error has a type, and its location in the image.
//! Not here: error numbers and `std::io::Error` (`errno.rs`), and advice for the command line.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::container::Container;
use crate::errno;
use crate::foreign::Foreign;
use crate::units::{DeviceOffset, FileBlock, FsBlock, GroupNumber, InodeNumber};

/// `std::result::Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the library. Clones are cheap: several waiters can share the failure of one read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The image contradicts itself or its format.
    #[error(transparent)]
    Corrupt(#[from] Box<Corrupt>),
    /// The image is consistent, but uses something that is not implemented.
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
    /// No data (SEEK_DATA) or no position (SEEK_HOLE) at or after the requested offset.
    #[error("no such offset: it is at or past the end of the file")]
    NoSuchOffset,
    /// The file ends before the last byte of an exact read.
    #[error("the file ends before the last byte to read")]
    UnexpectedEof,
    /// An argument is invalid, as the text describes.
    #[error("invalid argument: {0}")]
    InvalidArgument(&'static str),
    /// The mode in which the file is open does not allow the operation: "reading" or "writing".
    #[error("the file is not open for {0}")]
    NotOpenFor(&'static str),
    /// Contents that are requested as text are not valid UTF-8.
    #[error("the file does not contain valid UTF-8")]
    InvalidUtf8,
    /// The host refused to open the image.
    #[error("cannot open {}: {}", path.display(), std::io::Error::from_raw_os_error(*errno))]
    Open {
        /// The image.
        path: PathBuf,
        /// The host's error number. EBUSY if another program uses the image, ENOTBLK if it is
        /// neither a regular file nor a block device.
        errno: i32,
    },
    /// The partition table has no such entry.
    #[error("no partition {number}: the {table} partition table has {existing}")]
    NoPartition {
        /// The requested number. The first partition is 1.
        number: u32,
        /// The kind of table: "GPT" or "MBR".
        table: &'static str,
        /// The existing partitions, such as "1, 2, 5", or "none".
        existing: String,
    },
    /// Another program writes to the volume, on this host or another one, as multiple-mount
    /// protection shows.
    #[error("the volume is in use by {by}")]
    InUse {
        /// The host and the device, as recorded in the volume.
        by: String,
    },
    /// The volume or device is read-only.
    #[error("read-only")]
    ReadOnly,
    /// The name exists already.
    #[error("file exists")]
    Exists,
    /// The directory has entries other than "." and "..".
    #[error("directory not empty")]
    NotEmpty,
    /// The operation would have to wait, which the caller did not allow.
    #[error("operation would block")]
    WouldBlock,
    /// There are no free blocks that the caller may use.
    #[error("no space left on the volume")]
    NoSpace,
    /// There are free blocks, but no free inodes.
    #[error("no free inodes left on the volume, which has free space")]
    NoInodes,
    /// The inode has as many names as the format can count.
    #[error("too many links")]
    TooManyLinks,
    /// The size is larger than the format, or this kind of block map, allows.
    #[error("file too large")]
    FileTooLarge,
    /// The inode's flags or the caller's rights forbid the operation.
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// The inode cannot have a name in the directory, whose encryption policy is another one.
    #[error("the directory has another encryption policy")]
    OtherPolicy,
    /// The inode cannot have a name in the directory, whose inodes inherit another project id.
    #[error("the directory passes on another project id")]
    OtherProject,
    /// The volume was shut down by an error after which writing could make it inconsistent. It can
    /// only be read.
    #[error("the volume accepts no more writes after an error: {0}")]
    ShutDown(Arc<Error>),
    /// A change is lost: an error prevents it from becoming durable.
    #[error("changes were lost after an error: {0}")]
    Lost(Arc<Error>),
    /// A wait ended early: the caller's [`WaitCallback`](crate::WaitCallback) ended it, or the
    /// request was cancelled ([`cancellation`](crate::cancellation)).
    #[error("interrupted")]
    Interrupted,
    /// The cache's limit is too small for the folios in use.
    #[error("out of cache memory")]
    OutOfMemory,
    /// The host provides no address space for a cache of this size.
    #[error("no address space for a cache of {bytes_max} bytes")]
    NoAddressSpace {
        /// The size, in bytes.
        bytes_max: u64,
    },
    /// A thread panicked in the named operation, which the panic hook has reported. Data that the
    /// thread was writing is lost, or the state in memory may be inconsistent.
    #[error("a panic in {0}")]
    Panicked(&'static str),
    /// An error of the host outside of the library, such as one of [`std::fs`], that `?` has
    /// converted.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The host refused to start a thread.
    #[error("cannot start a thread: {}", std::io::Error::from_raw_os_error(*errno))]
    ThreadSpawn {
        /// The host's error number, or EAGAIN if there is none.
        errno: i32,
    },
}

impl Error {
    /// Returns an [`Error::Corrupt`] for `structure` at `location`.
    #[cold]
    pub fn corrupt(structure: &'static str, location: Location, problem: Problem) -> Self {
        Self::Corrupt(Box::new(Corrupt { structure, location, entry: None, problem }))
    }

    /// Adds the name of the directory entry with the inconsistency to an [`Error::Corrupt`].
    #[must_use]
    pub fn of_entry(mut self, name: &[u8]) -> Self {
        if let Self::Corrupt(corrupt) = &mut self {
            corrupt.entry = Some(name.into());
        }
        self
    }

    /// Returns the [`Error::ThreadSpawn`] for the failure of [`std::thread::Builder::spawn`].
    #[cold]
    pub fn thread_spawn(error: &std::io::Error) -> Self {
        Self::ThreadSpawn { errno: error.raw_os_error().unwrap_or(errno::AGAIN) }
    }
}

/// An error of the host outside of the library: a [`std::io::Error`] that can be cloned and
/// compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct HostError {
    /// The kind.
    pub kind: std::io::ErrorKind,
    /// The host's error number, if there is one.
    pub errno: Option<i32>,
    /// The text.
    pub text: Arc<str>,
}

/// A failed device operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoError {
    /// The operation that failed.
    pub operation: IoOperation,
    /// Start of the operation's range.
    pub offset: DeviceOffset,
    /// Length of the operation's range, in bytes.
    pub length: u64,
    /// The host's error number, EIO if there is none, or [`PAST_END`](Self::PAST_END).
    pub errno: i32,
}

impl IoError {
    /// In place of the host's error number: the image ends before the operation's range does, and
    /// its volume later.
    pub const PAST_END: i32 = -1;
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
        let operation = match self.operation {
            IoOperation::Read => "read",
            IoOperation::Write => "write",
            IoOperation::Flush => "flush",
            IoOperation::Discard => "discard",
            IoOperation::WriteZeroes => "write zeroes",
        };
        if self.errno == Self::PAST_END {
            let end = self.offset.0.saturating_add(self.length);
            return write!(
                f,
                "bytes {} to {end} of the volume are past the end of the image",
                self.offset
            );
        }
        write!(
            f,
            "device {operation} of {} bytes at offset {} failed: {}",
            self.length,
            self.offset,
            std::io::Error::from_raw_os_error(self.errno)
        )
    }
}

impl std::error::Error for IoError {}

/// An inconsistency of the image: a structure, its location, and the problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corrupt {
    /// The structure's name in the field's standard terms, such as "extent header".
    pub structure: &'static str,
    /// The structure's location.
    pub location: Location,
    /// The name of the entry, if the structure is an entry of a directory. The location's inode is
    /// the directory.
    pub entry: Option<Box<[u8]>>,
    /// The problem.
    pub problem: Problem,
}

impl Corrupt {
    /// Returns the message in two parts. The first one ends with the number of the inode, so that a
    /// path can follow. Without an inode, the second part is empty.
    pub fn split_at_inode(&self) -> (String, String) {
        let mut message = self.to_string();
        let inode = Location {
            group: self.location.group,
            inode: self.location.inode,
            ..Location::default()
        };
        let head = format!("corrupt {}{inode}", self.structure);
        let rest = if self.location.inode.is_some() {
            message.split_off(head.len())
        } else {
            String::new()
        };
        (message, rest)
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "corrupt {}{}: {}", self.structure, self.location, self.problem)
    }
}

impl std::error::Error for Corrupt {}

/// A location in the image. Unknown parts are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Location {
    /// The block group.
    pub group: Option<GroupNumber>,
    /// The inode.
    pub inode: Option<InodeNumber>,
    /// The block of the file.
    pub file_block: Option<FileBlock>,
    /// The block of the volume.
    pub block: Option<FsBlock>,
    /// The byte within the smallest part above that is known, or within the volume.
    pub byte: Option<u64>,
}

impl Location {
    /// Returns a location in an inode.
    pub fn inode(inode: InodeNumber) -> Self {
        Self { inode: Some(inode), ..Self::default() }
    }

    /// Returns a location in a block of the volume.
    pub fn block(block: FsBlock) -> Self {
        Self { block: Some(block), ..Self::default() }
    }

    /// Returns a location in a block group.
    pub fn group(group: GroupNumber) -> Self {
        Self { group: Some(group), ..Self::default() }
    }

    /// Returns the location of a byte of the volume.
    pub fn byte(byte: u64) -> Self {
        Self { byte: Some(byte), ..Self::default() }
    }

    /// Adds the inode to the location.
    pub fn in_inode(self, inode: InodeNumber) -> Self {
        Self { inode: Some(inode), ..self }
    }

    /// Adds the block of the file to the location.
    pub fn at_file_block(self, file_block: FileBlock) -> Self {
        Self { file_block: Some(file_block), ..self }
    }

    /// Adds the block of the volume to the location.
    pub fn at_block(self, block: FsBlock) -> Self {
        Self { block: Some(block), ..self }
    }

    /// Adds the byte to the location.
    pub fn at_byte(self, byte: u64) -> Self {
        Self { byte: Some(byte), ..self }
    }
}

impl fmt::Display for Location {
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

/// The problem with a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The magic number is not the format's.
    Magic {
        /// The number in the image.
        found: u64,
        /// The number of the format.
        expected: u64,
    },
    /// The stored checksum differs from that of the contents.
    Checksum {
        /// The checksum in the image.
        stored: u32,
        /// The checksum of the contents.
        computed: u32,
    },
    /// A field is outside the limits of the format or the volume.
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
    /// Two fields that must agree do not.
    Mismatch {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The value of the other field.
        expected: u64,
    },
    /// A field's value has no meaning in the format.
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// The structure is longer than the space that contains it.
    Truncated {
        /// The structure's length in bytes.
        needed: u64,
        /// The length of the space in bytes.
        available: u64,
    },
    /// Entries are not in order, or overlap.
    Disorder {
        /// The field that must be in order.
        field: &'static str,
        /// The earlier entry's value.
        previous: u64,
        /// The value that follows it.
        found: u64,
    },
    /// A list or tree has a cycle.
    Cycle,
    /// A part that the format requires is missing.
    Missing(&'static str),
    /// A part that the format allows only once is repeated.
    Repeated(&'static str),
    /// A map refers to blocks of the volume's own metadata.
    SystemZone {
        /// The first block.
        first: u64,
        /// The last block.
        last: u64,
    },
    /// Blocks from the location on belong to more than one owner.
    Shared {
        /// The number of blocks.
        blocks: u64,
    },
    /// A directory entry names an inode that is not in use.
    FreeInode {
        /// The inode.
        inode: u64,
    },
    /// Clusters or inodes from the location on are in use, but free in their bitmap.
    MarkedFree {
        /// The number of clusters or inodes.
        count: u64,
    },
    /// Clusters or inodes from the location on are marked as used in their bitmap, but not in use.
    MarkedUsed {
        /// The number of clusters or inodes.
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
            Self::Invalid { field, found } => write!(f, "{field} is invalid: {found:#x}"),
            Self::Truncated { needed, available } => {
                write!(f, "needs {needed} bytes, but has only {available}")
            }
            Self::Disorder { field, previous, found } => {
                write!(f, "{field} {found} does not follow {previous}")
            }
            Self::Cycle => write!(f, "leads back into itself"),
            Self::Missing(part) => write!(f, "{part} is missing"),
            Self::Repeated(part) => write!(f, "{part} occurs more than once"),
            Self::SystemZone { first, last } => {
                write!(f, "refers to the volume's own metadata in blocks {first} to {last}")
            }
            Self::Shared { blocks } => write!(f, "used more than once ({blocks} in a row)"),
            Self::FreeInode { inode } => {
                write!(f, "the entry names inode {inode}, which is free")
            }
            Self::MarkedFree { count } => {
                write!(f, "in use, but marked free ({count} in a row)")
            }
            Self::MarkedUsed { count } => {
                write!(f, "not in use, but marked used ({count} in a row)")
            }
        }
    }
}

/// What an image has at its beginning if that is nothing known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blank {
    /// It has fewer bytes than any volume.
    Small {
        /// The number of bytes.
        bytes: u64,
    },
    /// The first bytes are zero.
    Zeroes {
        /// Their number.
        bytes: u64,
        /// Whether that is all of the image.
        is_all: bool,
    },
    /// The bytes look random.
    Random,
}

impl Blank {
    /// Returns a description for a list.
    pub fn short(self) -> &'static str {
        match self {
            Self::Small { .. } => "too small for a file system",
            Self::Zeroes { .. } => "zeroes",
            Self::Random => "random bytes",
        }
    }
}

impl fmt::Display for Blank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small { bytes: 0 } => write!(f, "the image is empty (0 bytes)"),
            Self::Small { bytes } => write!(f, "the image has only {bytes} bytes"),
            Self::Zeroes { is_all: true, .. } => write!(f, "the image has only zeroes"),
            Self::Zeroes { bytes, .. } => {
                write!(f, "the first {bytes} bytes of the image are zeroes")
            }
            Self::Random => write!(
                f,
                "the image begins with random bytes, as an encrypted volume without a header does"
            ),
        }
    }
}

/// A valid structure or operation that is not implemented.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// Features that the format marks as incompatible.
    Features {
        /// The features' names, or hexadecimal bits for unknown features.
        names: Vec<String>,
    },
    /// A feature that one inode uses.
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
    /// No known file system was found, and nothing else that the library knows.
    Blank(Blank),
    /// No known file system was found at the beginning, but a partition table.
    Partitioned {
        /// The kind of table: "GPT" or "MBR".
        table: &'static str,
        /// The existing partitions, such as "1, 2, 5".
        existing: String,
    },
    /// No known file system was found at the beginning, but a copy of a superblock of ext2, ext3 or
    /// ext4, which leads to no root directory.
    Remains {
        /// The block with the copy.
        copy: FsBlock,
        /// The size of blocks.
        block_size: u32,
    },
    /// Contents that the library knows, but does not read.
    Foreign(Foreign),
    /// Writing a device that is a part of something else, such as a RAID.
    Member(Foreign),
    /// The image is in a container that has to be converted to a raw image first.
    Container(Container),
    /// No partition table was found.
    PartitionTable,
    /// Writing a volume whose first superblock is damaged.
    DamagedSuperblock {
        /// The block with an intact copy of the superblock.
        copy: FsBlock,
        /// The size of blocks.
        block_size: u32,
    },
    /// Writing a volume of a later revision of its format.
    Revision {
        /// The volume's revision.
        found: u32,
        /// The last revision that is known.
        known: u32,
    },
    /// An operation.
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
                write!(f, "inode {inode} is encrypted, and there is no key for it")
            }
            Self::DamagedSuperblock { copy, block_size } => write!(
                f,
                "the superblock is damaged, and with its copy in block {copy} the volume can only be \
                 read; `e2fsck -b {copy} -B {block_size}` repairs it"
            ),
            Self::Container(container) => container.fmt(f),
            Self::Format => write!(f, "no known file system found"),
            Self::Blank(blank) => write!(f, "no known file system found: {blank}"),
            Self::Partitioned { table, existing } => write!(
                f,
                "no known file system found at the beginning, but a partition table ({table}) with {existing}"
            ),
            Self::Remains { copy, block_size } => write!(
                f,
                "the image does not begin with a file system, but block {copy} has a copy of the superblock of an ext4 \
                 volume with blocks of {block_size} bytes"
            ),
            Self::Foreign(foreign) => foreign.fmt(f),
            Self::Member(Foreign { name, next_step }) => {
                write!(f, "it is {name}, and its other members would not change; {next_step}")
            }
            Self::PartitionTable => write!(f, "no partition table (GPT or MBR) found"),
            Self::Revision { found, known } => write!(
                f,
                "the superblock has revision {found}, and volumes of later revisions than {known} are not written"
            ),
            Self::Operation(name) => write!(f, "not supported: {name}"),
        }
    }
}

impl std::error::Error for Unsupported {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corrupt_error_names_structure_location_and_values() {
        let error = Error::corrupt(
            "extent header",
            Location::inode(InodeNumber(12)).at_block(FsBlock(99)).at_byte(0),
            Problem::Magic { found: 0, expected: 0xf30a },
        );
        assert_eq!(
            error.to_string(),
            "corrupt extent header at inode 12, block 99, byte 0: magic number is 0x0, not 0xf30a"
        );
    }

    #[test]
    fn a_message_is_split_after_its_inode() {
        let split = |location| {
            let error = Error::corrupt("inode 1", location, Problem::Cycle);
            let Error::Corrupt(corrupt) = error else { panic!("{error}") };
            corrupt.split_at_inode()
        };
        let (head, rest) =
            split(Location::group(GroupNumber(3)).in_inode(InodeNumber(1)).at_byte(7));
        assert_eq!(head, "corrupt inode 1 at group 3, inode 1");
        assert_eq!(rest, ", byte 7: leads back into itself");
        let (head, rest) = split(Location::byte(7));
        assert_eq!(head, "corrupt inode 1 at byte 7: leads back into itself");
        assert_eq!(rest, "");
    }
}
