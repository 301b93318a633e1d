//! Changes of a directory during recovery: removal of many names in one pass, and of the index. Not
//! here: adding a name (`insert.rs`).

use std::collections::BTreeMap;

use base::{Error, FileBlock, InodeNumber, Location, Result};

use super::Directory;
use super::block::DirFormat;
use super::leaf::Found;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;

impl Inode {
    /// Removes these names if they have these inodes. Reads all blocks in one pass, without using
    /// an index. Ignores names that do not exist. Each changed block is a transaction of its own.
    pub(crate) fn dir_remove_all(&self, names: &BTreeMap<&[u8], InodeNumber>) -> Result<()> {
        let volume = self.volume();
        if self.has(InodeFlags::INLINE_DATA) {
            for name in names.keys() {
                match volume.change(2, |handle| self.dir_remove(handle, name)) {
                    Err(Error::NotFound) => {}
                    removed => drop(removed?),
                }
            }
            return Ok(());
        }
        let directory = Directory::for_change(self)?;
        let format = directory.format.dir;
        let (mut at, mut blocks_read) = (FileBlock(0), 0);
        while let Some(block) = directory.next_block(at)? {
            directory.count_read(&mut blocks_read)?;
            at = FileBlock(block.0 + 1);
            let Some((buffer, location)) = directory.read(block)? else { continue };
            let is_in_index = block == FileBlock(0) || format.is_index_node(&buffer);
            if directory.is_hashed && is_in_index {
                continue;
            }
            let found = find_all(&format, &buffer, location, names)?;
            if found.is_empty() {
                continue;
            }
            let block = buffer.block();
            volume.change(1, |handle| {
                directory.edit_leaf(handle, block, location, |leaf| {
                    found.iter().for_each(|found| format.remove(leaf, found));
                })
            })?;
        }
        Ok(())
    }

    /// Turns the blocks of this directory's index into leaves, one transaction for each. The first
    /// leaf keeps "." and "..". If these are damaged, writes new ones, with `parent` as "..".
    /// Recovery drops an index that is corrupt or full, or whose hashes it cannot compute because
    /// names ignore case.
    pub(crate) fn dir_drop_index(&self, parent: InodeNumber) -> Result<()> {
        let directory = Directory::for_change(self)?;
        let format = directory.format.dir;
        let (mut at, mut blocks_read) = (FileBlock(0), 0);
        while let Some(block) = directory.next_block(at)? {
            directory.count_read(&mut blocks_read)?;
            at = FileBlock(block.0 + 1);
            let Some((buffer, location)) = directory.read(block)? else { continue };
            let leaf = if block == FileBlock(0) {
                match format.dots(&buffer, location) {
                    Ok(dots) => format.new_leaf(dots.entries),
                    Err(error @ Error::Corrupt(_)) => {
                        tracing::warn!(%error, "a fast commit changes a directory without \".\" and \"..\": they are added");
                        format.new_leaf(format.dot_entries(parent))
                    }
                    Err(error) => return Err(error),
                }
            } else if format.is_index_node(&buffer) {
                format.new_leaf([])
            } else {
                continue;
            };
            let (block, volume) = (buffer.block(), self.volume());
            volume.change(1, |handle| directory.rewrite(handle, block, location, &leaf))?;
        }
        self.volume().change(1, |handle| {
            self.update(handle, |record| record.flags.0 &= !InodeFlags::INDEX.0)
        })
    }
}

/// Returns the entries of a leaf that are among `names`, in order. They are removed together, so
/// `previous` of each is the last entry before it that is not removed. If there is no such entry,
/// `previous` is the first removed one, which keeps its space as an unused entry.
fn find_all(
    format: &DirFormat,
    leaf: &[u8],
    location: Location,
    names: &BTreeMap<&[u8], InodeNumber>,
) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut previous = None;
    for slot in format.slots(format.entries(leaf), location) {
        let slot = slot?;
        match slot.inode.filter(|inode| names.get(slot.name) == Some(inode)) {
            Some(inode) => {
                found.push(Found { previous, range: (slot.start, slot.end), inode });
                previous = previous.or(Some(slot.start));
            }
            None => previous = Some(slot.start),
        }
    }
    Ok(found)
}
