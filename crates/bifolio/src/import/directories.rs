//! The directories of an archive, whose attributes are set at the end: new files in them change their times, and their
//! permissions may forbid new files.
//!
//! Paths are stored without the part that they share with the path before. In a deep tree, whole paths would take memory of
//! the square of the depth.

use std::collections::HashMap;

use base::InodeNumber;

use super::metadata::Preserved;
use crate::archive::Member;

/// Directories in the order of the archive.
#[derive(Default)]
pub struct Directories {
    list: Vec<Stored>,
    /// The index of the last member of each directory.
    last: HashMap<InodeNumber, usize>,
    /// The path of the last member.
    path: Vec<u8>,
}

struct Stored {
    number: InodeNumber,
    /// The number of bytes that the path shares with the one before.
    shared: usize,
    /// The rest of the path.
    rest: Box<[u8]>,
    preserved: Preserved,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A directory with its attributes.
pub struct UnpackedDirectory<'a> {
    /// The inode in the image.
    pub number: InodeNumber,
    /// The path in the archive.
    pub path: &'a [u8],
    /// The attributes.
    pub preserved: &'a Preserved,
    /// The names and values of extended attributes.
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

impl Directories {
    /// Adds the directory of a member.
    pub fn add(&mut self, number: InodeNumber, member: &Member) {
        self.add_path(number, &member.path, Preserved::of_member(member), member.xattrs());
    }

    fn add_path(
        &mut self,
        number: InodeNumber,
        path: &[u8],
        preserved: Preserved,
        xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    ) {
        let shared = self.path.iter().zip(path).take_while(|(a, b)| a == b).count();
        let rest = path.get(shared..).unwrap_or_default();
        self.path.truncate(shared);
        self.path.extend_from_slice(rest);
        self.last.insert(number, self.list.len());
        self.list.push(Stored { number, shared, rest: rest.into(), preserved, xattrs });
    }

    /// Calls `visit` for each directory. If a directory has several members, the last one is used. Errors: those of
    /// `visit`, which end the calls.
    pub fn for_each<E>(
        &self,
        mut visit: impl FnMut(&UnpackedDirectory<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut path = Vec::new();
        for (index, stored) in self.list.iter().enumerate() {
            path.truncate(stored.shared);
            path.extend_from_slice(&stored.rest);
            if self.last.get(&stored.number) == Some(&index) {
                let Stored { number, preserved, xattrs, .. } = stored;
                visit(&UnpackedDirectory { number: *number, path: &path, preserved, xattrs })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use base::attributes::Timestamp;

    use super::*;

    fn add(directories: &mut Directories, number: u64, path: &str, uid: u32) {
        let (gid, permissions, accessed, modified) = (0, 0o755, None, Timestamp::default());
        let preserved = Preserved { uid, gid, permissions, accessed, modified };
        directories.add_path(InodeNumber(number), path.as_bytes(), preserved, Vec::new());
    }

    #[test]
    fn the_last_member_of_each_directory_is_visited_with_its_path() {
        let mut directories = Directories::default();
        for (number, path, uid) in
            [(12, "a", 1), (13, "a/b", 2), (14, "a/bc/d", 3), (15, "x", 4), (13, "./a/b/", 5)]
        {
            add(&mut directories, number, path, uid);
        }
        let mut found = Vec::new();
        let visited: Result<(), Infallible> = directories.for_each(|directory| {
            let path = String::from_utf8_lossy(directory.path).into_owned();
            found.push((directory.number.0, path, directory.preserved.uid));
            Ok(())
        });
        assert_eq!(visited, Ok(()));
        let found: Vec<_> = found.iter().map(|(n, path, uid)| (*n, path.as_str(), *uid)).collect();
        assert_eq!(found, [(12, "a", 1), (14, "a/bc/d", 3), (15, "x", 4), (13, "./a/b/", 5)]);
    }

    #[test]
    fn paths_of_a_deep_tree_are_stored_as_their_names() {
        let mut directories = Directories::default();
        let mut path = String::new();
        for number in 0..1000 {
            path.push_str("/name");
            add(&mut directories, number, &path, 0);
        }
        let bytes: usize = directories.list.iter().map(|stored| stored.rest.len()).sum();
        assert_eq!(bytes, path.len());
    }
}
