//! Recovery of names: a replayed new inode has its name and its directory, and the directory gets the name. Another inode
//! with this name loses it.
//! Not here: deleting an inode that has no name left (`replay`).

use base::{Error, FileBlock, InodeNumber, Location, Problem, Result};

use super::STRUCTURE;
use super::chain::ChainNode;
use super::nodes::{Editor, Slot, nid_of};
use crate::dir::edit::{self, NewEntry};
use crate::dir::entries::{Entries, code_of_file_type};
use crate::dir::{
    Blocks, Directory, DirectoryShape, Found, InlineDirectory, WantedName, levels, stored_hash,
};
use crate::inode::Inode;
use crate::inode::record::inline;
use crate::ondisk::node::{NAME_BYTES_MAX, NULL_ADDRESS, RawInode};

/// The outcome of the recovery of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RecoveredName {
    /// Whether the name was added. Otherwise the directory had it already.
    pub(super) is_new: bool,
    /// The inode that had this name, with one link less.
    pub(super) replaced: Option<InodeNumber>,
}

/// Gives the inode of `node`, whose fields are `raw`, its name.
pub(super) fn recover_name(
    editor: &mut Editor<'_>,
    node: &ChainNode,
    raw: &RawInode,
) -> Result<RecoveredName> {
    let location = node.location();
    let number = InodeNumber(raw.parent.get().into());
    let directory = match editor.inode(number) {
        Err(Error::NotFound) => {
            let problem = Problem::Missing("the directory of its name");
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        directory => directory?,
    };
    let shape = directory.directory_shape().map_err(|error| match error {
        Error::NotDirectory => {
            let problem = Problem::Invalid { field: "parent", found: number.0 };
            Error::corrupt(STRUCTURE, location, problem)
        }
        error => error,
    })?;
    let (name, hash) = name_of(raw, &shape, location)?;
    let mut parent = Parent { editor, number };
    let mut recovered = RecoveredName::default();
    if let Some(found) = parent.find(name, hash)? {
        if found.inode == node.inode {
            return Ok(recovered);
        }
        parent.remove(&found)?;
        parent.unlink(found.inode, raw)?;
        recovered.replaced = Some(found.inode);
        if parent.find(name, hash)?.is_some() {
            let problem = Problem::Repeated("its name");
            return Err(Error::corrupt("directory", Location::inode(number), problem));
        }
    }
    let kind = code_of_file_type(parent.editor.inode(node.inode)?.attributes().kind);
    parent.add(&NewEntry { name, hash, inode: node.inode, kind })?;
    // The true time of the change is lost. It was not later than that of the inode.
    parent.editor.edit_inode(number, |directory| {
        (directory.ctime, directory.ctime_nsec) = (raw.ctime, raw.ctime_nsec);
        (directory.mtime, directory.mtime_nsec) = (raw.ctime, raw.ctime_nsec);
    })?;
    recovered.is_new = true;
    Ok(recovered)
}

/// Returns the stored name of an inode and its hash.
fn name_of<'r>(
    raw: &'r RawInode,
    shape: &DirectoryShape,
    location: Location,
) -> Result<(&'r [u8], u32)> {
    let length = raw.name_length.get() as usize;
    let name = raw.name.get(..length).filter(|name| !name.is_empty()).ok_or_else(|| {
        let (found, max) = (raw.name_length.get().into(), NAME_BYTES_MAX as u64);
        let problem = Problem::Range { field: "name length", found, min: 1, max };
        Error::corrupt(STRUCTURE, location, problem)
    })?;
    let forbidden = name.iter().find(|byte| [0, b'/'].contains(byte)).filter(|_| !shape.encrypted);
    if let Some(byte) = forbidden {
        let problem = Problem::Invalid { field: "name byte", found: (*byte).into() };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    if matches!(name, b"." | b"..") {
        let problem = Problem::Invalid { field: "name length", found: length as u64 };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    if let Some(hash) = stored_hash(name, shape.casefold, shape.encrypted) {
        return Ok((name, hash));
    }
    // The hash needs the key, so it is stored behind the name.
    let hash = raw.name.get(length..).and_then(|rest| rest.first_chunk());
    let missing = || Error::corrupt(STRUCTURE, location, Problem::Missing("the hash of its name"));
    Ok((name, u32::from_le_bytes(*hash.ok_or_else(missing)?)))
}

/// A directory that gets a name.
struct Parent<'e, 'v> {
    editor: &'e mut Editor<'v>,
    number: InodeNumber,
}

impl Parent<'_, '_> {
    fn inode(&self) -> Result<Inode> {
        self.editor.inode(self.number)
    }

    fn location(&self) -> Location {
        Location::inode(self.number)
    }

    /// Returns the entry with exactly this stored name.
    fn find(&self, name: &[u8], hash: u32) -> Result<Option<Found>> {
        let inode = self.inode()?;
        let shape = inode.directory_shape()?;
        let wanted = WantedName::stored(name, hash, &shape);
        match inode.inline_contents()? {
            Some(area) => InlineDirectory::new(&shape, &area, self.location()).lookup(&wanted),
            None => Directory::new(&shape, &inode).lookup(&wanted),
        }
    }

    /// Removes an entry. A block without entries becomes a hole.
    fn remove(&mut self, found: &Found) -> Result<()> {
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

    /// Takes a link from the inode that had the name. A directory loses that of "." as well, and the parent that of "..".
    /// The inode changes with `by`, which has the name now.
    fn unlink(&mut self, number: InodeNumber, by: &RawInode) -> Result<()> {
        let inode = match self.editor.inode(number) {
            Err(Error::NotFound) => {
                let problem = Problem::Invalid { field: "inode", found: number.0 };
                return Err(Error::corrupt("directory entry", self.location(), problem));
            }
            inode => inode?,
        };
        let is_dir = inode.attributes().is_dir();
        self.editor.edit_inode(number, |raw| {
            let lost = if is_dir { 2 } else { 1 };
            raw.links.set(raw.links.get().saturating_sub(lost));
            (raw.ctime, raw.ctime_nsec) = (by.ctime, by.ctime_nsec);
            if is_dir {
                raw.size.set(0);
            }
        })?;
        if is_dir {
            self.editor.edit_inode(self.number, |raw| {
                raw.links.set(raw.links.get().saturating_sub(1));
            })?;
        }
        Ok(())
    }

    fn add(&mut self, entry: &NewEntry<'_>) -> Result<()> {
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
        let area = self.edit_inline(|area| {
            let before = area.to_vec();
            area.fill(0);
            before
        })?;
        let block_size = self.editor.volume.geometry().block_size;
        let is_rehashed = self.inode()?.record().dir_level != 0;
        self.editor.edit_inode(self.number, |raw| {
            raw.inline &= !(inline::DENTRIES | inline::DATA_EXISTS);
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

    /// Adds an entry to the first block for its hash that has room. Adds blocks and levels as needed.
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
    fn new_block(&mut self, at: FileBlock) -> Result<()> {
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
