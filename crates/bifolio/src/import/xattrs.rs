//! Extended attributes of a file of the host.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::CopyError;
use super::losses::Lost;
use super::metadata::{ALL, describe};
use super::tree::Identity;
use crate::console::failure::host_error;

/// Maximum size of a list of names, and of a value, in Linux.
const XATTR_BYTES_MAX: usize = 65_536;
/// Directory with the open files of the process.
const OPEN_FILES: &str = "/proc/self/fd";

/// The extended attributes of one file.
#[derive(Debug)]
pub enum Xattrs<'a> {
    /// Those of an open file or directory.
    Open(BorrowedFd<'a>),
    /// Those of another file, which is not opened.
    Closed {
        /// A path that does not follow symbolic links.
        path: PathBuf,
        /// The file that is expected there.
        expected: Identity,
    },
}

impl Xattrs<'_> {
    /// Returns those of the file `name` in the open `directory`. Without /proc, or a directory, the
    /// file is found by `path`.
    pub fn of_entry(
        directory: Option<BorrowedFd<'_>>,
        name: &OsStr,
        path: PathBuf,
        expected: Identity,
    ) -> Self {
        let open = directory.filter(|_| rustix::fs::stat(OPEN_FILES).is_ok()).map(|directory| {
            Path::new(OPEN_FILES).join(directory.as_raw_fd().to_string()).join(name)
        });
        Self::Closed { path: open.unwrap_or(path), expected }
    }

    /// Calls `set` with the name and value of each. Counts those that cannot be read. Errors: those
    /// of `set`; [`CopyError::Replaced`] if there is another file now, to which they may belong.
    pub fn for_each(
        &self,
        lost: Lost<'_>,
        mut set: impl FnMut(&[u8], &[u8]) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let reason = |error: Errno| host_error(&io::Error::from(error));
        let mut buffer = vec![0; XATTR_BYTES_MAX];
        let listed = match self {
            Self::Open(file) => rustix::fs::flistxattr(file, &mut buffer[..]),
            Self::Closed { path, .. } => rustix::fs::llistxattr(path, &mut buffer[..]),
        };
        let names = match listed {
            Ok(length) => buffer[..length].to_vec(),
            Err(Errno::OPNOTSUPP) => Vec::new(),
            Err(error) => {
                lost.add(ALL, reason(error));
                Vec::new()
            }
        };
        for name in names.split_inclusive(|&byte| byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            let found = match self {
                Self::Open(file) => rustix::fs::fgetxattr(file, name, &mut buffer[..]),
                Self::Closed { path, .. } => rustix::fs::lgetxattr(path, name, &mut buffer[..]),
            };
            match found {
                Ok(length) => set(name.to_bytes(), &buffer[..length])?,
                Err(error) => lost.add(&describe(name.to_bytes()), reason(error)),
            }
        }
        let Self::Closed { path, expected } = self else { return Ok(()) };
        let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        match found.map(|found| Identity::of(&found)) {
            Ok(found) if found == *expected => Ok(()),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Err(CopyError::Replaced),
            Err(error) => Err(CopyError::Host("cannot read extended attributes", error.into())),
        }
    }
}
