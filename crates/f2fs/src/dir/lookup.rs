//! Lookups of names in a directory: by hash, and by reading all entries if case foldings may
//! differ.

use std::borrow::Cow;

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Location, Result, Unsupported};
use fscrypt::{Names, NoKeyName, ShownNames, StoredName};

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
    Bytes(Cow<'n, [u8]>),
    /// By case folding. `names` decrypts stored names that are encrypted.
    Folded { name: &'n [u8], folded: Vec<u8>, names: Option<&'n Names> },
    /// By the form without the key.
    NoKey(NoKeyName),
}

/// The entry of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The inode.
    pub inode: InodeNumber,
    /// The inode's type, if the entry has a known one.
    pub kind: Option<FileType>,
    /// The directory's block with the entry. `None` if the directory is inline.
    pub block: Option<FileBlock>,
    /// The entry's first slot.
    pub slot: usize,
    /// The slot after the entry's last one.
    pub end: usize,
}

impl<'n> WantedName<'n> {
    /// Returns the name `name` for a lookup in the directory `shape`, which is not encrypted.
    ///
    /// # Errors
    ///
    /// - `NameTooLong`.
    /// - `InvalidArgument` if the volume refuses the name, which is not valid Unicode.
    pub fn new(name: &'n [u8], shape: &DirectoryShape) -> Result<Self> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        match shape.casefold.filter(|_| !is_dots(name)) {
            Some(casefold) => Self::with_casefold(name, casefold, None, shape),
            None => Ok(Self::exact(Cow::Borrowed(name))),
        }
    }

    /// Returns the name that is shown as `name` in the encrypted directory `shape`, for a lookup.
    /// `names` is the cipher of the directory, with the key.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new), and:
    ///
    /// - `NotFound` if no name is shown like that without the key.
    /// - `Unsupported` if the directory ignores case, and has a policy of version 1.
    pub fn encrypted(
        name: &'n [u8],
        names: Option<&'n Names>,
        shape: &DirectoryShape,
    ) -> Result<Self> {
        if is_dots(name) {
            return Self::new(name, shape);
        }
        match (StoredName::of(name, names)?, shape.casefold) {
            (StoredName::NoKey(name), casefold) => {
                let [hash, _] = name.dirhash();
                let linear_fallback = casefold.is_some_and(|casefold| casefold.linear_fallback);
                Ok(Self { hash, comparer: Comparer::NoKey(name), linear_fallback })
            }
            (StoredName::Encrypted(_), Some(casefold)) => {
                Self::with_casefold(name, casefold, names, shape)
            }
            (StoredName::Encrypted(stored), None) => Ok(Self::exact(Cow::Owned(stored))),
        }
    }

    /// Returns the name that is stored as `name` with hash `hash` in the directory `shape`.
    pub fn stored(name: &'n [u8], hash: u32, shape: &DirectoryShape) -> Self {
        let linear_fallback = shape.casefold.is_some_and(|casefold| casefold.linear_fallback);
        Self { hash, comparer: Comparer::Bytes(Cow::Borrowed(name)), linear_fallback }
    }

    /// Returns the name that is stored as `stored`, in a directory whose hashes are those of the
    /// stored names.
    fn exact(stored: Cow<'n, [u8]>) -> Self {
        let hash = name_hash(&stored);
        Self { hash, comparer: Comparer::Bytes(stored), linear_fallback: false }
    }

    /// Returns the name `name` in a directory that ignores case. `names` is the directory's cipher,
    /// if it is encrypted.
    fn with_casefold(
        name: &'n [u8],
        casefold: Casefold,
        names: Option<&'n Names>,
        shape: &DirectoryShape,
    ) -> Result<Self> {
        let Casefold { strict, linear_fallback } = casefold;
        let folded = fold(name);
        if folded.is_none() && strict {
            return Err(Error::InvalidArgument("the name is not valid Unicode"));
        }
        let hashed = folded.as_deref().unwrap_or(name);
        let hash = match names {
            // Only the lower half is stored.
            Some(names) => names.dirhash(hashed).map(|hash| hash as u32).ok_or({
                let feature = "an encryption policy of version 1 in a directory that ignores case";
                Unsupported::Inode { inode: shape.inode, feature }
            })?,
            None => name_hash(hashed),
        };
        let comparer = match (folded, names) {
            (Some(folded), names) => Comparer::Folded { name, folded, names },
            // What is not valid Unicode to one version may be valid, and folded, to another one.
            (None, None) => Comparer::Bytes(Cow::Borrowed(name)),
            (None, Some(names)) => Comparer::Bytes(Cow::Owned(names.encrypt(name)?)),
        };
        Ok(Self { hash, comparer, linear_fallback })
    }

    /// Returns whether this is the stored name `stored`. Errors: `Corrupt` if that cannot be
    /// decrypted.
    fn matches(&self, stored: &[u8]) -> Result<bool> {
        match &self.comparer {
            Comparer::Bytes(name) => Ok(**name == *stored),
            Comparer::NoKey(name) => Ok(!is_dots(stored) && name.matches(stored)),
            Comparer::Folded { name, folded, names } => {
                let shown = names.map_or(ShownNames::Plain, ShownNames::Decrypted);
                let stored = shown.name(stored, || [0; 2])?;
                Ok(**name == *stored || fold(&stored).is_some_and(|stored| stored == *folded))
            }
        }
    }
}

