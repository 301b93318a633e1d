//! Finds a name in a directory: through the hash index where there is one, else block by block.
//!
//! As in the kernel, an index that makes no sense is not used (the entries can be found without
//! it), but a block of it that is missing or has a wrong checksum is an error.

use base::{Error, FileBlock, InodeNumber, Place, Problem, Result};
use iomap::MetadataBuffer;

use super::block::DirFormat;
use super::{Directory, NAME_BYTES_MAX, STRUCTURE};
use crate::features::Feature;
use crate::inline::InlineDirectory;
use crate::inode::Inode;
use crate::inode_record::InodeFlags;

/// What an index gives.
enum ByIndex {
    /// The name's inode, if the name is there.
    Known(Option<InodeNumber>),
    /// The index makes no sense.
    Unusable(Error),
}

/// An index block on the way from the root to a leaf, and the slot that was taken.
struct Step {
    block: FileBlock,
    buffer: MetadataBuffer,
    place: Place,
    slot: usize,
}

impl Inode {
    /// The inode that `name` stands for in this directory; `NotFound` when there is none. Names
    /// are compared byte by byte, also where the directory ignores case.
    pub fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        let directory = Directory::open(self)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let found = if self.has(InodeFlags::INLINE_DATA) {
            InlineDirectory::open(self.volume(), &self.record())?
                .find(&directory.format.dir, name)?
        } else {
            directory.find(name)?
        };
        let inode = found.ok_or(Error::NotFound)?;
        if inode == self.number() && !is_dots(name) {
            let problem = Problem::Invalid { field: "inode", found: inode.0 };
            return Err(Error::corrupt("directory entry", Place::inode(inode), problem));
        }
        Ok(inode)
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// The inode of a name among the entries of a block.
pub(crate) fn find_slot(
    format: &DirFormat,
    bytes: &[u8],
    place: Place,
    name: &[u8],
) -> Result<Option<InodeNumber>> {
    for slot in format.slots(bytes, place) {
        let slot = slot?;
        if slot.name == name && slot.inode.is_some() {
            return Ok(slot.inode);
        }
    }
    Ok(None)
}

impl Directory<'_> {
    fn find(&self, name: &[u8]) -> Result<Option<InodeNumber>> {
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

    fn find_by_reading_all(&self, name: &[u8]) -> Result<Option<InodeNumber>> {
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

    fn find_in_block(&self, at: FileBlock, name: &[u8]) -> Result<Option<InodeNumber>> {
        match self.read(at)? {
            Some((buffer, place)) => find_slot(&self.format.dir, &buffer, place, name),
            None => Ok(None),
        }
    }

    fn find_by_index(&self, name: &[u8]) -> Result<ByIndex> {
        let (buffer, place) = self.read_named(FileBlock(0), Place::inode(self.inode.number()))?;
        let (hash, levels, slot) = match self.format.parse_root(&buffer, place) {
            Ok(root) => {
                let hash = root.hasher.hash(name).major;
                (hash, root.levels, root.node.search(hash))
            }
            Err(error) => return Ok(ByIndex::Unusable(error)),
        };
        let mut path = vec![Step { block: FileBlock(0), buffer, place, slot }];
        if let Err(error) = self.descend(&mut path, levels, Some(hash))? {
            return Ok(ByIndex::Unusable(error));
        }
        let mut leaves_read = 0;
        loop {
            self.count_read(&mut leaves_read)?;
            let Some((leaf, place)) = self.child(&path)? else {
                return Ok(ByIndex::Known(None));
            };
            let (leaf, place) = self.read_named(leaf, place)?;
            if let Some(found) = find_slot(&self.format.dir, &leaf, place, name)? {
                return Ok(ByIndex::Known(Some(found)));
            }
            // Names of this hash may go on in the next leaf, whose hash then is the same.
            if !self.advance(&mut path, hash)? {
                return Ok(ByIndex::Known(None));
            }
            if let Err(error) = self.descend(&mut path, levels, None)? {
                return Ok(ByIndex::Unusable(error));
            }
        }
    }

    /// Extends the path down to the last level of the index: to the slot for `hash`, or to the
    /// first one. The inner result is about the index making no sense.
    fn descend(
        &self,
        path: &mut Vec<Step>,
        levels: u8,
        hash: Option<u32>,
    ) -> Result<Result<(), Error>> {
        while path.len() <= usize::from(levels) {
            let Some((block, place)) = self.child(path)? else { break };
            if path.iter().any(|step| step.block == block) {
                return Ok(Err(Error::corrupt("directory index", place, Problem::Cycle)));
            }
            let (buffer, place) = self.read_named(block, place)?;
            let slot = match self.format.parse_node(&buffer, place) {
                Ok(node) => hash.map_or(0, |hash| node.search(hash)),
                Err(error) => return Ok(Err(error)),
            };
            path.push(Step { block, buffer, place, slot });
        }
        Ok(Ok(()))
    }

    /// Moves the end of the path to the next leaf's index block, going up where a block ends;
    /// false when no name of this hash can be there.
    fn advance(&self, path: &mut Vec<Step>, hash: u32) -> Result<bool> {
        while let Some(step) = path.last_mut() {
            step.slot += 1;
            let node = self.node(step)?;
            if step.slot < node.len() {
                // The lowest bit only says that the hash goes on.
                return Ok(node.hash(step.slot).is_some_and(|next| next & !1 == hash));
            }
            path.pop();
        }
        Ok(false)
    }

    /// The block that the end of the path names, and the place that names it.
    fn child(&self, path: &[Step]) -> Result<Option<(FileBlock, Place)>> {
        let Some(step) = path.last() else { return Ok(None) };
        Ok(self.node(step)?.block(step.slot).map(|block| (block, step.place)))
    }

    fn node<'s>(&self, step: &'s Step) -> Result<super::index::IndexNode<'s>> {
        if step.block == FileBlock(0) {
            self.format.parse_root(&step.buffer, step.place).map(|root| root.node)
        } else {
            self.format.parse_node(&step.buffer, step.place)
        }
    }

    /// A block that `place` names, and so must be there.
    fn read_named(&self, at: FileBlock, place: Place) -> Result<(MetadataBuffer, Place)> {
        self.read(at)?.ok_or_else(|| {
            let (found, max) = (at.0, self.blocks.0.saturating_sub(1));
            let problem = if found > max {
                Problem::Range { field: "block", found, min: 0, max }
            } else {
                Problem::Missing("block")
            };
            Error::corrupt(STRUCTURE, place, problem)
        })
    }
}
