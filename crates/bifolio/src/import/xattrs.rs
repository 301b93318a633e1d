//! Extended attributes of a file of the host.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::CopyError;
use super::tree::Identity;

/// Maximum size of a list of names, and of a value, in Linux.
const XATTR_BYTES_MAX: usize = 65_536;
/// Directory with the open files of the process.
const OPEN_FILES: &str = "/proc/self/fd";

/// The extended attributes of one file.
#[derive(Debug)]
pub struct Xattrs {
    /// A path that does not follow symbolic links.
    path: PathBuf,
    expected: Identity,
}

impl Xattrs {
    /// Returns those of the file `name` in the open `directory`. Without /proc, or a directory, the file is found by `path`.
    pub fn of_entry(
        directory: Option<BorrowedFd<'_>>,
        name: &OsStr,
        path: PathBuf,
        expected: Identity,
    ) -> Self {
        let open = directory.filter(|_| rustix::fs::stat(OPEN_FILES).is_ok()).map(|directory| {
            Path::new(OPEN_FILES).join(directory.as_raw_fd().to_string()).join(name)
        });
        Self { path: open.unwrap_or(path), expected }
    }

    /// Calls `set` with the name and value of each. Errors: those of `set`; [`CopyError::Replaced`] if there is another file
    /// now, to which they may belong.
    pub fn for_each(
        &self,
        mut set: impl FnMut(&[u8], &[u8]) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let read = |error: Errno| {
            CopyError::Host("cannot read extended attributes", io::Error::from(error))
        };
        let mut buffer = vec![0; XATTR_BYTES_MAX];
        let names = match rustix::fs::llistxattr(&self.path, &mut buffer[..]) {
            Ok(length) => buffer[..length].to_vec(),
            Err(Errno::OPNOTSUPP) => Vec::new(),
            Err(error) => return Err(read(error)),
        };
        for name in names.split_inclusive(|&byte| byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            let length = match rustix::fs::lgetxattr(&self.path, name, &mut buffer[..]) {
                Ok(length) => length,
                // The attribute was removed since the names were listed.
                Err(Errno::NODATA) => continue,
                Err(error) => return Err(read(error)),
            };
            set(name.to_bytes(), &buffer[..length])?;
        }
        let found = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        match found.map(|found| Identity::of(&found)) {
            Ok(found) if found == self.expected => Ok(()),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Err(CopyError::Replaced),
            Err(error) => Err(read(error)),
        }
    }
}
