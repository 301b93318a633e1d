//! Images and paths of a command line, and options for opening images.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{BlockSize, DeviceOffset, Error, InodeNumber};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use device::{Image, OpenDevice, Part, PartLock, SharedDevice};
use iomap::Caching;
use vfs::{Follow, Keys, Node, SuperblockLocation, Volume, VolumeOptions};

use crate::cli::numbers::{parse_block_size, parse_number, parse_partition, parse_size};
use crate::console;
use crate::console::failure::{Failure, LOST_ROOT, Result, Subject};
use crate::format::text;
use crate::images::confinement::ConfinementOptions;
use crate::images::related;
use crate::images::users::{self, InUse};
use crate::images::writing;

/// The minimum time to wait for an image that is in use: umount(8) may return before the server has
/// released the image.
const UNLOCK_TIME: Duration = Duration::from_millis(500);

/// An image, and a path in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The image: a file or a block device of the host.
    pub image: PathBuf,
    /// The path in the image. Starts with `/`.
    pub path: Vec<u8>,
}

impl Target {
    /// Returns the parser of arguments such as `IMAGE:/path` and `IMAGE`.
    pub fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().map(|argument| Self::parse(&argument, |image| image.exists()))
    }

    /// Returns the parser of arguments that are an image without a path in it.
    pub fn image_parser() -> impl TypedValueParser<Value = Self> {
        Self::parser().try_map(|target| {
            let is_whole = target.path == b"/";
            if is_whole { Ok(target) } else { Err("expected an image, without a path in it") }
        })
    }

    /// Splits at the last ":/" that follows the name of an existing image, or else at the last
    /// ":/". "IMAGE:<NUMBER>" names an inode.
    pub fn parse(argument: &OsStr, exists: impl Fn(&Path) -> bool) -> Self {
        let bytes = argument.as_bytes();
        let split = |at: usize| Self {
            image: PathBuf::from(OsString::from_vec(bytes[..at].to_vec())),
            path: bytes[at + 1..].to_vec(),
        };
        let inode =
            bytes.windows(2).rposition(|pair| pair == b":<").filter(|at| *at > 0).map(split);
        if let Some(target) = inode.filter(|target| target.inode_number().is_some()) {
            if exists(&target.image) || !exists(Path::new(argument)) {
                return target;
            }
        }
        let mut splits = (1..bytes.len().saturating_sub(1))
            .rev()
            .filter(|&at| bytes[at..].starts_with(b":/"))
            .peekable();
        let last = splits.peek().copied();
        let whole = Self { image: PathBuf::from(argument), path: b"/".to_vec() };
        match splits.map(split).find(|target| exists(&target.image)) {
            Some(target) => target,
            None if exists(&whole.image) => whole,
            None => last.map_or(whole, split),
        }
    }

    /// Returns the last name in the path, or `None` for the root and for paths that end in `.` or
    /// `..`.
    pub fn file_name(&self) -> Option<&[u8]> {
        let name = self.path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty())?;
        (name != b"." && name != b"..").then_some(name)
    }

    /// Returns the number of the inode that the path `<NUMBER>` names, decimal or hexadecimal (0x),
    /// as in debugfs. Other paths begin with `/`. A number that is larger than any becomes the
    /// largest one.
    pub fn inode_number(&self) -> Option<InodeNumber> {
        let digits = self.path.strip_prefix(b"<")?.strip_suffix(b">")?;
        let (digits, radix) = match digits {
            [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
            digits => (digits, 10),
        };
        let is_digit = |byte: &u8| char::from(*byte).is_digit(radix);
        let is_number = !digits.is_empty() && digits.iter().all(is_digit);
        let number = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
        Some(InodeNumber(u64::from_str_radix(number, radix).unwrap_or(u64::MAX)))
    }

    /// Returns the failure for a library error at `path` in this target's image.
    pub fn failure(&self, path: &[u8], error: &base::Error) -> Failure {
        Failure::library(self.subject(path).as_slice(), error)
    }

    /// Returns a warning of the volume with the image's name.
    pub fn warning(&self, warning: &str) -> String {
        let image = self.subject(b"/");
        format!("{}: {warning}", text::escape(&image))
    }

    /// Returns the name of `path` in this target's image for messages.
    pub fn subject(&self, path: &[u8]) -> Vec<u8> {
        let mut subject = self.image.as_os_str().as_bytes().to_vec();
        if path != b"/" {
            subject.push(b':');
            subject.extend_from_slice(path);
        }
        subject
    }

    /// Returns the node at the target's path, or of its inode number.
    pub fn resolve(&self, volume: &Volume, follow: Follow) -> Result<Arc<Node>> {
        if let Some(number) = self.inode_number() {
            return volume.node(number).map_err(|error| match error {
                Error::NotFound => Failure::new(self, format!("inode {number} is not in use")),
                Error::Corrupt(corrupt) if is_outside(&corrupt) => {
                    Failure::new(self, corrupt.problem.to_string())
                }
                error => Failure::library(self, &error),
            });
        }
        volume.resolve(&self.path, follow).map_err(|error| {
            let failure = Failure::library(self, &error);
            let is_damage = matches!(error, Error::Corrupt(_) | Error::Io(_));
            // The error does not say so if its place is past the end of an incomplete image, or
            // cannot be read.
            if is_damage && volume.root().is_err() { failure.advise(LOST_ROOT) } else { failure }
        })
    }
}

