//! The directories of an archive, whose attributes are set at the end: new files in them change
//! their times, and their permissions may forbid new files.
//!
//! Memory is in proportion to the size of the archive. Each directory is stored once, however many
//! members it has. Paths are stored without the part that they share with the path before: in a
//! deep tree, whole paths would take memory of the square of the depth. Extended attributes for all
//! members are shared.

use std::collections::HashMap;

use base::InodeNumber;

use super::metadata::Preserved;
use crate::archive::{Member, Xattrs};

/// Directories, in the order of their last members in the archive.
#[derive(Default)]
pub struct Directories {
    by_number: HashMap<InodeNumber, Stored>,
    first: Option<InodeNumber>,
    last: Option<InodeNumber>,
    /// The path of the last directory.
    path: Vec<u8>,
}

struct Stored {
    /// The directories before and after this one.
    before: Option<InodeNumber>,
    after: Option<InodeNumber>,
    /// The number of bytes that the path shares with the one before.
    shared: usize,
    /// The rest of the path.
    rest: Vec<u8>,
    preserved: Preserved,
    xattrs: Xattrs,
}

/// A directory with its attributes.
pub struct UnpackedDirectory<'a> {
    /// The inode in the image.
    pub number: InodeNumber,
    /// The path in the archive.
    pub path: &'a [u8],
    /// The attributes.
    pub preserved: &'a Preserved,
    /// The extended attributes.
    pub xattrs: &'a Xattrs,
}

impl Directories {
    /// Adds the directory of a member. It replaces earlier members of the directory.
    pub fn add(&mut self, number: InodeNumber, member: &Member) {
        let xattrs = member.xattrs.clone();
        self.add_path(number, &member.path, Preserved::of_member(member), xattrs);
    }

    fn add_path(&mut self, number: InodeNumber, path: &[u8], preserved: Preserved, xattrs: Xattrs) {
        let mut shared = self.path.iter().zip(path).take_while(|(a, b)| a == b).count();
        self.path.truncate(shared);
        self.path.extend_from_slice(path.get(shared..).unwrap_or_default());
        let mut before = self.last;
        match self.by_number.remove(&number) {
            Some(same) if self.last == Some(number) => {
                // Its path is stored from where it differs from the one before, which is not known
                // here.
                shared = shared.min(same.shared);
                before = same.before;
            }
            Some(earlier) => self.unlink(earlier),
            None => {}
        }
        let link = before.and_then(|before| self.by_number.get_mut(&before));
        *link.map_or(&mut self.first, |before| &mut before.after) = Some(number);
        self.last = Some(number);
        let rest = path.get(shared..).unwrap_or_default().to_vec();
        let stored = Stored { before, after: None, shared, rest, preserved, xattrs };
        self.by_number.insert(number, stored);
    }

    /// Connects the directories before and after one that was removed, and was not the last.
    fn unlink(&mut self, removed: Stored) {
        let Stored { before, after, .. } = removed;
        let link = before.and_then(|before| self.by_number.get_mut(&before));
        *link.map_or(&mut self.first, |before| &mut before.after) = after;
        let Some(next) = after.and_then(|after| self.by_number.get_mut(&after)) else { return };
        next.before = before;
        if let Some(more @ 1..) = next.shared.checked_sub(removed.shared) {
            let part = removed.rest.iter().take(more).copied();
            next.rest.splice(..0, part);
            next.shared = removed.shared;
        }
    }

    /// Calls `visit` for each directory. If a directory has several members, the last one is used.
    /// Errors: those of `visit`, which end the calls.
    pub fn for_each<E>(
        &self,
        mut visit: impl FnMut(&UnpackedDirectory<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut path = Vec::new();
        let mut next = self.first;
        while let Some((number, stored)) = next.and_then(|next| self.by_number.get_key_value(&next))
        {
            path.truncate(stored.shared);
            path.extend_from_slice(&stored.rest);
            let Stored { preserved, xattrs, .. } = stored;
            visit(&UnpackedDirectory { number: *number, path: &path, preserved, xattrs })?;
            next = stored.after;
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
        directories.add_path(InodeNumber(number), path.as_bytes(), preserved, Xattrs::default());
    }

    /// Returns the numbers, paths and owners of the directories, in order.
    fn all(directories: &Directories) -> Vec<(u64, String, u32)> {
        let mut found = Vec::new();
        let visited: Result<(), Infallible> = directories.for_each(|directory| {
            let path = String::from_utf8_lossy(directory.path).into_owned();
            found.push((directory.number.0, path, directory.preserved.uid));
            Ok(())
        });
        assert_eq!(visited, Ok(()));
        found
    }

    #[test]
    fn the_last_member_of_each_directory_is_visited_with_its_path() {
        let mut directories = Directories::default();
        for (number, path, uid) in
            [(12, "a", 1), (13, "a/b", 2), (14, "a/bc/d", 3), (15, "x", 4), (13, "./a/b/", 5)]
        {
            add(&mut directories, number, path, uid);
        }
        let found = all(&directories);
        let found: Vec<_> = found.iter().map(|(n, path, uid)| (*n, path.as_str(), *uid)).collect();
        assert_eq!(found, [(12, "a", 1), (14, "a/bc/d", 3), (15, "x", 4), (13, "./a/b/", 5)]);
    }

    #[test]
    fn any_order_of_members_keeps_the_last_of_each_directory() {
        let paths = ["a", "a/b", "a/b/c", "a/bd", "ab", "x/long/path", "x/long", "./a"];
        let mut random = testkit::Random(7);
        for _ in 0..500 {
            let mut directories = Directories::default();
            let mut model: Vec<(u64, String, u32)> = Vec::new();
            for uid in 0..40 {
                let number = random.below(6);
                let path = paths[random.below(paths.len() as u64) as usize];
                add(&mut directories, number, path, uid);
                model.retain(|(other, ..)| *other != number);
                model.push((number, path.to_owned(), uid));
                assert_eq!(all(&directories), model);
            }
        }
    }

    #[test]
    fn members_of_the_same_directories_take_no_more_memory() {
        let long = "d/".repeat(30_000);
        let mut directories = Directories::default();
        for uid in 0..100 {
            add(&mut directories, 12, &long, uid);
            add(&mut directories, 13, "x", uid);
        }
        let bytes: usize = directories.by_number.values().map(|stored| stored.rest.len()).sum();
        assert_eq!((directories.by_number.len(), bytes), (2, long.len() + 1));
    }

    #[test]
    fn paths_of_a_deep_tree_are_stored_as_their_names() {
        let mut directories = Directories::default();
        let mut path = String::new();
        for number in 0..1000 {
            path.push_str("/name");
            add(&mut directories, number, &path, 0);
        }
        let bytes: usize = directories.by_number.values().map(|stored| stored.rest.len()).sum();
        assert_eq!(bytes, path.len());
    }
}
