//! Types that formats and their users share: attributes of inodes, directory entries, space counts,
//! properties of volumes.

use std::fmt;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use crate::error::{Result, Unsupported};
use crate::units::InodeNumber;

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileType {
    /// Returns the type bits of a `st_mode` (mask 0o170000).
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010000,
            Self::CharacterDevice => 0o020000,
            Self::Directory => 0o040000,
            Self::BlockDevice => 0o060000,
            Self::Regular => 0o100000,
            Self::Symlink => 0o120000,
            Self::Socket => 0o140000,
        }
    }

    /// Returns the type in a `st_mode`, if it is valid.
    pub fn from_mode(mode: u32) -> Option<Self> {
        [
            Self::Fifo,
            Self::CharacterDevice,
            Self::Directory,
            Self::BlockDevice,
            Self::Regular,
            Self::Symlink,
            Self::Socket,
        ]
        .into_iter()
        .find(|kind| kind.mode_bits() == mode & 0o170000)
    }

    /// Returns whether this is the type of directories.
    pub fn is_dir(self) -> bool {
        self == Self::Directory
    }

    /// Returns whether this is the type of regular files.
    pub fn is_file(self) -> bool {
        self == Self::Regular
    }

    /// Returns whether this is the type of symbolic links.
    pub fn is_symlink(self) -> bool {
        self == Self::Symlink
    }

    /// Returns whether this is the type of block devices.
    pub fn is_block_device(self) -> bool {
        self == Self::BlockDevice
    }

    /// Returns whether this is the type of character devices.
    pub fn is_char_device(self) -> bool {
        self == Self::CharacterDevice
    }

    /// Returns whether this is the type of named pipes.
    pub fn is_fifo(self) -> bool {
        self == Self::Fifo
    }

    /// Returns whether this is the type of sockets.
    pub fn is_socket(self) -> bool {
        self == Self::Socket
    }
}

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00:00 UTC; negative before it.
    pub seconds: i64,
    /// Nanoseconds after that second, below 10^9.
    pub nanoseconds: u32,
}

/// Times that the host cannot represent become the epoch.
impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let seconds = Duration::from_secs(time.seconds.unsigned_abs());
        let whole = if time.seconds < 0 {
            Self::UNIX_EPOCH.checked_sub(seconds)
        } else {
            Self::UNIX_EPOCH.checked_add(seconds)
        };
        let nanoseconds = Duration::from_nanos(time.nanoseconds.into());
        whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(Self::UNIX_EPOCH)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Self {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: since.subsec_nanos(),
            },
            Err(error) => {
                let before = error.duration();
                let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
                match before.subsec_nanos() {
                    0 => Self { seconds, nanoseconds: 0 },
                    nanoseconds => Self {
                        seconds: seconds.saturating_sub(1),
                        nanoseconds: 1_000_000_000 - nanoseconds,
                    },
                }
            }
        }
    }
}

/// The device that a special file represents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceNumber {
    /// The driver's number, 12 bits on disk.
    pub major: u32,
    /// The device's number, 20 bits on disk.
    pub minor: u32,
}

/// The attributes of an inode, as `stat` and `statx` report them. The methods are those of
/// [`std::fs::Metadata`] and of `MetadataExt`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The inode's number.
    pub inode: InodeNumber,
    /// The inode's type.
    pub kind: FileType,
    /// Permission bits with setuid, setgid and sticky: the low 12 bits of `st_mode`.
    pub permissions: u16,
    /// The number of names.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// The device that a character or block device represents.
    pub device: DeviceNumber,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// Creation, if the format stores it.
    pub created: Option<Timestamp>,
    /// The inode's generation number.
    pub generation: u32,
    /// Flags as FS_IOC_GETFLAGS numbers them (immutable 0x10, append 0x20, …).
    pub flags: u32,
    /// The project id, if the format stores it.
    pub project: Option<u32>,
}

impl Attributes {
    /// Returns the size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "std::fs::Metadata has none either")]
    pub fn len(&self) -> u64 {
        self.size
    }

    /// Returns the type.
    pub fn file_type(&self) -> FileType {
        self.kind
    }