/// Returns whether the volume has no inode of the number.
fn is_outside(corrupt: &base::Corrupt) -> bool {
    matches!(corrupt.problem, base::Problem::Range { field: "inode number", .. })
}

impl Subject for &Target {
    fn bytes(&self) -> Vec<u8> {
        self.subject(&self.path)
    }
}

/// Options for opening images, shared by all commands.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Image options")]
pub struct ImageOptions {
    /// Use partition N of a partitioned disk; `bifolio info` lists the partitions
    #[arg(long, value_name = "N", value_parser = parse_partition)]
    pub partition: Option<u32>,
    /// Use the file system that starts at this offset in the image; decimal or hexadecimal (0x),
    /// accepts the suffixes K, M, G, T and s (sectors of 512 bytes)
    #[arg(long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "partition")]
    pub offset: Option<u64>,
    /// Read the image as it is: do not replay its journal (ext3, ext4) or recover synced files
    /// (f2fs). Not for commands that change the image
    #[arg(long)]
    pub no_recovery: bool,
    /// Read an image that ends before its file system does, such as a truncated copy: reads of the
    /// missing part fail. Not for commands that change the image
    #[arg(long)]
    pub incomplete: bool,
    /// Use the external journal on this file or block device (ext3, ext4)
    #[arg(long, value_name = "DEVICE", conflicts_with = "no_recovery")]
    pub journal: Option<PathBuf>,
    /// Read encrypted files, and on f2fs also write them, with the master keys in this file: one
    /// raw key, or lines in hexadecimal
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Use the backup superblock in this block (ext2, ext3, ext4; see e2fsck -b). Needed only if
    /// the primary superblock is damaged and no backup is found automatically
    #[arg(long, value_name = "BLOCK", value_parser = parse_number)]
    pub superblock: Option<u64>,
    /// Set the block size for --superblock, such as 4K; all sizes are tried by default
    #[arg(long, value_name = "BYTES", value_parser = parse_block_size, requires = "superblock")]
    pub block_size: Option<BlockSize>,
    /// Limit the memory for cached data; accepts the suffixes K, M, G and T. By default, a quarter
    /// of the memory
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub cache_size: Option<u64>,
    /// Limit the size of folios in the cache to 4 KiB * 2^ORDER; 0 to 9, by default 9
    #[arg(long, value_name = "ORDER", value_parser = clap::value_parser!(u8).range(0..=9))]
    pub folio_order_max: Option<u8>,
    /// The layers that confine the process that reads the image.
    #[command(flatten)]
    pub confinement: ConfinementOptions,
    /// Whether freed blocks are discarded. Set by commands with an option for it.
    #[arg(skip)]
    pub discard: bool,
    /// Whether a block device is opened exclusively for writing. Cleared by commands for which the
    /// kernel holds the device.
    #[arg(skip = true)]
    pub exclusive: bool,
    /// Whether what backs the image is locked, too, and other devices of its bytes are looked for.
    /// Cleared by commands that have done so before.
    #[arg(skip = true)]
    pub locks_related: bool,
    /// Whether other programs can use other parts of the image. Set for the disk of a partition
    /// that is opened by its own device.
    #[arg(skip)]
    pub shares_other_parts: bool,
    /// The time to wait for an image that is in use but not mounted: the server of an earlier mount
    /// may still be writing to it. Set by commands that wait.
    #[arg(skip)]
    pub timeout: Duration,
    /// Whether file data stays out of the cache. Set by commands with an option for it.
    #[arg(skip)]
    pub uncached: bool,
}

