//! Creation of directories, and of the index of a directory that has one block.
//! Not here: growing the index (`insert.rs`).

use base::{FileBlock, InodeNumber, Result};

use super::Directory;
use super::hash::HashAlgorithm;
use super::leaf::NewEntry;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::journal::Handle;

impl Inode {
    /// Writes "." and ".." to this directory, which has no data yet: to the inode if the volume has
    /// inline data and the inode has room for it, otherwise to a block.
    pub(crate) fn dir_init(&self, handle: &mut Handle<'_>, parent: InodeNumber) -> Result<()> {
        let directory = Directory::for_change(self)?;
        if self.volume().geometry().features.has(Feature::InlineData)
            && directory.init_inline(handle, parent)?
        {
            return Ok(());
        }
        let format = directory.format.dir;
        let leaf = format.new_leaf(format.dot_entries(parent));
        directory.append(handle, leaf).map(|_| ())
    }
}

impl Directory<'_> {
    /// Moves all names except "." and ".." from the only block to a leaf, and makes that block the
    /// root of an index.
    pub(super) fn build_index(
        &self,
        handle: &mut Handle<'_>,
        algorithm: HashAlgorithm,
    ) -> Result<()> {
        let format = self.format.dir;
        let (buffer, location) = self.read_referenced(FileBlock(0), self.location())?;
        let dots = format.dots(&buffer, location)?;
        let others = format.entries(&buffer).get(dots.end..).unwrap_or_default();
        let others: Vec<NewEntry<'_>> =
            format.used(others, location.at_byte(dots.end as u64)).collect::<Result<_>>()?;
        let leaf = self.append(handle, format.new_leaf(others))?;
        let root = self.format.new_root(dots.entries, algorithm, leaf);
        self.rewrite(handle, buffer.block(), location, &root)?;
        self.inode.update(handle, |record| record.flags.0 |= InodeFlags::INDEX.0)
    }
}
