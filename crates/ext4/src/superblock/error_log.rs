//! The errors that a superblock records, and its error policy.
//! Not here: when errors are written to the superblock (`journal/failure.rs`).

use base::attributes::Timestamp;
use base::{Error, IoError, Problem};
use fs::ErrorPolicy;
use parking_lot::Mutex;

use crate::clock;
use crate::layout::geometry::Geometry;
use crate::ondisk::superblock::{RawSuperblock, STATE_ERRORS};
use crate::superblock::{time, until_nul};

/// Returns the policy that a superblock names.
pub(crate) fn policy_of(raw: &RawSuperblock) -> ErrorPolicy {
    match raw.errors.get() {
        2 => ErrorPolicy::ReadOnly,
        3 => ErrorPolicy::Panic,
        _ => ErrorPolicy::Continue,
    }
}

/// One error that is recorded in the superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedError {
    /// The time of the error, in whole seconds.
    pub time: Timestamp,
    /// The code of the error, in the format's numbering; 0 if there is none.
    pub code: u8,
    /// The kernel's function that found the error, or the structure if Bifolio found it.
    pub function: Vec<u8>,
    /// The line in the kernel's source, or 0.
    pub line: u32,
    /// The inode, or 0.
    pub inode: u32,
    /// The block, or 0.
    pub block: u64,
}

/// The errors of a volume since it was last repaired: their number, the first and the last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedErrors {
    /// The number of errors.
    pub count: u32,
    /// The first error.
    pub first: Option<RecordedError>,
    /// The last error.
    pub last: Option<RecordedError>,
}

/// The names of the error codes, from 1 on.
const CODES: [&str; 17] = [
    "UNKNOWN",
    "EIO",
    "ENOMEM",
    "EFSBADCRC",
    "EFSCORRUPTED",
    "ENOSPC",
    "ENOKEY",
    "EROFS",
    "EFBIG",
    "EEXIST",
    "ERANGE",
    "EOVERFLOW",
    "EBUSY",
    "ENOTDIR",
    "ENOTEMPTY",
    "ESHUTDOWN",
    "EFAULT",
];

fn code_of(error: &Error) -> u8 {
    match error {
        Error::Io(_) => 2,
        Error::OutOfMemory | Error::NoAddressSpace { .. } => 3,
        Error::Corrupt(corrupt) if matches!(corrupt.problem, Problem::Checksum { .. }) => 4,
        Error::Corrupt(_) => 5,
        Error::NoSpace => 6,
        _ => 1,
    }
}

impl RecordedError {
    /// Returns the name of the code, as dumpe2fs prints it.
    pub fn code_name(&self) -> Option<&'static str> {
        CODES.get(usize::from(self.code).checked_sub(1)?).copied()
    }

    fn new(error: &Error, geometry: &Geometry) -> Self {
        let now = clock::since_1970();
        let (function, inode, block) = match error {
            Error::Corrupt(corrupt) => (
                corrupt.structure,
                corrupt.location.inode,
                corrupt.location.block.map(|block| block.0),
            ),
            Error::Io(IoError { offset, .. }) => {
                ("device", None, Some(offset.0 >> geometry.block_size.shift()))
            }
            _ => ("journal", None, None),
        };
        Self {
            time: Timestamp { seconds: now.as_secs() as i64, nanoseconds: 0 },
            code: code_of(error),
            function: function.as_bytes().to_vec(),
            line: 0,
            // An inode that exists has a number of 32 bits.
            inode: inode.and_then(|inode| u32::try_from(inode.0).ok()).unwrap_or(0),
            block: block.unwrap_or(0),
        }
    }

    fn function_stored(&self) -> [u8; 32] {
        let mut stored = [0; 32];
        let length = self.function.len().min(stored.len());
        stored[..length].copy_from_slice(&self.function[..length]);
        stored
    }
}

