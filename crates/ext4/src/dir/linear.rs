//! Removal of the hash index of a directory, to which a recovery adds names whose hashes are unknown: those that
//! ignore case. Not here: adding them.

use base::{FileBlock, Result};

use super::Directory;
use crate::inode::Inode;
use crate::inode_record::InodeFlags;

impl Inode {
    /// Makes leaves of the blocks of this directory's index, one transaction for each. The first one keeps "." and
    /// "..".
    pub(crate) fn dir_drop_index(&self) -> Result<()> {
        let directory = Directory::for_change(self)?;
        let format = directory.format.dir;
        let (mut at, mut blocks_read) = (FileBlock(0), 0);
        while let Some(block) = directory.next_block(at)? {
            directory.count_read(&mut blocks_read)?;
            at = FileBlock(block.0 + 1);
            let Some((buffer, place)) = directory.read(block)? else { continue };
            let leaf = if block == FileBlock(0) {
                format.new_leaf(format.dots(&buffer, place)?.entries)
            } else if format.is_index_node(&buffer) {
                format.new_leaf([])
            } else {
                continue;
            };
            let (block, volume) = (buffer.block(), self.volume());
            volume.change(1, |handle| directory.rewrite(handle, block, place, &leaf))?;
        }
        self.volume().change(1, |handle| {
            self.update(handle, |record| record.flags.0 &= !InodeFlags::INDEX.0)
        })
    }
}
