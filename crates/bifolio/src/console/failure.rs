//! Failures of a command: messages with a subject, an error and advice.
//! Not here: errors of the library (`base::Error`), printing (`console`).

use std::borrow::Cow;
use std::fmt;
use std::io;

use base::Blank;

use crate::format::text::escape;

/// `std::result::Result` with [`Failure`].
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Exit status of a command. Greater statuses take precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Status {
    /// Success.
    Success,
    /// At least one operation failed.
    Failed,
    /// The command line is invalid.
    Usage,
    /// `check` found inconsistencies.
    Inconsistent,
    /// `check` could not finish.
    Operational,
    /// A signal ended the command.
    Interrupted,
    /// The reader of standard output closed the pipe.
    BrokenPipe,
}

impl Status {
    /// Returns the number of the exit status.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Inconsistent => 4,
            Self::Operational => 8,
            Self::Interrupted => 130,
            Self::BrokenPipe => 141,
        }
    }
}

/// A failure, shown as `SUBJECT: TEXT; ADVICE`. The subject and the advice may be missing.
#[derive(Clone, Debug)]
pub struct Failure {
    /// An image, a path in an image, or a file of the host. Escaped. Empty if the failure is the
    /// whole command's.
    subject: String,
    /// The action and its error.
    text: String,
    /// Advice to the user.
    advice: Option<String>,
    status: Status,
    /// Whether the command must stop.
    fatal: bool,
}

impl Failure {
    /// Creates a failure with a subject and a text.
    pub fn new(subject: impl Subject, text: impl Into<String>) -> Self {
        let subject = escape(&subject.bytes()).into_owned();
        Self { subject, text: text.into(), advice: None, status: Status::Failed, fatal: false }
    }

    /// Creates a failure for an error of the library.
    pub fn library(subject: impl Subject, error: &base::Error) -> Self {
        let failure = Self::new(subject, escape(error.to_string().as_bytes()));
        match advice(error) {
            Some(advice) => failure.advise(advice),
            None => failure,
        }
    }

    /// Creates a failure for an error of the library, with the action that failed.
    pub fn action(subject: impl Subject, action: &str, error: &base::Error) -> Self {
        let Self { text, advice, .. } = Self::library("", error);
        Self { advice, ..Self::new(subject, format!("{action}: {text}")) }
    }

    /// Creates a failure for an error of opening a file: that of the host, with the action, or else
    /// that of the library.
    pub fn open(subject: impl Subject, action: &str, error: &base::Error) -> Self {
        match error {
            base::Error::Open { errno, .. } => {
                Self::host(subject, action, &io::Error::from_raw_os_error(*errno))
            }
            error => Self::library(subject, error),
        }
    }

    /// Creates a failure for an error of the host, with the action that failed.
    pub fn host(subject: impl Subject, action: &str, error: &io::Error) -> Self {
        Self::new(subject, format!("{action}: {}", host_error(error)))
    }

    /// Creates the fatal failure for an error while standard output is written. `status` is for
    /// other errors than a closed pipe.
    pub fn output(error: &io::Error, status: Status) -> Self {
        let mut failure = Self::host("standard output", "cannot write", error);
        failure.fatal = true;
        failure.status = status;
        if error.kind() == io::ErrorKind::BrokenPipe {
            failure.status = Status::BrokenPipe;
        }
        failure
    }

    /// Creates the fatal failure of an interrupted command.
    pub fn interrupted() -> Self {
        let failure = Self::new("", "interrupted; changes that were already made are kept")
            .with_status(Status::Interrupted);
        Self { fatal: true, ..failure }
    }

    /// Adds advice.
    pub fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    /// Sets the exit status.
    pub fn with_status(self, status: Status) -> Self {
        Self { status, ..self }
    }

    /// Sets the exit status of an invalid command line.
    pub fn usage(self) -> Self {
        self.with_status(Status::Usage)
    }

