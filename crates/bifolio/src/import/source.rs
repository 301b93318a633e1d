//! Files of the host that are opened before a byte of an image is read.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::tree::kind;
use super::{CopyError, IS_DIRECTORY, IS_SPECIAL};

/// A regular file of the host that is open, or why it cannot be copied.
#[derive(Debug)]
pub struct Source {
    pub(super) path: PathBuf,
    pub(super) opened: Result<(Stat, File), CopyError>,
}

impl Source {
    /// Opens the file at `path`. Follows symbolic links. Keeps errors for the time when the file is
    /// copied.
    pub fn open(path: &Path) -> Self {
        Self { path: path.to_owned(), opened: open_regular(path) }
    }
}

fn open_regular(path: &Path) -> Result<(Stat, File), CopyError> {
    let cannot_copy = |error: Errno| CopyError::Host("cannot copy", error.into());
    // First, since opening a device may change its state.
    check_regular(&rustix::fs::stat(path).map_err(cannot_copy)?)?;
    // If a pipe has replaced the file meanwhile, opening does not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let file = file.map_err(|error| CopyError::Host("cannot open", error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(cannot_copy)?;
    check_regular(&stat)?;
    Ok((stat, file.into()))
}

/// Errors: the file is not a regular one.
fn check_regular(stat: &Stat) -> Result<(), CopyError> {
    match kind(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(CopyError::Other(IS_DIRECTORY.into())),
        _ => Err(CopyError::Other(IS_SPECIAL.into())),
    }
}