/// The stored form of a name.
#[derive(Clone, Debug)]
pub struct EntryName<'n> {
    /// The name in the entry.
    pub stored: Cow<'n, [u8]>,
    /// The hash in the entry.
    pub hash: u32,
    /// Whether `stored` is encrypted.
    pub is_encrypted: bool,
    /// Whether the hash depends on the key, so that a recovery cannot compute it.
    pub has_keyed_hash: bool,
}

impl<'n> EntryName<'n> {
    /// Returns the stored form that `name` gets in the directory `shape`. `names` is the
    /// directory's cipher, if it is encrypted. Errors: those of [`WantedName::new`] and
    /// [`WantedName::encrypted`].
    pub fn new(name: &'n [u8], names: Option<&Names>, shape: &DirectoryShape) -> Result<Self> {
        let names = names.filter(|_| !is_dots(name));
        let hash = match names {
            Some(_) => WantedName::encrypted(name, names, shape)?.hash,
            None => WantedName::new(name, shape)?.hash,
        };
        let stored = match names {
            Some(names) => Cow::Owned(names.encrypt(name)?),
            None => Cow::Borrowed(name),
        };
        let is_encrypted = names.is_some();
        let has_keyed_hash = is_encrypted && shape.casefold.is_some();
        Ok(Self { stored, hash, is_encrypted, has_keyed_hash })
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Returns the hash that the entry of a stored name has. `None` if only a caller with the key can
/// compute it.
pub(crate) fn stored_hash(name: &[u8], casefold: Option<Casefold>, encrypted: bool) -> Option<u32> {
    match casefold.filter(|_| !is_dots(name)) {
        None => Some(name_hash(name)),
        Some(_) if encrypted => None,
        Some(_) => Some(fold(name).map_or_else(|| name_hash(name), |folded| name_hash(&folded))),
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
    /// Returns the entry of a name; `None` if the directory does not have it. A search by hash
    /// reads at most 4 blocks per level.
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
        let found = find_in_area(&bytes, location, self.shape, wanted, search)?;
        Ok(found.map(|found| Found { block: Some(at), ..found }))
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

/// Returns the entry of a name in one dentry area. The checks of other entries are those that the
/// search needs.
fn find_in_area(
    bytes: &[u8],
    location: Location,
    shape: &DirectoryShape,
    wanted: &WantedName<'_>,
    search: Search,
) -> Result<Option<Found>> {
    for entry in Entries::new(bytes, location) {
        let entry = entry?;
        let is_compared = search == Search::Linear || entry.hash == wanted.hash;
        if is_compared && wanted.matches(entry.name)? {
            entry.check(&shape.entry_format(), location)?;
            return Ok(Some(Found {
                inode: entry.inode,
                kind: entry.kind,
                block: None,
                slot: entry.slot,
                end: entry.end,
            }));
        }
    }
    Ok(None)
}
