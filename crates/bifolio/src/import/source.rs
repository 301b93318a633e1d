//! Files of the host that are opened before a byte of an image is read.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{CopyError, IS_DIRECTORY, IS_SPECIAL};

/// A regular file of the host that is open, or why it cannot be copied.
#[derive(Debug)]
pub struct Source {
    pub(super) path: PathBuf,
    pub(super) opened: Result<(Metadata, File), CopyError>,
}

impl Source {
    /// Opens the file at `path`. Follows symbolic links. Keeps errors for the time when the file is copied.
    pub fn open(path: &Path) -> Self {
        Self { path: path.to_owned(), opened: open_regular(path) }
    }
}

fn open_regular(path: &Path) -> Result<(Metadata, File), CopyError> {
    let cannot_copy = |error| CopyError::Host("cannot copy", error);
    // First, since opening a device may change its state.
    check_regular(&fs::metadata(path).map_err(cannot_copy)?)?;
    let file = open(path)?;
    let metadata = file.metadata().map_err(cannot_copy)?;
    check_regular(&metadata)?;
    Ok((metadata, file))
}

/// Errors: the file is not a regular one.
fn check_regular(metadata: &Metadata) -> Result<(), CopyError> {
    match metadata.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => Err(CopyError::Other(IS_DIRECTORY)),
        _ => Err(CopyError::Other(IS_SPECIAL)),
    }
}

/// Opens a regular file. If a pipe has replaced it meanwhile, opening does not block.
pub fn open(path: &Path) -> Result<File, CopyError> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.map_err(|error| CopyError::Host("cannot open", error))
}