    /// Returns whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind.is_dir()
    }

    /// Returns whether the inode is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind.is_file()
    }

    /// Returns whether the inode is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind.is_symlink()
    }

    /// Returns the type and the permissions as a `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | u32::from(self.permissions)
    }

    /// Returns the permissions, with setuid, setgid and sticky.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.mode())
    }

    /// Returns the time of the last change of the contents. Never fails: it returns a `Result`
    /// since [`std::fs::Metadata::modified`] does.
    pub fn modified(&self) -> Result<SystemTime> {
        Ok(self.modified.into())
    }

    /// Returns the time of the last access. Never fails, as [`modified`](Self::modified).
    pub fn accessed(&self) -> Result<SystemTime> {
        Ok(self.accessed.into())
    }

    /// Returns the time of the creation. Errors: `Unsupported` if the volume does not store it.
    pub fn created(&self) -> Result<SystemTime> {
        let created = self.created.ok_or(Unsupported::Operation("a time of creation"))?;
        Ok(created.into())
    }

    /// Returns the inode's number.
    pub fn ino(&self) -> u64 {
        self.inode.0
    }

    /// Returns the number of names.
    pub fn nlink(&self) -> u64 {
        self.links.into()
    }

    /// Returns the owner.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the allocated space, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// A change of an inode's attributes. `None` leaves a field unchanged. Not here: the right to
/// change them, and further changes that follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttributeChange {
    /// The low 12 bits of `st_mode`.
    pub permissions: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed: Option<Timestamp>,
    /// Last change of the contents.
    pub modified: Option<Timestamp>,
    /// Last change of the inode.
    pub changed: Option<Timestamp>,
}

/// The condition for setting an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// No condition.
    #[default]
    Either,
    /// There is no attribute of that name, or the call fails with `Exists`.
    Create,
    /// There is an attribute of that name, or the call fails with `NoAttribute`.
    Replace,
}

/// A position in a directory. Zero is the start. Other values come from [`DirEntry::next`], and
/// only the format that returned them can interpret them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirCursor(pub u64);

/// One name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name, without any terminator.
    pub name: &'a [u8],
    /// The number of the entry's inode.
    pub inode: InodeNumber,
    /// The inode's type, if the directory stores it.
    pub kind: Option<FileType>,
    /// The position of the next entry.
    pub next: DirCursor,
}

/// Space and inode counts, as in `statfs(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks in the volume, without the format's own overhead.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that are not reserved for root.
    pub blocks_available: u64,
    /// All inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// The maximum length of a name, in bytes.
    pub name_bytes_max: u32,
}

/// The properties of a volume, for people and scripts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// The format: "ext2", "ext3" or "ext4".
    pub format: &'static str,
    /// The label, as bytes without padding.
    pub label: Vec<u8>,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Names of the features in use.
    pub features: Vec<String>,
    /// Further properties, in order: a name in `snake_case` and a value.
    pub details: Vec<(&'static str, Detail)>,
}

/// The value of a property of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Detail {
    /// A count, a size, or an inode number.
    Number(u64),
    /// Text, or a time in the format of RFC 3339.
    Text(String),
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<u64> for Detail {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Detail {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u16> for Detail {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<String> for Detail {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Detail {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// The result of a check of a whole volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckSummary {
    /// Inodes in use.
    pub inodes: u64,
    /// Directories in use.
    pub directories: u64,
    /// Allocation units in use (ext4: clusters, which usually are blocks), including the format's
    /// own structures.
    pub clusters: u64,
    /// The number of inconsistencies found.
    pub findings: u64,
    /// Whether the check was completed, and not stopped early.
    pub is_complete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_convert_to_the_hosts_and_back() {
        let half = Duration::from_millis(500);
        for (seconds, nanoseconds, time) in [
            (0, 0, SystemTime::UNIX_EPOCH),
            (7, 500_000_000, SystemTime::UNIX_EPOCH + Duration::from_secs(7) + half),
            (-1, 500_000_000, SystemTime::UNIX_EPOCH - half),
            (-7, 0, SystemTime::UNIX_EPOCH - Duration::from_secs(7)),
        ] {
            let timestamp = Timestamp { seconds, nanoseconds };
            assert_eq!(SystemTime::from(timestamp), time);
            assert_eq!(Timestamp::from(time), timestamp);
        }
    }
}
