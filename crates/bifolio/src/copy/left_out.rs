//! Files that are not copied because the destination is full. They are counted, and reported once
//! at the end of the copy. The copy continues, because smaller files may still fit.

use base::Error;

use crate::console::failure::Failure;
use crate::format::size::human;
use crate::format::text;

/// What a destination has no more of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// Space for data.
    Space,
    /// Inodes. It may have space.
    Inodes,
}

impl Full {
    /// Returns what an image has no more of, by the error of a change.
    pub fn of(error: &Error) -> Self {
        if *error == Error::NoInodes { Self::Inodes } else { Self::Space }
    }
}

/// Counts of files and directories that were not copied.
#[derive(Debug, Default)]
pub struct LeftOut {
    files: u64,
    bytes: u64,
    first: Option<(Vec<u8>, Failure)>,
    lacks_space: bool,
    lacks_inodes: bool,
}

impl LeftOut {
    /// Counts a file or directory at `path`. `failure` is its error message, and `full` says what
    /// was missing.
    pub fn add(&mut self, path: &[u8], bytes: u64, failure: Failure, full: Full) {
        self.add_more(1, bytes);
        match full {
            Full::Space => self.lacks_space = true,
            Full::Inodes => self.lacks_inodes = true,
        }
        self.first.get_or_insert_with(|| (path.to_vec(), failure));
    }

    /// Counts the contents of a directory that was not copied.
    pub fn add_more(&mut self, files: u64, bytes: u64) {
        self.files += files;
        self.bytes += bytes;
    }

    /// Returns the report of a copy to `destination`. `None` if all files were copied.
    pub fn failure(self, destination: &[u8]) -> Option<Failure> {
        let (first, failure) = self.first?;
        if self.files == 1 {
            return Some(failure);
        }
        let (full, advice) = match (self.lacks_space, self.lacks_inodes) {
            (true, true) => (
                "is full, and its inodes are used up",
                "free space and remove files there, and copy them again",
            ),
            (false, true) => (
                "has used all of its inodes, though it may have free space",
                "remove files there, or create the file system with more inodes, and copy them again",
            ),
            (_, false) => ("is full", "free space there, and copy them again"),
        };
        let text = format!(
            "{full}: {} files and directories ({}) were not copied, the first is {}",
            self.files,
            human(self.bytes),
            text::escape(&first)
        );
        Some(Failure::new(destination, text).advise(advice))
    }
}
