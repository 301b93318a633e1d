//! Files that a copy leaves out because its destination is full. They are counted, and reported once at the
//! end instead of one by one. The copy goes on, since smaller files may still fit.

use crate::failure::Failure;
use crate::format::size::human;
use crate::format::text;

/// Files and directories that were left out.
#[derive(Debug, Default)]
pub struct LeftOut {
    files: u64,
    bytes: u64,
    first: Option<(Vec<u8>, Failure)>,
}

impl LeftOut {
    /// Counts a file at `path` and its bytes, or a directory and its contents, if `failure` says that there
    /// was no room.
    pub fn add(&mut self, path: &[u8], bytes: u64, failure: Failure) {
        self.add_more(1, bytes);
        self.first.get_or_insert_with(|| (path.to_vec(), failure));
    }

    /// Counts the contents of a directory that was left out.
    pub fn add_more(&mut self, files: u64, bytes: u64) {
        self.files += files;
        self.bytes += bytes;
    }

    /// Returns the report of a copy to `destination`. `None` if nothing was left out.
    pub fn failure(self, destination: &[u8]) -> Option<Failure> {
        let (first, failure) = self.first?;
        if self.files == 1 {
            return Some(failure);
        }
        let what = format!(
            "is full: {} files and directories ({}) were not copied, the first is {}",
            self.files,
            human(self.bytes),
            text::escape(&first)
        );
        Some(Failure::new(destination, what).advise("free space there, and copy them again"))
    }
}