impl ImageOptions {
    /// Returns whether the options choose the whole image.
    pub fn is_whole(&self) -> bool {
        self.partition.is_none() && self.offset.is_none()
    }

    /// Returns the bytes of an image that are used, as far as that is known before its partition
    /// table is read.
    pub fn range(&self) -> Range<u64> {
        self.offset.unwrap_or(0)..u64::MAX
    }

    /// Returns whether these options choose the same part of an image as `other`.
    pub fn has_part_of(&self, other: &Self) -> bool {
        (self.partition, self.offset) == (other.partition, other.offset)
    }

    /// Returns the options for opening the volume, for writing if it is `writable`. The journal
    /// device is not among them.
    pub fn volume_options(&self, writable: bool) -> Result<VolumeOptions> {
        let (no_recovery, incomplete) = (self.no_recovery, self.incomplete);
        if writable && incomplete {
            let text = "cannot be used to change an image: what is missing would be overwritten";
            return Err(Failure::new("--incomplete", text).usage());
        }
        if writable && no_recovery {
            let text = "cannot be used to change an image, which must be recovered first";
            return Err(Failure::new("--no-recovery", text).usage());
        }
        let mut options =
            VolumeOptions { writable, no_recovery, incomplete, ..VolumeOptions::default() };
        options.discard = self.discard.then_some(true);
        let location = |block| SuperblockLocation { block, block_size: self.block_size };
        options.ext4.superblock = self.superblock.map(location);
        if self.uncached {
            options.read.caching = Caching::Dropbehind;
        }
        if let Some(bytes) = self.cache_size {
            options.cache.bytes_max = bytes;
        }
        if let Some(order) = self.folio_order_max {
            options.cache.folio_order_max = order;
        }
        if let Some(path) = &self.key {
            let keys = Keys::read_file(path).map_err(|error| {
                Failure::open(path.as_path(), "cannot open the key file", &error)
            })?;
            options.keys = Arc::new(keys);
        }
        Ok(options)
    }

