//! Lookups of names in a directory: by its hash index if there is one, otherwise block by block.
//!
//! As in the kernel, an inconsistent index is not used, since the entries can be found without it.
//! But an index block that is missing or has a wrong checksum is an error.

use std::ops::ControlFlow;

use base::attributes::DirCursor;
use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result};
use fscrypt::{NoKeyName, StoredName};
use iomap::MetadataBuffer;

use super::hash::NameHasher;
use super::leaf::Found;
use super::{Directory, NAME_BYTES_MAX, STRUCTURE, is_dots};
use crate::dir::inline::InlineDirectory;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;

/// The position of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    /// The block of the volume that has the entry.
    pub block: FsBlock,
    pub location: Location,
    pub found: Found,
}

/// Result of a search by an index.
enum ByIndex {
    /// The name's position, or `None` if the directory does not have it.
    Known(Option<Located>),
    /// The index is inconsistent.
    Unusable(Error),
}

/// The path from an index's root to a leaf.
pub(super) struct Path {
    pub hasher: NameHasher,
    /// Index levels below the root.
    pub levels: u8,
    /// The index blocks, the root first: one more than `levels`.
    pub entries: Vec<PathEntry>,
}

/// An index block on the path, and its slot that the path follows.
pub(super) struct PathEntry {
    pub block: FileBlock,
    pub buffer: MetadataBuffer,
    pub location: Location,
    pub slot: usize,
}

impl Inode {
    /// Returns the inode of `name` in this directory. Errors: `NotFound`. Names are compared byte
    /// by byte, even if the directory ignores case. In an encrypted directory, `name` is a name
    /// that [`read_dir`](Self::read_dir) shows.
    pub fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        self.find_inode(name).inspect_err(|error| self.volume().apply_error_policy(error))
    }

    fn find_inode(&self, name: &[u8]) -> Result<InodeNumber> {
        let directory = Directory::open(self)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let found = if is_dots(name) || !self.has_encrypted_names() {
            directory.find_stored(name)?
        } else {
            match StoredName::of(name, self.names_cipher()?)? {
                StoredName::Encrypted(name) => directory.find_stored(&name)?,
                StoredName::NoKey(name) => directory.find_no_key(&name)?,
            }
        };
        let inode = found.ok_or(Error::NotFound)?;
        if inode == self.number() && !is_dots(name) {
            let problem = Problem::Invalid { field: "inode", found: inode.0 };
            return Err(Error::corrupt("directory entry", Location::inode(inode), problem));
        }
        Ok(inode)
    }
}