impl RecordedErrors {
    /// Returns the errors of a superblock.
    pub(crate) fn parse(raw: &RawSuperblock) -> Self {
        let first = time(raw.first_error_time.get(), raw.first_error_time_hi);
        let last = time(raw.last_error_time.get(), raw.last_error_time_hi);
        Self {
            count: raw.error_count.get(),
            first: first.map(|time| RecordedError {
                time,
                code: raw.first_error_errcode,
                function: until_nul(&raw.first_error_func).to_vec(),
                line: raw.first_error_line.get(),
                inode: raw.first_error_ino.get(),
                block: raw.first_error_block.get(),
            }),
            last: last.map(|time| RecordedError {
                time,
                code: raw.last_error_errcode,
                function: until_nul(&raw.last_error_func).to_vec(),
                line: raw.last_error_line.get(),
                inode: raw.last_error_ino.get(),
                block: raw.last_error_block.get(),
            }),
        }
    }

    /// Writes these errors to a superblock, and marks the volume as having errors.
    pub(crate) fn store(&self, raw: &mut RawSuperblock) {
        if self.count == 0 {
            return;
        }
        raw.state = (raw.state.get() | STATE_ERRORS).into();
        raw.error_count = self.count.into();
        if let Some(first) = &self.first {
            raw.first_error_time = (first.time.seconds as u32).into();
            raw.first_error_time_hi = (first.time.seconds >> 32) as u8;
            raw.first_error_errcode = first.code;
            raw.first_error_func = first.function_stored();
            raw.first_error_line = first.line.into();
            raw.first_error_ino = first.inode.into();
            raw.first_error_block = first.block.into();
        }
        if let Some(last) = &self.last {
            raw.last_error_time = (last.time.seconds as u32).into();
            raw.last_error_time_hi = (last.time.seconds >> 32) as u8;
            raw.last_error_errcode = last.code;
            raw.last_error_func = last.function_stored();
            raw.last_error_line = last.line.into();
            raw.last_error_ino = last.inode.into();
            raw.last_error_block = last.block.into();
        }
    }

    /// Returns `other` if it has the higher count, or else `self`. One is from the superblock, and
    /// the other from its copy in the log, which may be older.
    pub(crate) fn or_more(self, other: Self) -> Self {
        if other.count > self.count { other } else { self }
    }

    fn add(&mut self, error: RecordedError) {
        self.count = self.count.saturating_add(1);
        self.first.get_or_insert_with(|| error.clone());
        self.last = Some(error);
    }
}

/// The errors of a volume that is open for writing.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    geometry: Geometry,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    policy: ErrorPolicy,
    errors: RecordedErrors,
    /// The last error that was added.
    latest: Option<Error>,
    /// Whether the superblock in memory lacks errors.
    has_unstored: bool,
}

impl ErrorLog {
    /// Creates the log of a volume that had `errors` when it was opened. Its policy is to continue
    /// until [`set_policy`](Self::set_policy) is called.
    pub(crate) fn new(geometry: Geometry, errors: RecordedErrors) -> Self {
        let policy = ErrorPolicy::Continue;
        let inner = Inner { policy, errors, latest: None, has_unstored: false };
        Self { geometry, inner: Mutex::new(inner) }
    }

    /// Sets the policy.
    pub(crate) fn set_policy(&self, policy: ErrorPolicy) {
        self.inner.lock().policy = policy;
    }

    /// Returns the policy.
    pub(crate) fn policy(&self) -> ErrorPolicy {
        self.inner.lock().policy
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Adds an error, unless it is equal to the last one.
    pub(crate) fn add(&self, error: &Error) {
        let recorded = RecordedError::new(error, &self.geometry);
        let mut inner = self.inner.lock();
        if inner.latest.as_ref() != Some(error) {
            inner.errors.add(recorded);
            inner.latest = Some(error.clone());
            inner.has_unstored = true;
        }
    }

    /// Returns the last error that was added.
    pub(crate) fn latest(&self) -> Option<Error> {
        self.inner.lock().latest.clone()
    }

    /// Returns all errors.
    pub(crate) fn errors(&self) -> RecordedErrors {
        self.inner.lock().errors.clone()
    }

    /// Records that the superblock in memory lacks errors.
    pub(crate) fn mark_unstored(&self) {
        self.inner.lock().has_unstored = true;
    }

    /// Returns whether the superblock in memory lacks errors. The next call returns false if no
    /// error is added until then.
    pub(crate) fn take_unstored(&self) -> bool {
        std::mem::take(&mut self.inner.lock().has_unstored)
    }
}
