//! Finds a name in a directory: through the hash index where there is one, else block by block.
//!
//! As in the kernel, an index that makes no sense is not used (the entries can be found without
//! it), but a block of it that is missing or has a wrong checksum is an error.

use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result};
use iomap::MetadataBuffer;

use super::hash::NameHasher;
use super::leaf::Found;
use super::{Directory, NAME_BYTES_MAX, STRUCTURE};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::inline::InlineDirectory;
use crate::inode::record::InodeFlags;

/// Where a name is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located {
    /// The block of the volume that its entry is in.
    pub block: FsBlock,
    pub location: Location,
    pub found: Found,
}

/// What an index gives.
enum ByIndex {
    /// Where the name is, if it is there.
    Known(Option<Located>),
    /// The index makes no sense.
    Unusable(Error),
}

/// The way from an index's root to a leaf.
pub(super) struct Path {
    pub hasher: NameHasher,
    /// Index levels below the root.
    pub levels: u8,
    /// The index blocks, the root first: one more than `levels`.
    pub steps: Vec<Step>,
}

/// An index block on the way from the root to a leaf, and the slot that was taken.
pub(super) struct Step {
    pub block: FileBlock,
    pub buffer: MetadataBuffer,
    pub location: Location,
    pub slot: usize,
}

impl Inode {
    /// The inode that `name` stands for in this directory; `NotFound` when there is none. Names
    /// are compared byte by byte, also where the directory ignores case.
    pub fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        self.look_up(name).inspect_err(|error| self.volume().found(error))
    }

    fn look_up(&self, name: &[u8]) -> Result<InodeNumber> {
        let directory = Directory::open(self)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let found = if self.has(InodeFlags::INLINE_DATA) {
            InlineDirectory::open(self.volume(), &self.record())?
                .find(&directory.format.dir, name)?
        } else {
            directory.find(name)?.map(|located| located.found.inode)
        };
        let inode = found.ok_or(Error::NotFound)?;
        if inode == self.number() && !is_dots(name) {
            let problem = Problem::Invalid { field: "inode", found: inode.0 };
            return Err(Error::corrupt("directory entry", Location::inode(inode), problem));
        }
        Ok(inode)
    }
}

pub(super) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl Directory<'_> {
    /// Where a name is.
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

    /// Where a name is in a leaf.
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

    /// The way to the first leaf that may have a name, and the name's hash. The inner result is
    /// about the index making no sense.
    pub(super) fn path_to(&self, name: &[u8]) -> Result<Result<(Path, u32), Error>> {
        let mut hash = 0;
        let path = self.path_by(|hasher| {
            hash = hasher.hash(name).major;
            hash
        })?;
        Ok(path.map(|path| (path, hash)))
    }

    /// The way to the first leaf that may have names of a hash.
    pub(super) fn path_by(
        &self,
        hash: impl FnOnce(&NameHasher) -> u32,
    ) -> Result<Result<Path, Error>> {
        let (buffer, location) =
            self.read_named(FileBlock(0), Location::inode(self.inode.number()))?;
        let (hash, hasher, levels, slot) = match self.format.parse_root(&buffer, location) {
            Ok(root) => {
                let hash = hash(&root.hasher);
                (hash, root.hasher, root.levels, root.node.search(hash))
            }
            Err(error) => return Ok(Err(error)),
        };
        let steps = vec![Step { block: FileBlock(0), buffer, location, slot }];
        let mut path = Path { hasher, levels, steps };
        Ok(self.descend(&mut path, Some(hash))?.map(|()| path))
    }

    /// Searches the leaves that may have a name, from the one that the path leads to.
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
            let (leaf, location) = self.read_named(leaf, location)?;
            if let Some(found) = self.find_in(&leaf, location, name)? {
                return Ok(Ok(Some(found)));
            }
            // Names of this hash may go on in the next leaf, whose hash then is the same.
            // The lowest bit only says that the hash goes on.
            if self.advance(path)?.is_none_or(|next| next & !1 != hash) {
                return Ok(Ok(None));
            }
            if let Err(error) = self.descend(path, None)? {
                return Ok(Err(error));
            }
        }
    }

    /// Extends the path down to the last level of the index: to the slot for `hash`, or to the
    /// first one. The inner result is about the index making no sense.
    pub(super) fn descend(&self, path: &mut Path, hash: Option<u32>) -> Result<Result<(), Error>> {
        while path.steps.len() <= usize::from(path.levels) {
            let Some((block, location)) = self.child(path)? else { break };
            if path.steps.iter().any(|step| step.block == block) {
                return Ok(Err(Error::corrupt("directory index", location, Problem::Cycle)));
            }
            let (buffer, location) = self.read_named(block, location)?;
            let slot = match self.format.parse_node(&buffer, location) {
                Ok(node) => hash.map_or(0, |hash| node.search(hash)),
                Err(error) => return Ok(Err(error)),
            };
            path.steps.push(Step { block, buffer, location, slot });
        }
        Ok(Ok(()))
    }

    /// Moves the end of the path to the next slot, going up where a block ends, and gives that
    /// slot's hash, with the mark of continued hashes; `None` at the end of the index.
    pub(super) fn advance(&self, path: &mut Path) -> Result<Option<u32>> {
        while let Some(step) = path.steps.last_mut() {
            step.slot += 1;
            if let Some(hash) = self.node(step)?.hash(step.slot) {
                return Ok(Some(hash));
            }
            path.steps.pop();
        }
        Ok(None)
    }

    /// The block that the end of the path names, and the place that names it.
    pub(super) fn child(&self, path: &Path) -> Result<Option<(FileBlock, Location)>> {
        let Some(step) = path.steps.last() else { return Ok(None) };
        Ok(self.node(step)?.block(step.slot).map(|block| (block, step.location)))
    }

    pub(super) fn node<'s>(&self, step: &'s Step) -> Result<super::index::IndexNode<'s>> {
        if step.block == FileBlock(0) {
            self.format.parse_root(&step.buffer, step.location).map(|root| root.node)
        } else {
            self.format.parse_node(&step.buffer, step.location)
        }
    }

    /// A block that `location` names, and so must be there.
    pub(super) fn read_named(
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
