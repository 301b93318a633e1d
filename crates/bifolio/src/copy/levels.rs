//! The directories that the walk of a copy is in, and the names that they have got.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::destination::Directory;

/// The number of names that are remembered, in all directories that the walk is in: some 300 MB of
/// memory.
pub const NAMES_MAX: usize = 16 << 20;

/// A name of an entry that the walk has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    New,
    /// The directory has got a file of this name before, which another one would replace.
    Twice,
    /// There are too many to know that.
    TooMany,
}

/// A directory that the walk is in.
struct Level {
    directory: Arc<Directory>,
    /// The hashes of the names that it has got.
    names: HashSet<u64>,
}

/// The directories from the start of a copy down to the current one.
pub struct Levels {
    levels: Vec<Level>,
    /// The key of the hashes: random, so that no image has two names with the same hash on purpose.
    key: RandomState,
    /// The number of names that may still be remembered.
    left: usize,
}

impl Levels {
    /// Returns no directories. `names_max` names are remembered.
    pub fn new(names_max: usize) -> Self {
        Self { levels: Vec::new(), key: RandomState::new(), left: names_max }
    }

    /// Enters a directory.
    pub fn push(&mut self, directory: Arc<Directory>) {
        self.levels.push(Level { directory, names: HashSet::new() });
    }

    /// Leaves the current directory, and returns it.
    pub fn pop(&mut self) -> Option<Arc<Directory>> {
        let level = self.levels.pop()?;
        self.left += level.names.len();
        Some(level.directory)
    }

    /// Returns the current directory.
    pub fn current(&self) -> Option<&Arc<Directory>> {
        self.levels.last().map(|level| &level.directory)
    }

    /// Remembers a name of the current directory.
    pub fn add_name(&mut self, name: &[u8]) -> Name {
        let Some(level) = self.levels.last_mut() else { return Name::New };
        let hash = self.key.hash_one(name);
        if level.names.contains(&hash) {
            return Name::Twice;
        }
        let Some(left) = self.left.checked_sub(1) else { return Name::TooMany };
        self.left = left;
        level.names.insert(hash);
        Name::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_remembered_up_to_a_limit_for_all_directories() {
        let folder = tempfile::tempdir().unwrap();
        let directory = || {
            let opened = std::fs::File::open(folder.path()).unwrap();
            Arc::new(Directory::at_start(opened.into(), None, false, None))
        };
        let mut levels = Levels::new(3);
        levels.push(directory());
        assert_eq!(
            [b"a", b"b", b"a"].map(|name| levels.add_name(name)),
            [Name::New, Name::New, Name::Twice]
        );
        levels.push(directory());
        assert_eq!(
            [b"a", b"b", b"a"].map(|name| levels.add_name(name)),
            [Name::New, Name::TooMany, Name::Twice]
        );
        levels.pop();
        assert_eq!(
            [b"b", b"c", b"d"].map(|name| levels.add_name(name)),
            [Name::Twice, Name::New, Name::TooMany]
        );
    }
}
