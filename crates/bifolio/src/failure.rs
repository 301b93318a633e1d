//! What went wrong, for the person who asked: where, what, and what can be done. Not here: the
//! library's errors themselves (`base::Error`), printing (`console`).

use std::fmt;
use std::io;

use crate::format::text;

/// `std::result::Result` with [`Failure`].
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// How the command ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Status {
    /// Everything went well.
    Success,
    /// Something failed.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// `check` found inconsistencies.
    Inconsistent,
    /// `check` could not finish.
    Operational,
    /// A signal ended it.
    Interrupted,
    /// The reader of standard output went away.
    BrokenPipe,
}

impl Status {
    /// The exit status.
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

/// One failure, ready to be shown: `SUBJECT: what; what to do`.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What it concerns: an image, a path in it, a file of the host. Safe to print.
    subject: String,
    /// What happened, and where in the image.
    what: String,
    /// What to do about it.
    advice: Option<String>,
    status: Status,
    /// Nothing more can be done after it.
    fatal: bool,
}

impl Failure {
    /// A failure that concerns `subject`, in words.
    pub fn new(subject: impl Subject, what: impl Into<String>) -> Self {
        let subject = text::escape(&subject.bytes()).into_owned();
        Self { subject, what: what.into(), advice: None, status: Status::Failed, fatal: false }
    }

    /// An error of the library.
    pub fn library(subject: impl Subject, error: &base::Error) -> Self {
        let failure = Self::new(subject, text::escape(error.to_string().as_bytes()));
        match advice(error) {
            Some(advice) => failure.advise(advice),
            None => failure,
        }
    }

    /// An error of the library in doing something.
    pub fn action(subject: impl Subject, action: &str, error: &base::Error) -> Self {
        let Self { what, advice, .. } = Self::library("", error);
        Self { advice, ..Self::new(subject, format!("{action}: {what}")) }
    }

    /// An error of the host.
    pub fn host(subject: impl Subject, action: &str, error: &io::Error) -> Self {
        Self::new(subject, format!("{action}: {}", host_error(error)))
    }

    /// A failure to write standard output.
    pub fn output(error: &io::Error) -> Self {
        let mut failure = Self::host("standard output", "cannot write", error);
        failure.fatal = true;
        if error.kind() == io::ErrorKind::BrokenPipe {
            failure.status = Status::BrokenPipe;
        }
        failure
    }

    /// The command was interrupted.
    pub fn interrupted() -> Self {
        let failure = Self::new("interrupted", "no file was left behind that is not whole")
            .with_status(Status::Interrupted);
        Self { fatal: true, ..failure }
    }

    /// The same, with advice.
    pub fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    /// The same, ending the command with `status`.
    pub fn with_status(self, status: Status) -> Self {
        Self { status, ..self }
    }

    /// The same, for a command line that makes no sense.
    pub fn usage(self) -> Self {
        self.with_status(Status::Usage)
    }

    /// Whether the command must stop here.
    pub fn is_fatal(&self) -> bool {
        self.fatal
    }

    /// How it ends the command.
    pub fn status(&self) -> Status {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.what)?;
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// What a failure can concern.
pub trait Subject {
    /// Its name, as bytes.
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

/// The host's error text without the error number that Rust adds.
pub fn host_error(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

fn advice(error: &base::Error) -> Option<&'static str> {
    match error {
        base::Error::Corrupt(_) => Some("`bifolio check` lists everything that is wrong"),
        base::Error::Unsupported(base::Unsupported::Features { .. }) => {
            Some("a newer Bifolio may read it")
        }
        base::Error::Unsupported(base::Unsupported::Format) => Some(
            "if it is a partitioned disk, `bifolio info` lists the partitions and --partition \
             chooses one",
        ),
        base::Error::Unsupported(base::Unsupported::Operation(_)) => {
            Some("--no-recovery shows the image as it lies, without its journal")
        }
        base::Error::Io(_) => Some("is the image complete and its medium sound?"),
        base::Error::OutOfMemory => Some("raise --cache-size"),
        _ => None,
    }
}