    /// Opens the device of the external journal, without reading it.
    pub fn open_journal(&self, writable: bool) -> Result<Option<Image>> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let access = if writable { Access::Write } else { Access::Read };
        check_readable(journal)?;
        let opened = OpenDevice { read_only: !writable, ..OpenDevice::default() };
        self.wait_for(|| access.open(journal, opened, true)).map(Some)
    }

    /// Returns the device of the external journal, which is read now.
    pub fn journal_device(&self, journal: Option<Image>) -> Result<Option<SharedDevice>> {
        let path = self.journal.as_deref().unwrap_or(Path::new("--journal"));
        let device = journal.map(Image::device).transpose();
        device.map_err(|error| Failure::library(path, &error))
    }

    /// Opens the image without reading it.
    pub fn open_image(&self, target: &Target) -> Result<Image> {
        self.open_image_for(target, Access::Read)
    }

    /// Opens the image for writing, without reading it. Fails if another program uses the image.
    pub fn open_image_for_writing(&self, target: &Target) -> Result<Image> {
        self.open_image_for(target, Access::Write)
    }

    fn open_image_for(&self, target: &Target, access: Access) -> Result<Image> {
        let image = target.image.as_path();
        check_readable(image)?;
        let part = match (self.partition, self.offset) {
            (Some(number), _) => Part::Partition(number),
            (None, Some(offset)) => Part::From(DeviceOffset(offset)),
            (None, None) => Part::Whole,
        };
        let read_only = access == Access::Read;
        let (exclusive, shares_other_parts) = (self.exclusive, self.shares_other_parts);
        let options = OpenDevice {
            part,
            read_only,
            exclusive,
            shares_other_parts,
            incomplete: self.incomplete,
            ..OpenDevice::default()
        };
        self.wait_for(|| access.open(image, options, self.locks_related))
    }

    /// Locks what backs the image, for a process that uses it later.
    pub fn lock_related(&self, image: &Path, writable: bool) -> Result<Vec<PartLock>> {
        self.wait_for(|| related::lock(image, !writable).map_err(OpenFailure::InUse))
    }

    /// Calls `open` again while another program uses the image, up to the time for which the
    /// command waits.
    fn wait_for<T>(&self, open: impl FnMut() -> Result<T, OpenFailure>) -> Result<T> {
        let time = self.timeout.max(UNLOCK_TIME);
        fuse::retry_while_in_use(time, OpenFailure::user, open).map_err(OpenFailure::into_failure)
    }
}

/// Returns whether an image could not be opened since another program uses it.
pub fn is_busy(error: &base::Error) -> bool {
    let busy = rustix::io::Errno::BUSY.raw_os_error();
    matches!(error, base::Error::Open { errno, .. } if *errno == busy)
}

/// Why an image could not be opened.
enum OpenFailure {
    /// Another program uses it.
    InUse(InUse),
    Other(Failure),
}

impl OpenFailure {
    /// Returns what another program uses.
    fn user(&self) -> Option<&Path> {
        match self {
            Self::InUse(user) => Some(user.path()),
            Self::Other(_) => None,
        }
    }

    fn into_failure(self) -> Failure {
        match self {
            Self::InUse(user) => user.into_failure(),
            Self::Other(failure) => failure,
        }
    }
}

/// Purpose for which an image is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
}

impl Access {
    /// Opens an image, and locks what backs it if it `locks_related`.
    fn open(
        self,
        path: &Path,
        options: OpenDevice,
        locks_related: bool,
    ) -> Result<Image, OpenFailure> {
        let mut image = Image::open(path, options).map_err(|error| match is_busy(&error) {
            true => OpenFailure::InUse(InUse::Locked(path.into())),
            false => OpenFailure::Other(self.failure(path, &error)),
        })?;
        if locks_related {
            image.hold(related::lock(path, options.read_only).map_err(OpenFailure::InUse)?);
        }
        if image.is_written_elsewhere() {
            console::warn(users::written_elsewhere(path));
        }
        Ok(image)
    }

    fn failure(self, image: &Path, error: &base::Error) -> Failure {
        match self {
            Self::Read => writing::cannot_read(image, error),
            Self::Write => writing::cannot_write(image, error),
        }
    }
}

/// Opens the image once, because the error of the host for a missing or forbidden file says more
/// than that of a failed read. Opens only regular files and block devices: opening a pipe, for
/// example, could block forever.
fn check_readable(image: &Path) -> Result<()> {
    let cannot_open = |error| {
        let failure = Failure::host(image, "cannot open", &error);
        if image.as_os_str().is_empty() {
            return Failure::new("", "the name of the image is empty");
        }
        if let Some(file) = file_before_slash(image) {
            let path = image.strip_prefix(file).unwrap_or(Path::new("PATH"));
            let target = [file.as_os_str().as_bytes(), b":/", path.as_os_str().as_bytes()].concat();
            let target = text::escape(&target).into_owned();
            return failure.advise(format!("write a path in an image as IMAGE:/PATH: {target}"));
        }
        match has_relative_path(image) {
            true => failure.advise("write a path in an image as IMAGE:/PATH"),
            false => failure,
        }
    };
    let kind = std::fs::metadata(image).map_err(cannot_open)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::new(image, "is neither a regular file nor a block device"));
    }
    std::fs::File::open(image).map(drop).map_err(cannot_open)
}

