//! Removal of names from a directory, and changes of their inodes. Empty blocks stay in the
//! directory. Not here: adding names.

use base::attributes::FileType;
use base::{Error, FileBlock, InodeNumber, Problem, Result};
use fs::Piece;

use super::is_dots;
use super::lookup::Located;
use super::node::NodeKind;
use super::{Directory, STRUCTURE};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::journal::Handle;

impl Inode {
    /// Removes a name from this directory. Returns the name's inode.
    pub(crate) fn dir_remove(&self, handle: &mut Handle<'_>, name: &[u8]) -> Result<InodeNumber> {
        let directory = Directory::for_change(self)?;
        check_not_dots(name)?;
        if self.has(InodeFlags::INLINE_DATA) {
            return directory.remove_inline(handle, name);
        }
        let Located { block, location, found } = directory.locate(name)?;
        let format = directory.format.dir;
        directory.edit_leaf(handle, block, location, |leaf| format.remove(leaf, &found))?;
        Ok(found.inode)
    }

    /// Sets the inode of an existing name. Returns the previous one.
    pub(crate) fn dir_set_entry(
        &self,
        handle: &mut Handle<'_>,
        name: &[u8],
        number: InodeNumber,
        kind: FileType,
    ) -> Result<InodeNumber> {
        let directory = Directory::for_change(self)?;
        check_not_dots(name)?;
        let format = directory.format.dir;
        let entry = format.new_entry(name, number, kind);
        if self.has(InodeFlags::INLINE_DATA) {
            return directory.set_inline_entry(handle, &entry);
        }
        let Located { block, location, found } = directory.locate(name)?;
        directory.edit_leaf(handle, block, location, |leaf| {
            format.set_inode(leaf, found.range.0, number, entry.code);
        })?;
        Ok(found.inode)
    }

    /// Sets the inode of "..".
    pub(crate) fn dir_set_parent(
        &self,
        handle: &mut Handle<'_>,
        parent: InodeNumber,
    ) -> Result<()> {
        let directory = Directory::for_change(self)?;
        if self.has(InodeFlags::INLINE_DATA) {
            return directory.set_inline_parent(handle, parent);
        }
        let (buffer, location) = directory.read_referenced(FileBlock(0), directory.location())?;
        let dots = directory.format.dir.dots(&buffer, location)?;
        let (start, code) = (dots.parent_start, dots.entries[1].code);
        let (format, is_hashed) = (directory.format, directory.is_hashed);
        handle.edit(buffer.block(), STRUCTURE, location, |block| {
            format.dir.set_inode(block, start, parent, code);
            if is_hashed {
                format.seal_node(block, NodeKind::Root);
            } else {
                format.dir.seal_leaf(block);
            }
        })
    }

    /// Returns whether this directory has no names except "." and "..". Errors: also `Corrupt` if
    /// it has a block behind its size, in which there may be names. Directories are dense, so that
    /// would be the next one.
    pub(crate) fn dir_is_empty(&self) -> Result<bool> {
        let directory = Directory::open(self)?;
        if self.has(InodeFlags::INLINE_DATA) {
            return directory.is_inline_empty();
        }
        let (mut at, mut blocks_read) = (FileBlock(0), 0);
        while let Some(block) = directory.next_block(at)? {
            directory.count_read(&mut blocks_read)?;
            if let Some((buffer, location)) = directory.read(block)? {
                for entry in directory.format.dir.used(&buffer, location) {
                    if !is_dots(entry?.name) {
                        return Ok(false);
                    }
                }
            }
            at = FileBlock(block.0 + 1);
        }
        let (next, end) = (directory.blocks, FileBlock(directory.blocks.0 + 1));
        // Old kernels allocated blocks without names ahead (`dir_prealloc`).
        let may_be_ahead = self.volume().geometry().features.has(Feature::DirPrealloc);
        if next.0 < self.map_end().0 && !may_be_ahead {
            if let Piece::Run(_) = self.piece_at(next, end)? {
                let block_size = u64::from(directory.format.dir.block_size.bytes());
                let (found, expected) = (self.size(), end.0 * block_size);
                let problem = Problem::Mismatch { field: "size", found, expected };
                return Err(Error::corrupt(STRUCTURE, directory.location(), problem));
            }
        }
        Ok(true)
    }
}

fn check_not_dots(name: &[u8]) -> Result<()> {
    if is_dots(name) {
        return Err(Error::InvalidArgument("\".\" and \"..\" cannot be removed"));
    }
    Ok(())
}

impl Directory<'_> {
    /// Returns the position of a name. Errors: `NotFound`.
    fn locate(&self, name: &[u8]) -> Result<Located> {
        self.find(name)?.ok_or(Error::NotFound)
    }
}
