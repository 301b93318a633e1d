//! Limits of a copy, since an image can hold more than its size: many names of one file, holes,
//! compressed data, blocks that a directory repeats.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::console::failure::Failure;

/// How many times the bytes of the image a copy has at least that is suspicious.
const FACTOR: u64 = 100;
/// The bytes that a file or directory counts for beside its data: about those of an inode and a
/// name on the host. Names in an image have at least 12 bytes, so an image is not suspicious if it
/// has each name once.
const FILE_BYTES: u64 = 1 << 10;
const _: () = assert!(FILE_BYTES < 12 * FACTOR);

/// The maximum size of a copy, as the user has chosen it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Maximum {
    /// The bytes of data.
    pub bytes: Option<u64>,
    /// The number of files and directories.
    pub files: Option<u64>,
}

/// What a copy has written, and how much it may.
#[derive(Debug)]
pub struct Limits {
    maximum: Maximum,
    bytes: AtomicU64,
    files: AtomicU64,
    exceeded: OnceLock<&'static str>,
}

impl Limits {
    /// Returns the limits of a copy that begins.
    pub fn new(maximum: Maximum) -> Self {
        let (bytes, files, exceeded) = Default::default();
        Self { maximum, bytes, files, exceeded }
    }

    /// Counts a file. Returns the number of files.
    pub fn add_file(&self) -> u64 {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        if self.maximum.files.is_some_and(|max| files > max) {
            let _ = self.exceeded.set("--max-files");
        }
        files
    }

    /// Returns whether `files` is the first number of files that count for more than `suspicious`
    /// bytes, and no limit was chosen.
    pub fn is_suspicious(&self, files: u64, suspicious: u64) -> bool {
        self.maximum.files.is_none() && files == (suspicious / FILE_BYTES).saturating_add(1)
    }

    /// Counts bytes of data. Returns whether they are the first ones past `suspicious`, and no
    /// limit was chosen.
    pub fn add_bytes(&self, count: u64, suspicious: u64) -> bool {
        let before = self.bytes.fetch_add(count, Ordering::Relaxed);
        let after = before.saturating_add(count);
        match self.maximum.bytes {
            Some(max) if after > max => drop(self.exceeded.set("--max-bytes")),
            Some(_) => {}
            None => return before <= suspicious && after > suspicious,
        }
        false
    }

    /// Returns whether the copy has reached a limit, and ends.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.get().is_some()
    }

    /// Returns the failure of a copy that has reached a limit.
    pub fn failure(&self, destination: &[u8]) -> Option<Failure> {
        let option = self.exceeded.get()?;
        let text = format!("the copy has reached {option}; the rest was not copied");
        Some(Failure::new(destination, text))
    }
}

/// Returns the number of bytes above which a copy out of an image is suspicious. Looks at the image
/// by its path, which a confined process cannot.
pub fn suspicious_bytes(image: &Path) -> u64 {
    bytes_of(image).map_or(u64::MAX, |bytes| bytes.saturating_mul(FACTOR))
}

/// Returns the warning of a copy that is suspiciously large.
pub fn warning(image: &Path) -> String {
    let text = format!("the copy has more than {FACTOR} times the bytes of the image");
    Failure::new(image, text).advise("--max-bytes limits it").to_string()
}

/// Returns the warning of a copy that has suspiciously many files.
pub fn files_warning(image: &Path) -> String {
    let text = "the copy has more files than the image has room for";
    Failure::new(image, text).advise("--max-files limits them").to_string()
}

/// Returns the number of bytes that an image has on the host. `None` if it cannot be found.
fn bytes_of(image: &Path) -> Option<u64> {
    const SECTOR_BYTES: u64 = 512;
    let file = image.metadata().ok()?;
    if file.file_type().is_block_device() {
        let device = std::fs::File::open(image).ok()?;
        return rustix::fs::seek(device, rustix::fs::SeekFrom::End(0)).ok();
    }
    Some(file.len().min(file.blocks().saturating_mul(SECTOR_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_too_many_ends_a_copy_or_warns_once() {
        let limits = Limits::new(Maximum::default());
        let warnings: Vec<_> = [60, 40, 1, 1000].map(|count| limits.add_bytes(count, 100)).into();
        assert_eq!(warnings, [false, false, true, false]);
        assert!(!limits.is_exceeded());

        let warned = (1..9).filter(|files| limits.is_suspicious(*files, 4 * FILE_BYTES));
        assert_eq!(warned.collect::<Vec<_>>(), [5]);
        assert!(!limits.is_suspicious(u64::MAX, u64::MAX));

        let limits = Limits::new(Maximum { bytes: Some(100), files: Some(2) });
        assert!(!limits.is_suspicious(5, 4 * FILE_BYTES));
        for is_exceeded in [false, false, true] {
            limits.add_file();
            assert_eq!(limits.is_exceeded(), is_exceeded);
        }
        let limits = Limits::new(Maximum { bytes: Some(100), files: None });
        assert!(!limits.add_bytes(100, 10) && !limits.is_exceeded());
        assert!(!limits.add_bytes(1, 10) && limits.is_exceeded());
        let text = limits.failure(b"out").map(|failure| failure.to_string());
        assert_eq!(
            text.as_deref(),
            Some("out: the copy has reached --max-bytes; the rest was not copied")
        );
    }
}