/// Returns the file whose name `argument` begins with, before a slash.
fn file_before_slash(argument: &Path) -> Option<&Path> {
    argument.ancestors().skip(1).find(|ancestor| ancestor.is_file())
}

/// Returns whether `argument` is the name of an existing file, a colon, and more: a path that does
/// not begin with `/`.
fn has_relative_path(argument: &Path) -> bool {
    let bytes = argument.as_os_str().as_bytes();
    let mut colons = (0..bytes.len()).filter(|at| bytes[*at] == b':');
    !argument.exists() && colons.any(|at| Path::new(OsStr::from_bytes(&bytes[..at])).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(argument: &str, existing: &[&str], image: &str, path: &str) {
        let exists = |candidate: &Path| existing.iter().any(|name| candidate == Path::new(name));
        let target = Target::parse(OsStr::new(argument), exists);
        assert_eq!((target.image, target.path), (image.into(), path.into()), "{argument}");
    }

    #[test]
    fn arguments_split_at_the_last_colon_that_follows_an_image() {
        check("disk.img", &[], "disk.img", "/");
        check("disk.img:/", &[], "disk.img", "/");
        check("disk.img:/etc/fstab", &[], "disk.img", "/etc/fstab");
        check("a:b.img:/x", &["a:b.img"], "a:b.img", "/x");
        check("disk.img:/dir:/x", &["disk.img"], "disk.img", "/dir:/x");
        check("dir:/disk.img:/x", &["dir:/disk.img"], "dir:/disk.img", "/x");
        check("dir:/disk.img", &["dir:/disk.img"], "dir:/disk.img", "/");
        check("nothing:/dir:/x", &[], "nothing:/dir", "/x");
        check(":/x", &[], ":/x", "/");
        check("disk.img:<12>", &["disk.img"], "disk.img", "<12>");
        check("disk.img:<0xC>", &["disk.img"], "disk.img", "<0xC>");
        check("disk.img:<0x>", &["disk.img"], "disk.img:<0x>", "/");
        check("disk.img:<c>", &["disk.img"], "disk.img:<c>", "/");
        check("disk.img:<12>", &["disk.img:<12>"], "disk.img:<12>", "/");
        check("disk.img:<12>", &[], "disk.img", "<12>");
        check("disk.img:/<12>", &["disk.img"], "disk.img", "/<12>");
        check("disk.img:<a>", &["disk.img"], "disk.img:<a>", "/");
        check(":<12>", &[], ":<12>", "/");
    }

    #[test]
    fn numbers_of_inodes_are_decimal_or_hexadecimal() {
        let inode = |path: &str| {
            let target = Target { image: "i".into(), path: path.into() };
            target.inode_number().map(|number| number.0)
        };
        assert_eq!(["<12>", "<0xc>", "<0X0C>"].map(inode), [Some(12); 3]);
        assert_eq!(["<>", "<0x>", "<c>", "<+1>", "</12>"].map(inode), [None; 5]);
        assert_eq!(inode("<0x10000000000000000>"), Some(u64::MAX));
    }

    #[test]
    fn file_names_are_last_components() {
        let name = |path: &str| {
            let target = Target { image: "i".into(), path: path.into() };
            target.file_name().map(<[u8]>::to_vec)
        };
        assert_eq!(name("/a/b"), Some(b"b".to_vec()));
        assert_eq!(name("/a/b//"), Some(b"b".to_vec()));
        assert_eq!(name("/"), None);
        assert_eq!(name("/a/."), None);
        assert_eq!(name("/a/.."), None);
    }
}