    /// Returns whether the command must stop.
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// Returns the exit status of the command after this failure.
    pub fn status(&self) -> Status {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        f.write_str(&self.text)?;
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// Subject of a failure.
pub trait Subject {
    /// Returns the name of the subject.
    fn bytes(&self) -> Vec<u8>;
}

impl Subject for &str {
    fn bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

impl Subject for &[u8] {
    fn bytes(&self) -> Vec<u8> {
        self.to_vec()
    }
}

impl Subject for &std::path::Path {
    fn bytes(&self) -> Vec<u8> {
        self.as_os_str().as_encoded_bytes().to_vec()
    }
}

/// Returns the text of an error of the host, without the error number that Rust appends.
pub fn host_error(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Returns whether the image ends before its volume or the partition does.
fn is_incomplete(corrupt: &base::Corrupt) -> bool {
    match corrupt.problem {
        base::Problem::Truncated { .. } => corrupt.structure == "volume",
        base::Problem::Range { .. } => corrupt.structure == "partition entry",
        _ => false,
    }
}

/// Returns advice for an image without a known file system.
fn advice_without_format(unsupported: &base::Unsupported) -> Option<String> {
    use base::Unsupported;
    Some(match unsupported {
        Unsupported::Blank(Blank::Random) => {
            "open it first, for example with `cryptsetup open --type plain` or `cryptsetup open --type tcrypt`".to_owned()
        }
        Unsupported::Blank(Blank::Zeroes { is_all: true, .. } | Blank::Small { bytes: 0 }) => {
            "`mke2fs -t ext4` and `mkfs.f2fs` create file systems in whole images".to_owned()
        }
        // Whatever is behind the beginning is not to be overwritten.
        Unsupported::Blank(Blank::Zeroes { .. }) => {
            "if a file system begins behind it, use --offset BYTES, and if its beginning was lost, `testdisk IMAGE` looks for \
             partitions and file systems"
                .to_owned()
        }
        Unsupported::Partitioned { .. } => {
            "choose a partition with --partition N; `bifolio info` lists them".to_owned()
        }
        Unsupported::Remains { copy, block_size } => format!(
            "use --superblock {copy} --block-size {block_size} to read what is left, and IMAGE:<N> for \
             inode N if the root directory is lost"
        ),
        Unsupported::Format => {
            "if a file system begins elsewhere in it, use --offset BYTES; name a file within an image as IMAGE:/PATH".to_owned()
        }
        Unsupported::Blank(Blank::Small { .. }) => {
            "name a file within an image as IMAGE:/PATH".to_owned()
        }
        _ => return None,
    })
}

/// The structure of an f2fs volume with a lost checkpoint.
pub const LATER_CHECKPOINT: &str = "later checkpoint";

/// Advice if the root directory is damaged, so that paths lead nowhere.
pub const LOST_ROOT: &str = "the root directory is damaged: name inodes by their numbers, as IMAGE:<N>; `bifolio check` \
                             lists all inconsistencies";

/// The inodes of the root directories of ext4 and f2fs. Inode 2 of f2fs is no file, and inode 3 of
/// ext4 is a quota file, which has no path.
const ROOTS: [u64; 2] = [2, 3];

/// Returns whether the root directory is damaged.
fn is_root(corrupt: &base::Corrupt) -> bool {
    corrupt.location.inode.is_some_and(|inode| ROOTS.contains(&inode.0))
}

/// The structures of partition tables, which `bifolio check` does not check.
const PARTITION_TABLES: [&str; 4] =
    ["GPT header", "GPT entry", "extended boot record", "partition entry"];

/// Returns whether the partition table of an image is damaged.
pub fn is_table_damage(error: &base::Error) -> bool {
    matches!(error, base::Error::Corrupt(corrupt) if PARTITION_TABLES.contains(&corrupt.structure))
}

fn advice(error: &base::Error) -> Option<Cow<'static, str>> {
    let fixed = match error {
        base::Error::Corrupt(corrupt) if is_incomplete(corrupt) => Some(
            "the image is incomplete: copy it again as a whole, or use --incomplete to read what it has",
        ),
        base::Error::Corrupt(corrupt) if is_root(corrupt) => Some(LOST_ROOT),
        base::Error::Corrupt(corrupt) if corrupt.structure == LATER_CHECKPOINT => Some(
            "the volume can only be read, as of the checkpoint before it; a mount by Linux for writing gives up the later one",
        ),
        error if is_table_damage(error) => Some(
            "use --offset BYTES to name the start of a file system, or repair the partition table with sfdisk or gdisk",
        ),
        // The check reads headers only.
        base::Error::Corrupt(corrupt) if corrupt.structure == "compressed cluster" => None,
        base::Error::Corrupt(_) => Some("run `bifolio check` to list all inconsistencies"),
        base::Error::Unsupported(base::Unsupported::Encrypted(_)) => {
            Some("use --key FILE to give its key")
        }
        base::Error::Unsupported(base::Unsupported::Features { names })
            if names.iter().any(|name| name == "journal_dev") =>
        {
            Some(
                "it is the external journal of a volume: use the volume, with this as its --journal",
            )
        }
        base::Error::Unsupported(base::Unsupported::Features { .. }) => {
            Some("a newer version of bifolio may support it")
        }
        base::Error::Unsupported(unsupported) => {
            return advice_without_format(unsupported).map(Cow::Owned);
        }
        // The message says all.
        base::Error::Io(error) if error.errno == base::IoError::PAST_END => None,
        base::Error::Io(_) => Some("check that the image is complete and its storage device works"),
        base::Error::OutOfMemory => Some("use a larger --cache-size"),
        base::Error::NoAddressSpace { .. } => {
            Some("use a smaller --cache-size, or raise the limit (ulimit -v)")
        }
        base::Error::ThreadSpawn { .. } => {
            Some("raise the limits of address space and of processes (ulimit -v, ulimit -u)")
        }
        _ => None,
    };
    fixed.map(Cow::Borrowed)
}
