//! The description of files with data that may be lost after an error. Not here: which files
//! (`writeback/losses.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::InodeNumber;
use base::attributes::FileType;
use base::text;

use crate::volume::Volume;

/// The time for which paths are searched.
const SEARCH_TIME: Duration = Duration::from_secs(2);
/// The maximum number of files whose paths are searched and that are named.
const NAMED_MAX: usize = 20;

/// Files with data that may be lost, for messages:
/// `; files that were written since the last sync: /a (10 bytes)`. Empty if none is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LostFiles {
    /// The files that are named.
    pub files: Vec<LostFile>,
    /// The number of further files.
    pub others: u64,
    /// Whether there are even more, which are not counted.
    pub has_uncounted: bool,
}

/// A file with data that may be lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostFile {
    /// Its inode number.
    pub inode: InodeNumber,
    /// One of its paths, if it was found.
    pub path: Option<PathBuf>,
    /// The bytes that were written to it.
    pub bytes: u64,
}

impl fmt::Display for LostFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, file) in self.files.iter().enumerate() {
            f.write_str(match number {
                0 => "; data may be lost that was written since the last sync to ",
                _ => ", ",
            })?;
            match &file.path {
                Some(path) => f.write_str(&text::escape(path.as_os_str().as_bytes()))?,
                None => write!(f, "inode {}", file.inode)?,
            }
            write!(f, " ({} bytes)", file.bytes)?;
        }
        match (self.others, self.has_uncounted) {
            (0, false) => Ok(()),
            (0, true) => f.write_str(", and other files"),
            (others, false) => write!(f, ", and {others} more files"),
            (others, true) => write!(f, ", and more than {others} more files"),
        }
    }
}

impl Volume {
    /// Returns the files with data that may be lost, after [`close`](Self::close) or a sync has
    /// failed. Those whose data could not be written back are among them until they are removed.
    /// Searches their paths for up to 2 s.
    pub fn lost_files(&self) -> LostFiles {
        let (mut found, has_uncounted) = self.known_losses();
        let others = found.len().saturating_sub(NAMED_MAX) as u64;
        found.truncate(NAMED_MAX);
        let mut paths = find_paths(self, &found);
        let files = found.into_iter();
        let files =
            files.map(|(inode, bytes)| LostFile { inode, path: paths.remove(&inode), bytes });
        LostFiles { files: files.collect(), others, has_uncounted }
    }
}

/// Returns a path of each file, as far as they are found in time.
fn find_paths(volume: &Volume, files: &[(InodeNumber, u64)]) -> BTreeMap<InodeNumber, PathBuf> {
    let mut paths = BTreeMap::new();
    let until = Instant::now() + SEARCH_TIME;
    let mut directories = VecDeque::from([PathBuf::from("/")]);
    while let Some(directory) = directories.pop_front() {
        let Ok(entries) = volume.read_dir(&directory) else { continue };
        for entry in entries.map_while(Result::ok) {
            if paths.len() == files.len() || Instant::now() >= until {
                return paths;
            }
            let inode = entry.inode();
            if files.iter().any(|(file, _)| *file == inode) {
                paths.entry(inode).or_insert_with(|| entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind == FileType::Directory) {
                directories.push_back(entry.path());
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_their_paths_or_numbers() {
        let file = |inode, path: Option<&str>| LostFile {
            inode: InodeNumber(inode),
            path: path.map(PathBuf::from),
            bytes: 10,
        };
        let files = vec![file(12, Some("/a\nb")), file(13, None)];
        let lost = LostFiles { files, others: 3, has_uncounted: false };
        assert_eq!(
            lost.to_string(),
            "; data may be lost that was written since the last sync to /a\\nb (10 bytes), inode 13 (10 bytes), and 3 \
             more files"
        );
        assert_eq!(LostFiles::default().to_string(), "");
    }
}