impl Directory<'_> {
    /// Returns the inode of the entry with the stored name `name`.
    fn find_stored(&self, name: &[u8]) -> Result<Option<InodeNumber>> {
        if self.inode.has(InodeFlags::INLINE_DATA) {
            let record = self.inode.record();
            return InlineDirectory::open(self.inode.volume(), &record)?
                .find(&self.format.dir, name);
        }
        Ok(self.find(name)?.map(|located| located.found.inode))
    }

    /// Returns the inode of the entry whose name without the key is `name`.
    fn find_no_key(&self, name: &NoKeyName) -> Result<Option<InodeNumber>> {
        if let Some(stored) = name.stored() {
            return self.find_stored(stored);
        }
        let mut found = None;
        self.list_stored(DirCursor::default(), &mut |entry| {
            if is_dots(entry.name) || !name.matches(entry.name) {
                return ControlFlow::Continue(());
            }
            found = Some(entry.inode);
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Returns the position of a name.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<Located>> {
        if is_dots(name) {
            return self.find_in_block(FileBlock(0), name);
        }
        let features = &self.inode.volume().geometry().features;
        // A directory that ignores case is hashed by the folded names.
        if self.is_hashed
            && features.has(Feature::DirIndex)
            && !self.inode.has(InodeFlags::CASEFOLD)
        {
            match self.find_by_index(name)? {
                ByIndex::Known(found) => return Ok(found),
                ByIndex::Unusable(error) => tracing::warn!("searching without the index: {error}"),
            }
        }
        self.find_by_reading_all(name)
    }

    fn find_by_reading_all(&self, name: &[u8]) -> Result<Option<Located>> {
        let (mut at, mut blocks_read) = (FileBlock(0), 0);
        while let Some(block) = self.next_block(at)? {
            self.count_read(&mut blocks_read)?;
            if let Some(found) = self.find_in_block(block, name)? {
                return Ok(Some(found));
            }
            at = FileBlock(block.0 + 1);
        }
        Ok(None)
    }

    fn find_in_block(&self, at: FileBlock, name: &[u8]) -> Result<Option<Located>> {
        match self.read(at)? {
            Some((buffer, location)) => self.find_in(&buffer, location, name),
            None => Ok(None),
        }
    }

    /// Returns the position of a name in a leaf.
    pub(super) fn find_in(
        &self,
        leaf: &MetadataBuffer,
        location: Location,
        name: &[u8],
    ) -> Result<Option<Located>> {
        let found = self.format.dir.find(leaf, location, name)?;
        Ok(found.map(|found| Located { block: leaf.block(), location, found }))
    }

    fn find_by_index(&self, name: &[u8]) -> Result<ByIndex> {
        let (mut path, hash) = match self.path_to(name)? {
            Ok(path) => path,
            Err(error) => return Ok(ByIndex::Unusable(error)),
        };
        match self.find_from(&mut path, hash, name)? {
            Ok(found) => Ok(ByIndex::Known(found)),
            Err(error) => Ok(ByIndex::Unusable(error)),
        }
    }

    /// Returns the path to the first leaf that may have a name, and the name's hash. The inner
    /// result is an error if the index is inconsistent.
    pub(super) fn path_to(&self, name: &[u8]) -> Result<Result<(Path, u32), Error>> {
        let mut hash = 0;
        let path = self.path_by(|hasher| {
            hash = hasher.hash(name).major;
            hash
        })?;
        Ok(path.map(|path| (path, hash)))
    }

    /// Returns the path to the first leaf that may have names of a hash.
    pub(super) fn path_by(
        &self,
        hash: impl FnOnce(&NameHasher) -> u32,
    ) -> Result<Result<Path, Error>> {
        let (buffer, location) =
            self.read_referenced(FileBlock(0), Location::inode(self.inode.number()))?;
        let (hash, hasher, levels, slot) = match self.format.parse_root(&buffer, location) {
            Ok(root) => {
                let hash = hash(&root.hasher);
                (hash, root.hasher, root.levels, root.node.search(hash))
            }
            Err(error) => return Ok(Err(error)),
        };
        let entries = vec![PathEntry { block: FileBlock(0), buffer, location, slot }];
        let mut path = Path { hasher, levels, entries };
        Ok(self.descend(&mut path, Some(hash))?.map(|()| path))
    }

    /// Searches for a name, from the leaf at the end of the path on. The inner result is an error
    /// if the index is inconsistent.
    fn find_from(
        &self,
        path: &mut Path,
        hash: u32,
        name: &[u8],
    ) -> Result<Result<Option<Located>, Error>> {
        let mut leaves_read = 0;
        loop {
            self.count_read(&mut leaves_read)?;
            let Some((leaf, location)) = self.child(path)? else { return Ok(Ok(None)) };
            let (leaf, location) = self.read_referenced(leaf, location)?;
            if let Some(found) = self.find_in(&leaf, location, name)? {
                return Ok(Ok(Some(found)));
            }
            // Names of this hash may continue in the next leaf. Then the next slot has the same
            // hash, with its lowest bit set.
            if self.advance(path)?.is_none_or(|next| next & !1 != hash) {
                return Ok(Ok(None));
            }
            if let Err(error) = self.descend(path, None)? {
                return Ok(Err(error));
            }
        }
    }

    /// Extends the path to the last level of the index: to the slot for `hash`, or to the first
    /// slot. The inner result is an error if the index is inconsistent, also if the slot's leaf is
    /// one of the index's blocks.
    pub(super) fn descend(&self, path: &mut Path, hash: Option<u32>) -> Result<Result<(), Error>> {
        while let Some((block, location)) = self.child(path)? {
            if path.entries.iter().any(|entry| entry.block == block) {
                return Ok(Err(Error::corrupt("directory index", location, Problem::Cycle)));
            }
            if path.entries.len() > usize::from(path.levels) {
                break;
            }
            let (buffer, location) = self.read_referenced(block, location)?;
            let slot = match self.format.parse_node(&buffer, location) {
                Ok(node) => hash.map_or(0, |hash| node.search(hash)),
                Err(error) => return Ok(Err(error)),
            };
            path.entries.push(PathEntry { block, buffer, location, slot });
        }
        Ok(Ok(()))
    }

    /// Moves the end of the path to the next slot. At the end of a block, continues in the block
    /// above. Returns the slot's hash, with the mark of continued hashes; `None` at the end of the
    /// index.
    pub(super) fn advance(&self, path: &mut Path) -> Result<Option<u32>> {
        while let Some(entry) = path.entries.last_mut() {
            entry.slot += 1;
            if let Some(hash) = self.node(entry)?.hash(entry.slot) {
                return Ok(Some(hash));
            }
            path.entries.pop();
        }
        Ok(None)
    }

    /// Returns the block that the end of the path refers to, and the location of the reference.
    pub(super) fn child(&self, path: &Path) -> Result<Option<(FileBlock, Location)>> {
        let Some(entry) = path.entries.last() else { return Ok(None) };
        Ok(self.node(entry)?.block(entry.slot).map(|block| (block, entry.location)))
    }

    pub(super) fn node<'s>(&self, entry: &'s PathEntry) -> Result<super::index::IndexNode<'s>> {
        if entry.block == FileBlock(0) {
            self.format.parse_root(&entry.buffer, entry.location).map(|root| root.node)
        } else {
            self.format.parse_node(&entry.buffer, entry.location)
        }
    }

    /// Reads a block that the structure at `location` refers to. Errors: `Corrupt` if the directory
    /// does not have it.
    pub(super) fn read_referenced(
        &self,
        at: FileBlock,
        location: Location,
    ) -> Result<(MetadataBuffer, Location)> {
        self.read(at)?.ok_or_else(|| {
            let (found, max) = (at.0, self.blocks.0.saturating_sub(1));
            let problem = if found > max {
                Problem::Range { field: "block", found, min: 0, max }
            } else {
                Problem::Missing("block")
            };
            Error::corrupt(STRUCTURE, location, problem)
        })
    }
}
