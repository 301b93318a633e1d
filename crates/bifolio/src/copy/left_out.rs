//! Files that are not copied because the destination is full. They are counted, and reported once at the end of the
//! copy. The copy continues, because smaller files may still fit.

use crate::failure::Failure;
use crate::format::size::human;
use crate::format::text;

/// Counts of files and directories that were not copied.
#[derive(Debug, Default)]
pub struct LeftOut {
    files: u64,
    bytes: u64,
    first: Option<(Vec<u8>, Failure)>,
}

impl LeftOut {
    /// Counts a file or directory at `path`. `failure` is its error message.
    pub fn add(&mut self, path: &[u8], bytes: u64, failure: Failure) {
        self.add_more(1, bytes);
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
        let text = format!(
            "is full: {} files and directories ({}) were not copied, the first is {}",
            self.files,
            human(self.bytes),
            text::escape(&first)
        );
        Some(Failure::new(destination, text).advise("free space there, and copy them again"))
    }
}
