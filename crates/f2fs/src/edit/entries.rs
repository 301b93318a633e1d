//! Changes of a directory's entries, in its inode or in its blocks in the overlay.
//! Not here: the bytes of an area (`dir/edit.rs`), and the inodes that the entries name.

use base::{Error, FileBlock, InodeNumber, Location, Result};

use super::nodes::{Editor, Slot, nid_of};
use crate::dir::edit::{self, NewEntry};
use crate::dir::entries::{Entries, code_of_file_type};
use crate::dir::{Blocks, Found, WantedName, levels};
use crate::inode::Inode;
use crate::ondisk::node::NULL_ADDRESS;

/// A directory whose entries change.
pub(crate) struct EntryEditor<'e, 'v> {
    pub(crate) editor: &'e mut Editor<'v>,
    /// The directory.
    pub(crate) number: InodeNumber,
}

impl EntryEditor<'_, '_> {
    fn inode(&self) -> Result<Inode> {
        self.editor.inode(self.number)
    }

    fn location(&self) -> Location {
        Location::inode(self.number)
    }

    /// Returns the entry with exactly this stored name.
    pub(crate) fn find(&self, name: &[u8], hash: u32) -> Result<Option<Found>> {
        let shape = self.inode()?.directory_shape()?;
        self.find_wanted(&WantedName::stored(name, hash, &shape))
    }

    /// Returns the entry of a name, which may differ in case if the directory ignores that.
    pub(crate) fn find_wanted(&self, wanted: &WantedName<'_>) -> Result<Option<Found>> {
        self.inode()?.find(wanted)
    }

    /// Removes an entry. A block without entries becomes a hole.
    pub(crate) fn remove(&mut self, found: &Found) -> Result<()> {
        let Some(at) = found.block else {
            return self.edit_inline(|area| edit::remove(area, found.slot, found.end));
        };
        let mut contents = self.contents(at)?.unwrap_or_default();
        edit::remove(&mut contents, found.slot, found.end);
        if !edit::is_empty(&contents) {
            return self.editor.overlay.write().put_directory_block(self.number, at, contents);
        }
        self.editor.overlay.write().remove_directory_block(self.number, at);
        if let Some(slot) = self.editor.slot_of(self.number, at, false)? {
            self.editor.free_slot(slot)?;
        }
        Ok(())
    }

    /// Lets an entry name another inode.
    pub(crate) fn set_inode(&mut self, found: &Found, inode: InodeNumber, kind: u8) -> Result<()> {
        let Some(at) = found.block else {
            return self.edit_inline(|area| edit::set_inode(area, found.slot, inode, kind));
        };
        let mut contents = self.contents(at)?.unwrap_or_default();
        edit::set_inode(&mut contents, found.slot, inode, kind);
        self.editor.overlay.write().put_directory_block(self.number, at, contents)
    }

    /// Adds an entry, whose name the directory does not have. Errors: `NoSpace` if the last level
    /// is full.
    pub(crate) fn add(&mut self, entry: &NewEntry<'_>) -> Result<()> {
        if self.inode()?.record().inline_area.is_some() {
            if self.edit_inline(|area| edit::add(area, entry))? {
                return Ok(());
            }
            self.convert_inline()?;
        }
        self.add_to_blocks(entry)
    }

    fn edit_inline<R>(&self, edit: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let area = self.inode()?.record().inline_area.clone().unwrap_or_default();
        self.editor.edit_node(nid_of(self.number), self.number, |bytes| {
            // The record was parsed from a block of this size.
            edit(&mut bytes[area])
        })
    }

    /// Moves the entries of an inline directory to blocks.
    fn convert_inline(&mut self) -> Result<()> {
        let area = self.editor.take_inline(self.number)?.unwrap_or_default();
        let block_size = self.editor.volume.geometry().block_size;
        let is_rehashed = self.inode()?.record().dir_level != 0;
        self.editor.edit_inode(self.number, |raw| {
            raw.current_depth.set(if is_rehashed { 0 } else { 1 });
            raw.size.set(raw.size.get().max(block_size.bytes().into()));
        })?;
        if !is_rehashed {
            self.new_block(FileBlock(0))?;
            let contents = edit::copy_to_block(&area, block_size.len());
            let mut overlay = self.editor.overlay.write();
            return overlay.put_directory_block(self.number, FileBlock(0), contents);
        }
        let mut moved = Vec::new();
        for entry in Entries::new(&area, self.location()) {
            moved.push(entry?);
        }
        for entry in moved {
            let kind = entry.kind.map_or(0, code_of_file_type);
            let (name, hash, inode) = (entry.name, entry.hash, entry.inode);
            self.add_to_blocks(&NewEntry { name, hash, inode, kind })?;
        }
        Ok(())
    }

    /// Adds an entry to the first block for its hash that has room. Adds blocks and levels as
    /// needed.
    fn add_to_blocks(&mut self, entry: &NewEntry<'_>) -> Result<()> {
        let inode = self.inode()?;
        let (depth, dir_level) = (inode.record().depth, inode.record().dir_level);
        let buckets = levels::buckets(entry.hash, levels::DEPTH_MAX, dir_level);
        for (level, bucket) in (0..).zip(buckets) {
            for at in (bucket.start.0..bucket.end.0).map(FileBlock) {
                let found = self.contents(at)?;
                let is_new = found.is_none();
                let empty = || vec![0; self.editor.volume.geometry().block_size.len()];
                let mut contents = found.unwrap_or_else(empty);
                if !edit::add(&mut contents, entry) {
                    continue;
                }
                if is_new {
                    self.new_block(at)?;
                }
                self.editor.overlay.write().put_directory_block(self.number, at, contents)?;
                self.editor.edit_inode(self.number, |raw| {
                    raw.current_depth.set(depth.max(level + 1));
                })?;
                return Ok(());
            }
        }
        Err(Error::NoSpace)
    }

    /// Returns the contents of a block. `None` for a hole.
    fn contents(&self, at: FileBlock) -> Result<Option<Vec<u8>>> {
        let inode = self.inode()?;
        let count = inode.directory_shape()?.block_count;
        if at.0 >= count {
            return Ok(None);
        }
        Ok(inode.block(at)?.map(|(bytes, _)| bytes.to_vec()))
    }

    /// Reserves a block of the directory, which grows to have it.
    pub(super) fn new_block(&mut self, at: FileBlock) -> Result<()> {
        let slot: Option<Slot> = self.editor.slot_of(self.number, at, true)?;
        let slot = slot.expect("missing nodes were added");
        if self.editor.address(slot)? == NULL_ADDRESS {
            self.editor.reserve_slot(slot)?;
        }
        let shift = self.editor.volume.geometry().block_size.shift();
        self.editor.edit_inode(self.number, |raw| {
            raw.size.set(raw.size.get().max((at.0 + 1) << shift));
        })
    }
}
