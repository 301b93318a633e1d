//! Lookups of names in a directory: by hash, and by reading all entries if case foldings may differ.
//! Not here: encryption. A caller with a key compares names itself.

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Location, Result, Unsupported};

use super::entries::Entries;
use super::fold::fold;
use super::hash::name_hash;
use super::levels;
use super::{Blocks, Casefold, Directory, DirectoryShape, InlineDirectory, NAME_BYTES_MAX};

/// A name to look up in one directory.
pub struct WantedName<'n> {
    hash: u32,
    comparer: Comparer<'n>,
    /// Whether all entries are searched if none with the hash matches.
    linear_fallback: bool,
}

/// A comparison of the wanted name with a stored one.
enum Comparer<'n> {
    /// Byte by byte.
    Bytes(&'n [u8]),
    /// By case folding.
    Folded { name: &'n [u8], folded: Vec<u8> },
    /// By the caller.
    Given(&'n dyn Fn(&[u8]) -> bool),
}

/// The entry of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The inode.
    pub inode: InodeNumber,
    /// The inode's type, if the entry has a known one.
    pub kind: Option<FileType>,
}

impl<'n> WantedName<'n> {
    /// Returns the name `name` for a lookup in the directory `shape`. In an encrypted directory, `name` is the
    /// encrypted name.
    ///
    /// # Errors
    ///
    /// - `NameTooLong`.
    /// - `InvalidArgument` if the volume refuses the name, which is not valid Unicode.
    /// - `Unsupported` if the directory is encrypted and ignores case, which needs [`WantedName::matching`].
    pub fn new(name: &'n [u8], shape: &DirectoryShape) -> Result<Self> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let exact =
            Self { hash: name_hash(name), comparer: Comparer::Bytes(name), linear_fallback: false };
        let Some(casefold) = shape.casefold.filter(|_| !matches!(name, b"." | b"..")) else {
            return Ok(exact);
        };
        if shape.encrypted {
            return Err(Unsupported::Encrypted(shape.inode).into());
        }
        let Casefold { strict, linear_fallback } = casefold;
        match fold(name) {
            Some(folded) => {
                let hash = name_hash(&folded);
                Ok(Self { hash, comparer: Comparer::Folded { name, folded }, linear_fallback })
            }
            None if strict => Err(Error::InvalidArgument("the name is not valid Unicode")),
            // What is not valid Unicode to one version may be valid, and folded, to another one.
            None => Ok(Self { linear_fallback, ..exact }),
        }
    }

    /// Returns the name with hash `hash` that `matches` recognizes in its stored form.
    pub fn matching(hash: u32, matches: &'n dyn Fn(&[u8]) -> bool, shape: &DirectoryShape) -> Self {
        let linear_fallback = shape.casefold.is_some_and(|casefold| casefold.linear_fallback);
        Self { hash, comparer: Comparer::Given(matches), linear_fallback }
    }

    /// Returns whether this is the stored name `name`.
    fn matches(&self, stored: &[u8]) -> bool {
        match &self.comparer {
            Comparer::Bytes(name) => *name == stored,
            Comparer::Folded { name, folded } => {
                *name == stored || fold(stored).is_some_and(|stored| stored == *folded)
            }
            Comparer::Given(matches) => matches(stored),
        }
    }
}

/// The entries that a search compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    /// Those with the name's hash.
    ByHash,
    /// All.
    Linear,
}

impl<B: Blocks> Directory<'_, B> {
    /// Returns the entry of a name; `None` if the directory does not have it. A search by hash reads at most 4 blocks
    /// per level.
    pub fn lookup(&self, wanted: &WantedName<'_>) -> Result<Option<Found>> {
        let found = self.find_by_hash(wanted)?;
        if found.is_none() && wanted.linear_fallback {
            return self.find_by_reading_all(wanted);
        }
        Ok(found)
    }

    fn find_by_hash(&self, wanted: &WantedName<'_>) -> Result<Option<Found>> {
        for bucket in levels::buckets(wanted.hash, self.shape.depth, self.shape.dir_level) {
            for at in bucket.start.0..bucket.end.0 {
                if let Some(found) = self.find_in_block(FileBlock(at), wanted, Search::ByHash)? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    fn find_by_reading_all(&self, wanted: &WantedName<'_>) -> Result<Option<Found>> {
        let mut at = FileBlock(0);
        let mut blocks_read = 0;
        while let Some(block) = self.next_mapped(at)? {
            self.count_read(&mut blocks_read)?;
            if let Some(found) = self.find_in_block(block, wanted, Search::Linear)? {
                return Ok(Some(found));
            }
            at = FileBlock(block.0 + 1);
        }
        Ok(None)
    }

    fn find_in_block(
        &self,
        at: FileBlock,
        wanted: &WantedName<'_>,
        search: Search,
    ) -> Result<Option<Found>> {
        let Some((bytes, location)) = self.block(at)? else { return Ok(None) };
        find_in_area(&bytes, location, self.shape, wanted, search)
    }
}

impl InlineDirectory<'_> {
    /// Returns the entry of a name; `None` if the directory does not have it.
    pub fn lookup(&self, wanted: &WantedName<'_>) -> Result<Option<Found>> {
        let find = |search| find_in_area(self.area, self.location, self.shape, wanted, search);
        match find(Search::ByHash)? {
            None if wanted.linear_fallback => find(Search::Linear),
            found => Ok(found),
        }
    }
}

/// Returns the entry of a name in one dentry area. The checks of other entries are those that the search needs.
fn find_in_area(
    bytes: &[u8],
    location: Location,
    shape: &DirectoryShape,
    wanted: &WantedName<'_>,
    search: Search,
) -> Result<Option<Found>> {
    for entry in Entries::new(bytes, location) {
        let entry = entry?;
        if (search == Search::Linear || entry.hash == wanted.hash) && wanted.matches(entry.name) {
            entry.check(&shape.entry_format(), location)?;
            return Ok(Some(Found { inode: entry.inode, kind: entry.kind }));
        }
    }
    Ok(None)
}
